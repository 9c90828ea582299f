"""Measure what it is worth that Muon moves matrices of one size together.

    OMP_NUM_THREADS=1 python -m benchmarks.muon [--record]

The optimizer (`asr.train.optimizer`) takes steps with the matrices of low-rank networks and of a
dense one, all of one size at once and each alone, in turn. Times are processor time, the medians of
rounds.
"""

import argparse
from unittest.mock import patch

import torch
from torch import nn

from asr.train import optimizer
from asr.train.optimizer import MuonWithAdam
from benchmarks import record
from benchmarks.avx2 import in_turn
from benchmarks.record import Result, Value

# Rows and columns of matrices, and how many a network has: of commonvoice_zh's recipes and smaller.
NETWORKS = {
    "LRT, d_model 320, r = 124": {(124, 320): 60, (320, 124): 60, (124, 1280): 10, (1280, 124): 10},
    "LRT, d_model 128, r = 32": {(32, 128): 30, (128, 32): 30, (32, 512): 5, (512, 32): 5},
    "dense, d_model 256": {(256, 256): 40, (1024, 256): 10, (256, 1024): 10, (512, 256): 8},
}
_LARGEST = optimizer._TOGETHER


def measure(sizes: dict[tuple[int, int], int]) -> list[Value]:
    """Return the milliseconds of a step, each matrix alone and together, and their ratio."""
    weights = [nn.Parameter(torch.randn(size)) for size, n in sizes.items() for _ in range(n)]
    gradients = [torch.randn_like(weight) for weight in weights]
    muon = MuonWithAdam([{"params": weights, "lr": 1e-3, "momentum": 0.95}], lr=1e-3)

    def step(together: int) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        with patch.object(optimizer, "_TOGETHER", together):
            muon.step()

    return in_turn(lambda: step(1), lambda: step(_LARGEST))


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    record.add_option(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    rows: list[list[Value]] = [[name, *measure(sizes)] for name, sizes in NETWORKS.items()]
    result = Result(
        title="Muon's step: matrices of one size together",
        note="In bfloat16 where the processor computes in it.",
        columns={"": "", "each alone (ms)": ".1f", "together (ms)": ".1f", "times as fast": ".2f"},
        rows=rows,
    )
    record.publish(args, "training-steps", [result])


if __name__ == "__main__":
    main()
