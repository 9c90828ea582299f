"""The lengths from which LRT takes more than Linformer (Cahyawijaya 2021, fig. 3.5)."""

import math
from collections.abc import Iterator
from itertools import product

from asr.efficiency.grid import MATRIX, MODES, Measurement, Mode
from asr.efficiency.ratios import COSTS, Cost, Ratio, ratios
from asr.schema import FrozenModel


def break_even_length(d_model: int, rank: int) -> float:
    """Return the length n at which LRT and Linformer of a rank r take equally many operations.

    In multiplications for a position of a layer: Linformer takes 12 d² for its maps, 2 r d to mix
    keys and values by E and F, and 2 r d to attend to r of them; LRT takes 18 r d for its pairs of
    maps and 2 n d to attend to n keys. Hence n = 6 d - 7 r; below it LRT takes fewer.
    """
    d, inner = d_model, 4 * d_model
    linformer = 4 * d * d + 2 * d * inner + 4 * rank * d
    low_rank_maps = rank * (4 * 2 * d + 2 * (d + inner))
    return (linformer - low_rank_maps) / (2 * d)


class BreakEven(FrozenModel):
    """A measured break-even length of LRT and Linformer.

    `longest` is the greatest measured length at which LRT takes less, and `shortest` the next one,
    from which on it takes no less. Either is None where all measured lengths are on one side.
    `length` is interpolated between them. `matrices` marks the models that form their matrices of
    attention weights.
    """

    rank: int
    measure: Cost
    mode: Mode
    matrices: bool
    longest: int | None
    shortest: int | None
    length: float | None

    @property
    def cell(self) -> str:
        """Return the cell of a table."""
        if self.length is not None:
            return f"{self.length:.0f}"
        return f"above {self.longest}" if self.shortest is None else f"below {self.shortest}"


def break_evens(rows: list[Measurement]) -> Iterator[BreakEven]:
    """Yield the break-even length of each rank in time and memory, as measured."""
    for matrices in (False, True):
        over, under = (MATRIX[m] if matrices else m for m in ("lrt", "linformer"))
        for measure, mode in product(COSTS, MODES):
            found = ratios(rows, measure, over, under, mode)
            for rank in sorted({rank for _, _, rank in found}):
                own = [ratio for ratio in found if ratio[2] == rank]
                longest, shortest, length = _crossing(own)
                yield BreakEven(
                    rank=rank, measure=measure, mode=mode, matrices=matrices, longest=longest,
                    shortest=shortest, length=length,
                )  # fmt: skip


def _crossing(found: list[Ratio]) -> tuple[int | None, int | None, float | None]:
    """Return the last length with a ratio below 1, the next length, and that of the ratio 1.

    The last is on a line through the logarithms of the two lengths and ratios.
    """
    below = [i for i, (value, _, _) in enumerate(found) if value < 1]
    if not below:
        return None, found[0][1], None
    before, *after = found[below[-1] :]
    if not after:
        return before[1], None, None
    (a, n, _), (b, m, _) = before, after[0]
    share = math.log(a) / (math.log(a) - math.log(b))
    return n, m, n * (m / n) ** share
