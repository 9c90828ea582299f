"""Measure what two shortcuts of training are worth, each with and without in turn.

    OMP_NUM_THREADS=1 python -m benchmarks.avx2 [--record]

- A VGG front end, forward and backward: on a processor with AVX2 and no AVX-512 the gradient of a
  convolution's weights is computed from copies (`asr.model.conv2d`).
- A wide matrix made orthogonal for Muon: where it is in float32, by its Gram matrix
  (`asr.train.optimizer`).

Times are processor time, the medians of rounds.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor

from asr.model import conv2d
from asr.model.frontend import VggConfig
from asr.model.projection import DenseConfig
from asr.train import optimizer
from benchmarks import record
from benchmarks.record import Result, Value

CHANNELS = [(16, 32), (32, 64), (64, 128)]
SHAPES = [(128, 512), (256, 512), (256, 1024), (512, 2048)]
ROUNDS, D_MODEL, FREQS, FRAMES = 9, 256, 80, 480


def in_turn(*runs: Callable[[], object]) -> list[Value]:
    """Return the median ms of each run, and how many times the last is as fast as the first."""
    times: list[list[float]] = [[] for _ in runs]
    for round_ in range(ROUNDS + 1):
        for run, spent in zip(runs, times, strict=True):
            start = time.process_time()
            run()
            if round_:
                spent.append(1000 * (time.process_time() - start))
    found = [median(spent) for spent in times]
    return [*found, found[0] / found[-1]]


def front_end(channels: tuple[int, int]) -> list[Value]:
    """Return the milliseconds of a step without and with copies."""
    config = VggConfig(channels=channels)
    module = config.build(FREQS, D_MODEL, DenseConfig(kind="dense"))
    feats_BTF, lengths_B = torch.randn(4, FRAMES, FREQS), torch.full((4,), FRAMES)
    weights_BSD = torch.randn(4, FRAMES // 4, D_MODEL)

    def step(is_avx2: bool) -> None:
        module.zero_grad()
        with patch.object(conv2d, "is_avx2", lambda: is_avx2):
            (module(feats_BTF, lengths_B)[0] * weights_BSD).sum().backward()

    return in_turn(lambda: step(False), lambda: step(True))


def orthogonal(shape: tuple[int, int]) -> list[Value]:
    """Return the ms to make a matrix orthogonal, by iterations on it and by its Gram matrix."""
    x: Tensor = torch.randn(1, *shape) / shape[0]
    return in_turn(lambda: optimizer._drawn(x), lambda: optimizer._drawn_by_gram(x))


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    record.add_option(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    columns = {"": "", "before (ms)": ".1f", "since (ms)": ".1f", "times as fast": ".2f"}
    convolutions: list[list[Value]] = [
        [f"channels {a}, {b}", *front_end((a, b))] for a, b in CHANNELS
    ]
    matrices: list[list[Value]] = [[f"{a} × {b}", *orthogonal((a, b))] for a, b in SHAPES]
    note = f"Forward and backward of 4 utterances of {FRAMES} frames and {FREQS} bins."
    results = [
        Result(
            title="VGG in training, the weights' gradient from copies",
            note=note,
            columns=columns,
            rows=convolutions,
        ),
        Result(
            title="Matrices made orthogonal by their Gram matrices",
            note="Five iterations in float32.",
            columns=columns,
            rows=matrices,
        ),
    ]
    record.publish(args, "training-steps", results)


if __name__ == "__main__":
    main()
