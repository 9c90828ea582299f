"""The thesis's claims (Cahyawijaya 2021, 3.3.1 to 3.3.3, 3.3.5), checked by measurements."""

from collections.abc import Iterator
from typing import Literal

from asr.efficiency.grid import MODES, Measurement, Mode
from asr.schema import FrozenModel

Measure = Literal["seconds", "memory_mib", "parameters"]
Bounds = tuple[int, int]  # the least and the greatest value


class Claim(FrozenModel):
    """`over` takes at least `factor` times as much as `under`, at these lengths and ranks."""

    measure: Measure
    over: str
    under: str
    factor: float
    lengths: Bounds
    ranks: Bounds
    text: str


_ANY, _LOW = (1, 1 << 30), (1, 128)
_TABLE = (
    ("parameters", "transformer", "lrt", 2, _ANY, _LOW,
     "LRT is half as large as the Transformer (r ≤ 128)"),
    ("parameters", "transformer", "lrt", 7.5, _ANY, (64, 64),
     "LRT is about 8 times smaller than the Transformer (r = 64)"),
    ("parameters", "linformer", "transformer", 1, _ANY, _ANY,
     "Linformer is larger than the Transformer"),
    ("seconds", "transformer", "lrt", 1, (1, 512), _LOW,
     "LRT is faster than the Transformer (n ≤ 512, r ≤ 128)"),
    ("memory_mib", "transformer", "lrt", 2, (1, 512), _LOW,
     "LRT takes half of the Transformer's memory (n ≤ 512, r ≤ 128)"),
    ("seconds", "transformer", "linformer", 1, (256, 1 << 30), _ANY,
     "Linformer is faster than the Transformer (n ≥ 256)"),
    ("seconds", "linformer", "lrt", 1, (1, 256), _ANY, "LRT is faster than Linformer (n ≤ 256)"),
    ("memory_mib", "linformer", "lrt", 1, (1, 256), _ANY,
     "LRT takes less memory than Linformer (n ≤ 256)"),
    ("seconds", "lrt", "linformer", 1, (1024, 1 << 30), _ANY,
     "Linformer is faster than LRT (n ≥ 1024)"),
    ("memory_mib", "lrt", "linformer", 1, (1024, 1 << 30), _ANY,
     "Linformer takes less memory than LRT (n ≥ 1024)"),
)  # fmt: skip
CLAIMS = [Claim.model_validate(dict(zip(Claim.model_fields, row, strict=True))) for row in _TABLE]


class Ratio(FrozenModel):
    """How many times as much one model takes as another, at a length and a rank."""

    value: float
    length: int
    rank: int | None


class Finding(FrozenModel):
    """A claim, the least and the greatest ratio measured, and in how many cases it holds."""

    claim: Claim
    mode: Mode
    least: Ratio
    greatest: Ratio
    cases: int
    holding: int

    @property
    def cells(self) -> list[str]:
        """Return the cells of a table."""
        claim, ends = self.claim, (self.least, self.greatest)
        return [
            f"{claim.text}: {'size' if claim.measure == 'parameters' else self.mode}",
            "reproduced" if self.holding == self.cases else "not reproduced",
            f"{self.holding} of {self.cases}",
            *(f"{ratio.value:.2f} (n = {ratio.length}, r = {ratio.rank})" for ratio in ends),
        ]


def ratios(
    rows: list[Measurement], measure: Measure, over: str, under: str, mode: Mode
) -> list[Ratio]:
    """Return a ratio for each length and rank that both have; a model without rank has them all."""
    values = {(r.model, r.length, r.rank): getattr(r, measure) for r in rows if r.mode == mode}
    found = []
    for length, rank in sorted({(n, r) for model, n, r in values if r and model in (over, under)}):
        above, below = (
            values.get((model, length, rank)) or values.get((model, length, None))
            for model in (over, under)
        )
        if above and below:
            found.append(Ratio(value=above / below, length=length, rank=rank))
    return found


def findings(rows: list[Measurement]) -> Iterator[Finding]:
    """Yield the claims of which some case was measured."""
    for claim in CLAIMS:
        for mode in MODES if claim.measure != "parameters" else MODES[:1]:
            own = [
                ratio
                for ratio in ratios(rows, claim.measure, claim.over, claim.under, mode)
                if claim.lengths[0] <= ratio.length <= claim.lengths[1]
                and claim.ranks[0] <= (ratio.rank or 1) <= claim.ranks[1]
            ]
            if own:
                least, *_, greatest = sorted([own[0], *own], key=lambda ratio: ratio.value)
                holding = sum(ratio.value >= claim.factor for ratio in own)
                yield Finding(
                    claim=claim,
                    mode=mode,
                    least=least,
                    greatest=greatest,
                    cases=len(own),
                    holding=holding,
                )
