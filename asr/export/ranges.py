"""Choose the ranges of 8-bit activations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LARGEST = 255  # of an unsigned byte
_MARGIN = 1.25  # voices that are not in the calibration exceed its range

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Grid:
    """The values scale · (q - zero) for q from 0 to 255; 0 is one of them."""

    scale: float
    zero: int


def grid_of(low: float, high: float) -> Grid:
    """Return the grid over `low`, `high` and 0, with its ends moved so that 0 is on it."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / LARGEST)) or 1.0
    return Grid(scale, round(-low / scale))


def observe(session: Any, names: Sequence[str], batches: Sequence[Batch]) -> dict[str, Grid]:
    """Return a grid for each named output of a session: 1.25 times its range over the batches.

    Ranges with the least squared error (Nagel et al. 2021, sec. 3.1) were tried: on the words of
    people who were not in the calibration they cost more accuracy.
    """
    bounds: dict[str, tuple[float, float]] = dict.fromkeys(names, (0.0, 0.0))
    for batch in batches:
        for name, x in zip(names, session.run(list(names), batch), strict=True):
            low, high = bounds[name]
            bounds[name] = min(low, float(x.min())), max(high, float(x.max()))
    return {name: grid_of(_MARGIN * low, _MARGIN * high) for name, (low, high) in bounds.items()}
