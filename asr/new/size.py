"""The sizes of models for corpora: how many hours each is for, and how it is trained.

The three smaller ones are of runs that have learned real words and sentences, the two larger ones
have not been trained by the authors.
"""

from typing import Any, NamedTuple

from asr.new.measure import CorpusMeasures

_MANY_CHARACTERS = 1000


class Size(NamedTuple):
    """A model, and how it is trained, for corpora of so many hours or more.

    Without a rank the maps are dense.
    """

    hours: float
    d_model: int
    n_heads: int
    rank: int | None
    channels: tuple[int, int]
    n_layers: tuple[int, int]  # of encoder and decoder
    convolution: int | None
    dropout: float
    n_mels: int
    ctc_weight: float
    lr: float
    warmup: int
    batch_seconds: float
    accumulate: int
    average: int
    source: str


SIZES = (
    Size(0, 128, 4, 32, (16, 32), (4, 1), 7, 0.1, 40, 0.8, 2.0e-3, 300, 24, 1, 5,
         "as in the run that learned 20 words from 1 h of 19 speakers"),
    Size(2, 192, 4, None, (32, 64), (6, 1), 15, 0.15, 40, 0.8, 1.5e-3, 500, 30, 1, 3,
         "as in the run that learned 6,425 words of one speaker"),
    Size(5, 256, 4, None, (32, 64), (8, 1), 15, 0.1, 40, 0.7, 1.0e-3, 800, 32, 1, 3,
         "as in the run that learned sentences from 9.5 h of 166 speakers"),
    Size(20, 384, 6, 96, (32, 64), (8, 3), 15, 0.1, 80, 0.5, 5.0e-4, 2000, 120, 1, 5,
         "between that for 9.5 h and recipes/aishell1/best.yaml; not trained by the authors"),
    Size(100, 384, 6, 96, (32, 64), (8, 3), 15, 0.1, 80, 0.5, 4.0e-4, 4000, 120, 2, 10,
         "as the LRTs of recipes/aishell1 with a higher rank; not trained by the authors"),
)  # fmt: skip
# What Muon changes in a size, by the hours of the size. These are the sizes for which it was
# measured to help, on a processor that makes matrices orthogonal fast.
BY_MUON: dict[float, dict[str, Any]] = {2: {}, 5: {"warmup": 300, "batch_seconds": 64}}


def size_for(corpus: CorpusMeasures) -> Size:
    """Return the size for the hours; many characters need more than the smallest one."""
    is_rich = corpus.hours >= 1 and corpus.characters >= _MANY_CHARACTERS
    hours = max(corpus.hours, SIZES[1].hours) if is_rich else corpus.hours
    return next(size for size in reversed(SIZES) if size.hours <= hours)
