"""What the study measures: encoders by model, rank and length, in inference and in training."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt

from asr.model.projection import DenseConfig, LowRankConfig, ProjectionConfig, SetSparseConfig
from asr.model.transformer import Encoder, EncoderConfig, ModelConfig
from asr.schema import FrozenModel

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
RANKS = (32, 64, 128, 256)
D_MODEL = 768
BASELINE = "transformer"
MODES: tuple["Mode", ...] = ("training", "inference")
Mode = Literal["inference", "training"]

# What a rank is to each kind of attention; others have none.
_RANKED = {
    "linformer": lambda rank, length: {"rank": rank, "length": length},
    "conv_linformer": lambda rank, length: {"stride": max(1, length // rank)},
    "performer": lambda rank, _: {"features": rank},
    "sliding_window": lambda rank, _: {"window": max(1, rank // 2)},
    "nystrom": lambda rank, _: {"landmarks": rank},
}
_FULL = ("transformer", "lrt", "matrix", "set_sparse")
# `matrix` is the Transformer with its matrix of weights formed, as in the thesis's time.
MODELS = (*_FULL, *_RANKED, "linear", "lsh", "s4d")


class BenchmarkCase(FrozenModel):
    """A model at a length, in a mode, on a device (`cpu` or the name of a GPU)."""

    device: str
    mode: Mode
    model: str
    rank: PositiveInt | None
    length: PositiveInt
    runs: PositiveInt

    def build(self) -> Encoder:
        """The thesis's encoder for this study: 2 layers, 768, 3072, 12 heads."""
        projection: ProjectionConfig = DenseConfig()
        if self.model == "set_sparse":
            projection = SetSparseConfig()
        elif self.model == "lrt" and self.rank:
            projection = LowRankConfig(rank=self.rank)
        numbers = _RANKED[self.model](self.rank, self.length) if self.model in _RANKED else {}
        attention: dict[str, Any] = {"kind": "full" if self.model in _FULL else self.model}
        return Encoder(
            ModelConfig(
                d_model=D_MODEL, d_inner=4 * D_MODEL, n_heads=12, projection=projection,
                encoder=EncoderConfig.model_validate(
                    {"n_layers": 2, "attention": attention | numbers}
                ),
            )
        )  # fmt: skip

    def count_parameters(self) -> int:
        """How many numbers are learned."""
        with torch.device("meta"):
            return sum(p.numel() for p in self.build().parameters())


class Measurement(BenchmarkCase):
    """A cell as measured: means of its `runs`.

    `seconds` of a forward pass, in training with the backward pass, and their standard deviation;
    `memory_mib` is what weights, activations and gradients take at most; both are of a batch of
    `batch` sequences, and None where they do not fit in memory.
    """

    batch: PositiveInt
    seconds: NonNegativeFloat | None
    deviation: NonNegativeFloat | None
    memory_mib: NonNegativeFloat | None
    parameters: PositiveInt
    outcome: Literal["measured", "out of memory"]

    @property
    def cell(self) -> BenchmarkCase:
        """What was measured."""
        return BenchmarkCase(**{name: getattr(self, name) for name in BenchmarkCase.model_fields})


def grid(
    models: list[str], lengths: list[int], ranks: list[int], runs: int, device: str
) -> Iterator[BenchmarkCase]:
    """All cells, short ones first, and of a length the Transformer's training, then the rest."""
    for length in sorted(set(lengths)):
        for mode in MODES:
            for model in dict.fromkeys([BASELINE, *models]):
                has_rank = model == "lrt" or model in _RANKED
                for rank in sorted(set(ranks)) if has_rank else [None]:
                    yield BenchmarkCase(
                        device=device, mode=mode, model=model, rank=rank, length=length, runs=runs
                    )
