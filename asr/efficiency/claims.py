"""What the thesis found (3.3.1 to 3.3.3, 3.3.5), beside what was measured here."""

from collections.abc import Iterator
from typing import Literal

from asr.efficiency.grid import BASELINE, MODES, Measurement, Mode
from asr.schema import FrozenModel

Measure = Literal["seconds", "memory_mib", "parameters"]


class Claim(FrozenModel):
    """`over` takes at least `factor` times what `under` takes, of `measure`.

    At all lengths and ranks between the given ones, both ends within.
    """

    text: str
    measure: Measure
    over: str
    under: str
    factor: float = 1.0
    lengths: tuple[int, int]
    ranks: tuple[int, int] = (1, 256)


_ANY, _LOW = (1, 1 << 30), (1, 128)
CLAIMS = (
    Claim(text="LRT is half as large as the Transformer (r ≤ 128)",
          measure="parameters", over=BASELINE, under="lrt", factor=2, lengths=_ANY, ranks=_LOW),
    Claim(text="LRT is about 8 times smaller than the Transformer (r = 64)",
          measure="parameters", over=BASELINE, under="lrt", factor=7.5, lengths=_ANY,
          ranks=(64, 64)),
    Claim(text="Linformer is larger than the Transformer",
          measure="parameters", over="linformer", under=BASELINE, lengths=_ANY),
    Claim(text="LRT is faster than the Transformer (n ≤ 512, r ≤ 128)",
          measure="seconds", over=BASELINE, under="lrt", lengths=(1, 512), ranks=_LOW),
    Claim(text="LRT takes half of the Transformer's memory (n ≤ 512, r ≤ 128)",
          measure="memory_mib", over=BASELINE, under="lrt", factor=2, lengths=(1, 512), ranks=_LOW),
    Claim(text="Linformer is faster than the Transformer (n ≥ 256)",
          measure="seconds", over=BASELINE, under="linformer", lengths=(256, 1 << 30)),
    Claim(text="LRT is faster than Linformer (n ≤ 256)",
          measure="seconds", over="linformer", under="lrt", lengths=(1, 256)),
    Claim(text="LRT takes less memory than Linformer (n ≤ 256)",
          measure="memory_mib", over="linformer", under="lrt", lengths=(1, 256)),
    Claim(text="Linformer is faster than LRT (n ≥ 1024)",
          measure="seconds", over="lrt", under="linformer", lengths=(1024, 1 << 30)),
    Claim(text="Linformer takes less memory than LRT (n ≥ 1024)",
          measure="memory_mib", over="lrt", under="linformer", lengths=(1024, 1 << 30)),
)  # fmt: skip


class Ratio(FrozenModel):
    """How many times as much one model takes as another, at a length and a rank."""

    value: float
    length: int
    rank: int | None


class Finding(FrozenModel):
    """A claim as it shows here: the least and the greatest ratio of its cells."""

    claim: Claim
    mode: Mode
    least: Ratio
    greatest: Ratio
    cells: int
    holding: int

    @property
    def holds(self) -> bool:
        """Whether it does everywhere."""
        return self.holding == self.cells


def ratios(
    rows: list[Measurement], measure: Measure, over: str, under: str, mode: Mode
) -> list[Ratio]:
    """At each length and rank that both have; what has no rank stands beside every rank."""
    own = {(r.model, r.length, r.rank): r for r in rows if r.mode == mode}
    places = {(r.length, r.rank) for r in own.values() if r.rank and r.model in (over, under)}
    found = []
    for length, rank in sorted(places):
        above, below = (
            own.get((model, length, rank)) or own.get((model, length, None))
            for model in (over, under)
        )
        values = [getattr(row, measure) if row else None for row in (above, below)]
        if values[0] and values[1]:
            found.append(Ratio(value=values[0] / values[1], length=length, rank=rank))
    return found


def findings(rows: list[Measurement]) -> Iterator[Finding]:
    """The claims of which some cell was measured."""
    for claim in CLAIMS:
        for mode in MODES if claim.measure != "parameters" else MODES[:1]:
            all_of = ratios(rows, claim.measure, claim.over, claim.under, mode)
            own = [r for r in all_of if _within(r.length, claim.lengths)
                   and _within(r.rank or 1, claim.ranks)]  # fmt: skip
            if own:
                ordered = sorted(own, key=lambda r: r.value)
                holding = sum(r.value >= claim.factor for r in own)
                yield Finding(
                    claim=claim, mode=mode, least=ordered[0], greatest=ordered[-1],
                    cells=len(own), holding=holding,
                )  # fmt: skip


def _within(value: int, ends: tuple[int, int]) -> bool:
    return ends[0] <= value <= ends[1]
