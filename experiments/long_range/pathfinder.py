"""Pathfinder: are two dots in a picture joined by a dashed path (Linsley et al. 2018)?

A picture has two long dashed paths that stay apart, and shorter ones that distract. Both dots are
at the ends of one long path (class 1), or each at an end of another one (class 0). As in the Long
Range Arena (Tay et al. 2021, sec. 2.2.5) the pixels, row by row, are the sequence.
"""

import math

import numpy as np
import torch

from experiments.runner import Examples

N_CLASSES = 2
_DASH, _GAP, _APART = 3, 1, 4  # pixels; paths are more than _APART apart
_BEND = 0.35  # standard deviation of the bend from one pixel to the next, in radians
_TRIES = 200
Path = list[tuple[int, int]]


def picture(rng: np.random.Generator, size: int, is_joined: bool) -> np.ndarray:
    """Return a picture (size, size) of 0 and 1 whose dots are joined or not."""
    while True:
        free = np.ones((size, size), bool)
        long = [_path(rng, free, size * 3 // 4) for _ in range(2)]
        if not all(long):
            continue
        short = [_path(rng, free, size // 4) for _ in range(size // 8)]
        image = np.zeros((size, size), np.float32)
        for path in (*long, *short):
            for i, place in enumerate(path):
                if i % (_DASH + _GAP) < _DASH:
                    image[place] = 1.0
        ends = (long[0][0], long[0][-1]) if is_joined else (long[0][0], long[1][-1])
        for row, column in ends:
            image[row - 1 : row + 2, column - 1 : column + 2] = 1.0
        return image


def _path(rng: np.random.Generator, free: np.ndarray, length: int) -> Path:
    """Draw a path of so many pixels where `free` is True, and set its surroundings to False.

    Returns an empty path if there was no place for one.
    """
    for _ in range(_TRIES):
        path = _walk(rng, free, length)
        if path:
            for row, column in path:
                rows = slice(max(0, row - _APART), row + _APART + 1)
                free[rows, max(0, column - _APART) : column + _APART + 1] = False
            return path
    return []


def _walk(rng: np.random.Generator, free: np.ndarray, length: int) -> Path:
    size = len(free)
    place, heading = rng.uniform(2, size - 2, 2), rng.uniform(0, 2 * math.pi)
    path: Path = []
    while len(path) < length:
        row, column = int(place[0]), int(place[1])
        if not (2 <= row < size - 2 and 2 <= column < size - 2 and free[row, column]):
            return []
        if not path or path[-1] != (row, column):
            # A path must not come back to itself.
            if any(max(abs(row - r), abs(column - c)) < 4 for r, c in path[:-8]):
                return []
            path.append((row, column))
        heading += rng.normal(0, _BEND)
        place += (math.sin(heading), math.cos(heading))
    return path


def examples(n: int, size: int, seed: int) -> Examples:
    """Return n pictures as sequences of size² pixels, every other one joined."""
    rng = np.random.default_rng(seed)
    return [
        (torch.from_numpy(2 * picture(rng, size, bool(i % 2)).reshape(-1) - 1), i % 2)
        for i in range(n)
    ]
