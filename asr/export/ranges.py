"""Choose the ranges of 8-bit activations from histograms, with the least squared error.

Legend: N bins, L lower and U upper ends of ranges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LARGEST = 255  # of an unsigned byte
_BINS = 2048
_MARGIN = 1.25
_SHARES = np.linspace(1, 0.25, 31)  # of the largest value, or the least one, that a range ends at

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Grid:
    """The values scale · (q - zero) for q from 0 to 255; 0 is one of them."""

    scale: float
    zero: int

    def nearest(self, x: np.ndarray) -> np.ndarray:
        """Return the nearest value to each of x."""
        q = np.clip(np.rint(x / self.scale) + self.zero, 0, LARGEST)
        return np.asarray((q - self.zero) * self.scale)


def grid_of(low: float, high: float) -> Grid:
    """Return the grid from `low` to `high` and 0, its ends moved so that 0 is on it."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / LARGEST)) or 1.0
    return Grid(scale, round(-low / scale))


@dataclass
class Histogram:
    """How often values are in each of N equal bins from `low` to `high`."""

    low: float
    high: float
    counts_N: np.ndarray

    def whole(self) -> Grid:
        """Return the grid of all values, and of somewhat larger ones of recordings not seen."""
        return grid_of(_MARGIN * self.low, _MARGIN * self.high)

    def best(self) -> Grid:
        """Return the grid with the least sum of squared errors, values beyond its ends included.

        Ends are shares of the least and the largest value (mean squared error as the criterion:
        Nagel et al. 2021, A White Paper on Neural Network Quantization, sec. 3.1).
        """
        edges = np.linspace(self.low, self.high, len(self.counts_N) + 1)
        is_there = self.counts_N > 0
        x_N, counts_N = (0.5 * (edges[1:] + edges[:-1]))[is_there], self.counts_N[is_there]
        lows = self.low * _SHARES if self.low < 0 else [0.0]
        highs = self.high * _SHARES if self.high > 0 else [0.0]
        grids = [grid_of(low, high) for low in lows for high in highs]
        return min(grids, key=lambda g: float((counts_N * (x_N - g.nearest(x_N)) ** 2).sum()))


def observe(session: Any, names: Sequence[str], batches: Sequence[Batch]) -> dict[str, Histogram]:
    """Return the histograms of these outputs of a session over batches of its inputs."""
    bounds: dict[str, tuple[float, float]] = dict.fromkeys(names, (0.0, 0.0))
    for batch in batches:
        for name, x in zip(names, session.run(list(names), batch), strict=True):
            low, high = bounds[name]
            bounds[name] = min(low, float(x.min())), max(high, float(x.max()))
    found = {name: Histogram(*bounds[name], np.zeros(_BINS)) for name in names}
    for batch in batches:
        for name, x in zip(names, session.run(list(names), batch), strict=True):
            found[name].counts_N += np.histogram(x, _BINS, bounds[name])[0]
    return found
