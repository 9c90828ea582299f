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


Ratio = tuple[float, int, int]  # how many times as much, at a length and a rank


class Finding(FrozenModel):
    """A claim, in how many measured cases it holds, and the least and the greatest ratio."""

    claim: Claim
    mode: Mode
    cases: int
    holding: int
    least: Ratio
    greatest: Ratio

    @property
    def cells(self) -> list[str]:
        """Return the cells of a table."""
        return [
            f"{self.claim.text}: {'size' if self.claim.measure == 'parameters' else self.mode}",
            "reproduced" if self.holding == self.cases else "not reproduced",
            f"{self.holding} of {self.cases}",
            *(
                f"{value:.2f} (n = {n}, r = {rank})"
                for value, n, rank in (self.least, self.greatest)
            ),
        ]


def ratios(
    rows: list[Measurement], measure: Measure, over: str, under: str, mode: Mode
) -> list[Ratio]:
    """Return a ratio for each length and rank; a model without rank is the same at all ranks."""
    values = {(r.model, r.length, r.rank): getattr(r, measure) for r in rows if r.mode == mode}
    found = []
    for length, rank in sorted({(n, r) for model, n, r in values if r and model in (over, under)}):
        above, below = (
            values.get((model, length, rank)) or values.get((model, length, None))
            for model in (over, under)
        )
        if above and below:
            found.append((above / below, length, rank))
    return found


def findings(rows: list[Measurement]) -> Iterator[Finding]:
    """Yield the claims of which some case was measured."""
    for claim in CLAIMS:
        (min_length, max_length), (min_rank, max_rank) = claim.lengths, claim.ranks
        for mode in MODES if claim.measure != "parameters" else MODES[:1]:
            own = [
                (value, n, rank)
                for value, n, rank in ratios(rows, claim.measure, claim.over, claim.under, mode)
                if min_length <= n <= max_length and min_rank <= rank <= max_rank
            ]
            if own:
                holding, ends = sum(r[0] >= claim.factor for r in own), (min(own), max(own))
                counts = {"cases": len(own), "holding": holding}
                yield Finding(claim=claim, mode=mode, least=ends[0], greatest=ends[1], **counts)
