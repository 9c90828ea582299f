"""Measure where a sparse product is faster than a dense one.

    OMP_NUM_THREADS=1 python -m benchmarks.sparse [--record]

A number is the dense product's processor time divided by the sparse one's (CSR), each the best of
rounds that take turns. Above 1 the sparse product is faster. Rows are steps or hypotheses at once.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from asr.model.inference.sparse import SparseLinear
from benchmarks import record
from benchmarks.record import Result, Value

SIZES = [(192, 192), (768, 192), (512, 512), (2048, 512), (512, 2048)]
DENSITIES = [0.02, 0.05, 0.1, 0.2]
ROWS = [8, 64, 512]
ROUNDS = 7


def seconds(run: Callable[[], Tensor]) -> float:
    """Return the seconds of a product, from the fewest repetitions that take 3 ms."""
    repetitions, start = 0, time.process_time()
    while (spent := time.process_time() - start) < 3e-3:
        run()
        repetitions += 1
    return spent / repetitions


@torch.inference_mode()
def ratios(outputs: int, inputs: int, density: float) -> list[float]:
    """Return the dense product's time divided by the sparse one's, for each number of rows."""
    dense = nn.Linear(inputs, outputs)
    dense.weight *= torch.rand(outputs, inputs) < density
    sparse = SparseLinear(dense.weight, dense.bias)
    found = []
    for rows in ROWS:
        x = torch.randn(rows, inputs)
        dense(x), sparse(x)
        turns = [[seconds(partial(linear, x)) for linear in (dense, sparse)] for _ in range(ROUNDS)]
        found.append(min(turn[0] for turn in turns) / min(turn[1] for turn in turns))
    return found


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    record.add_option(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    table: list[list[Value]] = []
    for outputs, inputs in SIZES:
        for density in DENSITIES:
            table.append([f"{outputs} × {inputs}", density, *ratios(outputs, inputs, density)])
            record.progress(f"{table[-1]}")
    columns = {"outputs × inputs": "", "density": "g", **{f"{rows} rows": ".2f" for rows in ROWS}}
    note = "Times as fast as the dense product."
    result = Result(title="Speed of CSR products", note=note, columns=columns, rows=table)
    record.publish(args, "sparse-products", [result])


if __name__ == "__main__":
    main()
