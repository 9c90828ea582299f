"""The thesis's claims (Cahyawijaya 2021, 3.3), checked by measurements."""

from collections.abc import Callable, Iterator
from typing import Literal

from asr.efficiency.bert_cost import efficiencies
from asr.efficiency.grid import MATRIX, MODES, Measurement, Mode
from asr.efficiency.ratios import Measure, Ratio, growth, ratios, steepness
from asr.reporting.tables import DASH
from asr.schema import FrozenModel

Bounds = tuple[int, int]  # the least and the greatest value
_ANY, _LOW = (1, 1 << 30), (1, 128)
_FROM_256, _TO_256, _TO_512, _FROM_1024 = (256, 1 << 30), (1, 256), (1, 512), (1024, 1 << 30)
_AT_512 = (512, 512)

# How the values of a claim follow from the ratios at its lengths and ranks.
_VALUES: dict[str, Callable[[list[Ratio]], list[Ratio]]] = {
    "ratio": lambda found: found,
    "growth": growth,
    "steepness": steepness,
    "efficiency": efficiencies,
}


class Claim(FrozenModel):
    """`over` takes at least `factor` times as much as `under`, at these lengths and ranks.

    `of` tells what must be at least `factor`, and at most `most` if that is given: the ratios, how
    they grow with the length, their slope over the rank, or the efficiency of eq. 3.10.
    """

    text: str
    measure: Measure
    over: str
    under: str
    factor: float = 1
    most: float | None = None
    lengths: Bounds = _ANY
    ranks: Bounds = _ANY
    modes: tuple[Mode, ...] = MODES
    of: Literal["ratio", "growth", "steepness", "efficiency"] = "ratio"

    def values(self, rows: list[Measurement], mode: Mode, matrices: bool) -> list[Ratio]:
        """Return the values of the measured cases; `matrices`: those of models that form them."""
        over, under = (MATRIX[m] if matrices else m for m in (self.over, self.under))
        (min_length, max_length), (min_rank, max_rank) = self.lengths, self.ranks
        found = ratios(rows, self.measure, over, under, mode)
        return _VALUES[self.of](
            [
                (value, n, rank)
                for value, n, rank in found
                if min_length <= n <= max_length and min_rank <= rank <= max_rank
            ]
        )

    def holds(self, value: float) -> bool:
        """Tell whether a value agrees with the claim."""
        return value >= self.factor and (self.most is None or value <= self.most)


_SIZE: tuple[Mode, ...] = MODES[:1]
CLAIMS = [
    Claim(
        text="LRT is half as large as the Transformer (r ≤ 128)",
        measure="parameters", over="transformer", under="lrt",
        factor=2, ranks=_LOW, modes=_SIZE,
    ),
    Claim(
        text="LRT is about 8 times smaller than the Transformer (r = 64)",
        measure="parameters", over="transformer", under="lrt",
        factor=7.5, ranks=(64, 64), modes=_SIZE,
    ),
    Claim(
        text="LRT's size is a line over the rank",
        measure="parameters", over="lrt", under="transformer",
        factor=0.99, most=1.01, modes=_SIZE, of="steepness",
    ),
    Claim(
        text="Linformer is larger than the Transformer",
        measure="parameters", over="linformer", under="transformer",
        modes=_SIZE,
    ),
    Claim(
        text="LRT is faster than the Transformer (n ≤ 512, r ≤ 128)",
        measure="seconds", over="transformer", under="lrt",
        lengths=_TO_512, ranks=_LOW,
    ),
    Claim(
        text="LRT takes half of the Transformer's memory (n ≤ 512, r ≤ 128)",
        measure="memory_mib", over="transformer", under="lrt",
        factor=2, lengths=_TO_512, ranks=_LOW,
    ),
    Claim(
        text="Linformer is faster than the Transformer (n ≥ 256)",
        measure="seconds", over="transformer", under="linformer",
        lengths=_FROM_256,
    ),
    Claim(
        text="Linformer takes less memory than the Transformer (n ≥ 256)",
        measure="memory_mib", over="transformer", under="linformer",
        lengths=_FROM_256,
    ),
    Claim(
        text="Linformer gains speed on the Transformer with every length (n ≥ 256)",
        measure="seconds", over="transformer", under="linformer",
        lengths=_FROM_256, of="growth",
    ),
    Claim(
        text="LRT is faster than Linformer (n ≤ 256)",
        measure="seconds", over="linformer", under="lrt",
        lengths=_TO_256,
    ),
    Claim(
        text="LRT takes less memory than Linformer (n ≤ 256)",
        measure="memory_mib", over="linformer", under="lrt",
        lengths=_TO_256,
    ),
    Claim(
        text="LRT is faster than Linformer (n = 512)",
        measure="seconds", over="linformer", under="lrt",
        lengths=_AT_512, modes=("training",),
    ),
    Claim(
        text="LRT takes less memory than Linformer (n = 512)",
        measure="memory_mib", over="linformer", under="lrt",
        lengths=_AT_512, modes=("inference",),
    ),
    Claim(
        text="Linformer is faster than LRT (n = 512)",
        measure="seconds", over="lrt", under="linformer",
        lengths=_AT_512, modes=("inference",),
    ),
    Claim(
        text="Linformer takes less memory than LRT (n = 512)",
        measure="memory_mib", over="lrt", under="linformer",
        lengths=_AT_512, modes=("training",),
    ),
    Claim(
        text="Linformer is faster than LRT (n ≥ 1024)",
        measure="seconds", over="lrt", under="linformer",
        lengths=_FROM_1024,
    ),
    Claim(
        text="Linformer takes less memory than LRT (n ≥ 1024)",
        measure="memory_mib", over="lrt", under="linformer",
        lengths=_FROM_1024,
    ),
    Claim(
        text="Pre-training BERT-base as an LRT saves more than 30 % (r ≤ 256)",
        measure="seconds", over="transformer", under="lrt",
        factor=1 / 0.7, ranks=(1, 256), modes=("training",), of="efficiency",
    ),
]  # fmt: skip
# Claims of 3.3 that the study does not measure, and where something is known of them.
ELSEWHERE = (
    "LRT gains more with a larger hidden size (by operations its break-even is 6 · d_model - 7 r)",
    "LRT and Linformer classify MNIST as well as the Transformer (experiments/pixels)",
)


class Finding(FrozenModel):
    """A claim, in how many measured cases it holds, and the least and the greatest value.

    `matrices` marks the models that form their matrices of attention weights.
    """

    claim: Claim
    mode: Mode
    matrices: bool
    cases: int
    holding: int
    least: Ratio | None
    greatest: Ratio | None

    @property
    def cells(self) -> list[str]:
        """Return the cells of a table."""
        form = ", matrices formed" if self.matrices else ""
        what = "size" if self.claim.measure == "parameters" else self.mode
        verdict = "reproduced" if self.holding == self.cases else "not reproduced"
        return [
            f"{self.claim.text}: {what}{form}",
            verdict if self.cases else "not measured",
            f"{self.holding} of {self.cases}" if self.cases else DASH,
            *(
                f"{ratio[0]:.2f} (n = {ratio[1]}, r = {ratio[2]})" if ratio else DASH
                for ratio in (self.least, self.greatest)
            ),
        ]


def findings(rows: list[Measurement]) -> Iterator[Finding]:
    """Yield every claim, and again for models that form matrices where those were measured."""
    for matrices in (False, True):
        for claim in CLAIMS:
            if matrices and claim.measure == "parameters":
                continue
            for mode in claim.modes:
                own = claim.values(rows, mode, matrices)
                if own or not matrices:
                    yield Finding(
                        claim=claim, mode=mode, matrices=matrices, cases=len(own),
                        holding=sum(claim.holds(value) for value, _, _ in own),
                        least=min(own, default=None), greatest=max(own, default=None),
                    )  # fmt: skip
