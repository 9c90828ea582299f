"""Diplotype sequences as sentencepiece BPE tokens (Cahyawijaya 2021, 5.2.2 and 5.3)."""

import io
import random
import re

import sentencepiece as spm
import torch
from torch import Tensor

from asr.errors import DataError
from experiments.genome.diplotype import CHARACTERS
from experiments.runner import err

PAD, UNK = 0, 1
MIN_VOCAB_SIZE = len(CHARACTERS) + 2


def train_tokenizer(sequences: list[str], vocab_size: int, seed: int) -> bytes:
    """Return a BPE model of sequences, cut into random sentences of 500 to 1,000 positions.

    Each of the 66 characters is a sentence too. For sentencepiece knows only characters of its
    training text, even if it is required to know others.
    """
    rng, sentences = random.Random(seed), list(CHARACTERS)
    for sequence in sequences:
        start = 0
        while start < len(sequence):
            end = start + rng.randint(500, 1000)
            sentences.append(sequence[start:end])
            start = end
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
        maximum = re.search(r"value <= (\d+)", str(error))
        bound = f"{maximum[1]} at most" if maximum else f"{MIN_VOCAB_SIZE} at least"
        raise DataError(f"--vocab {vocab_size} does not fit: make it {bound}") from error
    return model.getvalue()


def tokenize(sequences: list[str], model: bytes, length: int) -> list[Tensor]:
    """Return the first `length` token ids (S,) of each sequence; print how many have more."""
    ids = spm.SentencePieceProcessor(model_proto=model).encode(sequences)
    if n := sum(len(each) > length for each in ids):
        err.print(f"{n} of {len(ids)} sequences are truncated: give a greater --tokens or --vocab")
    return [torch.tensor(each[:length]) for each in ids]
