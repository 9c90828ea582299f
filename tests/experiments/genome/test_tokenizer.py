"""The tokens of diplotypes."""

import numpy as np
import pytest
import torch

from asr.errors import DataError
from experiments.genome.diplotype import CHARACTERS, encode_bases, encode_diplotype
from experiments.genome.tokenizer import UNK, tokenize, train_tokenizer


def test_every_diplotype_is_made_of_known_tokens() -> None:
    rng = np.random.default_rng(0)
    sequence = encode_diplotype(
        np.tile(encode_bases("".join(rng.choice(list("ACGT"), 900))), (2, 1))
    )
    model = train_tokenizer([sequence], 120, seed=1)
    found = tokenize([sequence, CHARACTERS], model, 1000)
    assert UNK not in torch.cat(found) and len(found[0]) < 600
    assert model == train_tokenizer([sequence], 120, seed=1)


def test_a_wrong_vocabulary_size_is_refused_with_its_bound() -> None:
    sequence = "ACGTAC" * 20
    for vocab, says in ((20, "68 at least"), (84, "83 at most")):
        with pytest.raises(DataError, match=f"--vocab {vocab} does not fit: make it {says}$"):
            train_tokenizer([sequence], vocab, seed=1)
    assert train_tokenizer([sequence], 68, seed=1) and train_tokenizer([sequence], 83, seed=1)


def test_long_sequences_are_truncated(capsys: pytest.CaptureFixture[str]) -> None:
    model = train_tokenizer(["ACGTAC" * 20], 68, seed=1)
    long, short = tokenize(["ACGTAC" * 20, "AC"], model, 5)
    assert len(long) == 5 and len(short) <= 2
    assert "1 of 2 sequences are truncated" in capsys.readouterr().err
