"""Diplotype sequences as sentencepiece BPE tokens (thesis 5.2.2, 5.3)."""

import io
import random
import re

import sentencepiece as spm
import torch
from torch import Tensor

from asr.errors import DataError
from experiments.genome.diplotype import CHARACTERS

PAD, UNK = 0, 1
LEAST = len(CHARACTERS) + 2  # of a vocabulary


def learn(sequences: list[str], vocab_size: int, seed: int) -> bytes:
    """A BPE model of sequences, cut at random into sentences of 500 to 1,000 places (thesis 5.3).

    Each of the 66 characters is a sentence too, so that nobody's diplotype is unknown: what
    sentencepiece has not met it does not learn, even where told that it is required.
    """
    rng, sentences = random.Random(seed), list(CHARACTERS)
    for sequence in sequences:
        at = 0
        while at < len(sequence):
            end = at + rng.randint(500, 1000)
            sentences.append(sequence[at:end])
            at = end
    model = io.BytesIO()
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=model, model_type="bpe",
            vocab_size=vocab_size, character_coverage=1.0, max_sentence_length=1 << 20,
            normalization_rule_name="nfkc", add_dummy_prefix=False,
            pad_id=PAD, unk_id=UNK, bos_id=-1, eos_id=-1, unk_piece="[UNK]",
            num_threads=1, minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        most = re.search(r"value <= (\d+)", str(error))
        bound = f"{most[1]} at most" if most else f"{LEAST} at least"
        raise DataError(
            f"--vocab {vocab_size} does not fit the sequences: make it {bound}"
        ) from error
    return model.getvalue()


def encode(sequences: list[str], model: bytes) -> list[Tensor]:
    """Each sequence's tokens, long (S,)."""
    processor = spm.SentencePieceProcessor(model_proto=model)
    return [torch.tensor(processor.encode(sequence)) for sequence in sequences]
