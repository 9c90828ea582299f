"""The cases of the study: encoders by model, rank and length, in inference and in training."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from pydantic import NonNegativeFloat, PositiveInt

from asr.model.encoder import Encoder
from asr.model.projection import DenseConfig, LowRankConfig, ProjectionConfig, SetSparseConfig
from asr.model.size import count_parameters
from asr.model.transformer import ModelConfig
from asr.runtime.tensors import shapes_alone
from asr.schema import FrozenModel

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
RANKS = (32, 64, 128, 256)
D_MODEL = 768
BASELINE = "transformer"
MODES: tuple["Mode", ...] = ("training", "inference")
Mode = Literal["inference", "training"]

# What the rank sets in a kind of attention; the kinds that are not here have no rank.
_RANKED: dict[str, Callable[[int, int], dict[str, int]]] = {
    "linformer": lambda rank, length: {"rank": rank, "length": length},
    "conv_linformer": lambda rank, length: {"stride": max(1, length // rank)},
    "performer": lambda rank, _: {"features": rank},
    "sliding_window": lambda rank, _: {"window": max(1, rank // 2)},
    "nystrom": lambda rank, _: {"landmarks": rank},
    "isab": lambda rank, _: {"points": rank},
    "luna": lambda rank, _: {"points": rank},
}
_LIMITED = ("dense_synthesizer", "random_synthesizer", "sinkhorn")  # with weights for each length
_OTHERS = (
    "linear", "lsh", "s4d", "s4", "fnet", "bigbird", "sparse_strided", "sparse_fixed",
    "transformer_xl", "compressive", "routing",
)  # fmt: skip
_FULL = ("transformer", "lrt", "set_sparse")
# Variants of these models that form the matrices of attention weights, as the thesis's did.
MATRIX = {"transformer": "matrix", "lrt": "lrt_matrix", "linformer": "linformer_matrix"}
_BASE = {form: model for model, form in MATRIX.items()}
MODELS = (*_FULL, *_RANKED, *_LIMITED, *_BASE, *_OTHERS)


class BenchmarkCase(FrozenModel):
    """A model at a length, in a mode, on a device (`cpu` or the name of a GPU)."""

    device: str
    mode: Mode
    model: str
    rank: PositiveInt | None
    length: PositiveInt
    runs: PositiveInt

    def build(self) -> Encoder:
        """Return the encoder of Cahyawijaya 2021, 3.2: 2 layers, 768, 3072, 12 heads."""
        model = _BASE.get(self.model, self.model)
        projection: ProjectionConfig = DenseConfig()
        if model == "set_sparse":
            projection = SetSparseConfig()
        elif model == "lrt" and self.rank:
            projection = LowRankConfig(rank=self.rank)
        attention: dict[str, Any] = {"kind": "full" if model in _FULL else model}
        if model in _RANKED:
            attention |= _RANKED[model](self.rank or 1, self.length)
        if model in _LIMITED:
            attention["length"] = self.length
        encoder = {"n_layers": 2, "attention": attention}
        values = {"d_model": D_MODEL, "d_inner": 4 * D_MODEL, "n_heads": 12}
        parts = {"projection": projection, "encoder": encoder}
        return Encoder(ModelConfig.model_validate(values | parts))

    @property
    def forms_matrix(self) -> bool:
        """Tell whether attention forms its matrix of weights in inference too."""
        return self.model in _BASE

    def count_parameters(self) -> int:
        """Return the number of weights."""
        with shapes_alone():
            return count_parameters(self.build())

    @property
    def title(self) -> str:
        """Return the model with its rank."""
        return f"{self.model}, r = {self.rank}" if self.rank else self.model

    @property
    def name(self) -> str:
        """Return the title with length and mode."""
        return f"{self.title}, n = {self.length}, {self.mode}"


class Measurement(BenchmarkCase):
    """A measured case: means of its `runs` with `batch` sequences.

    `seconds` is the time of a forward pass, in training with the backward pass, `deviation` its
    standard deviation; `memory_mib` is the peak of weights, activations and gradients. Values
    are None if the case does not fit in memory.
    """

    batch: PositiveInt
    seconds: NonNegativeFloat | None
    deviation: NonNegativeFloat | None
    memory_mib: NonNegativeFloat | None
    parameters: PositiveInt
    outcome: Literal["measured", "out of memory"]

    @property
    def case(self) -> BenchmarkCase:
        """Return the case that was measured."""
        return BenchmarkCase(**{name: getattr(self, name) for name in BenchmarkCase.model_fields})


def grid(
    models: list[str], lengths: Sequence[int], ranks: Sequence[int], runs: int, device: str
) -> Iterator[BenchmarkCase]:
    """Yield all cases by length, at each length the training of the Transformer first."""
    for length in sorted(set(lengths)):
        for mode in MODES:
            for model in dict.fromkeys([BASELINE, *models]):
                base = _BASE.get(model, model)
                has_rank = base == "lrt" or base in _RANKED
                for rank in sorted(set(ranks)) if has_rank else [None]:
                    yield BenchmarkCase(
                        device=device, mode=mode, model=model, rank=rank, length=length, runs=runs
                    )
