"""Ratios of what two models take, by length and rank."""

from itertools import pairwise
from typing import Literal

from asr.efficiency.grid import Measurement, Mode

Cost = Literal["seconds", "memory_mib"]
Measure = Cost | Literal["parameters"]
COSTS: tuple[Cost, ...] = ("seconds", "memory_mib")
Ratio = tuple[float, int, int]  # how many times as much; the length and the rank


def ratios(
    rows: list[Measurement], measure: Measure, over: str, under: str, mode: Mode
) -> list[Ratio]:
    """Return `over` / `under` by length and rank; a model without rank counts at all ranks."""
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


def growth(found: list[Ratio]) -> list[Ratio]:
    """Return each ratio divided by that of the same rank at the next shorter length."""
    grown, last = [], dict[int, float]()
    for value, length, rank in sorted(found, key=lambda ratio: ratio[1]):
        if rank in last:
            grown.append((value / last[rank], length, rank))
        last[rank] = value
    return grown


def steepness(found: list[Ratio]) -> list[Ratio]:
    """Return the slope up to each rank divided by that up to the rank before: 1 on a line."""
    steep = []
    for length in sorted({n for _, n, _ in found}):
        own = sorted((rank, value) for value, n, rank in found if n == length)
        slopes = [((b - a) / (s - r), s) for (r, a), (s, b) in pairwise(own)]
        for (before, _), (slope, rank) in pairwise(slopes):
            steep.append((slope / before, length, rank))
    return steep
