"""Where a sparse product is faster than a dense one: speeds of a SetSparse's two settled forms.

    OMP_NUM_THREADS=1 python benchmarks/sparse.py

A cell is the dense product's processor time by the sparse one's (CSR), each the best of rounds that
take turns: above 1 the sparse product is faster. Rows are steps or hypotheses at once.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from asr.model.inference.sparse import SparseLinear

SIZES = [(192, 192), (768, 192), (512, 512), (2048, 512), (512, 2048)]
DENSITIES = [0.02, 0.05, 0.1, 0.2]
ROWS = [8, 64, 512]
ROUNDS = 7


def seconds(run: Callable[[], Tensor]) -> float:
    """One round: the fewest repetitions that take 3 ms."""
    repetitions, start = 0, time.process_time()
    while (spent := time.process_time() - start) < 3e-3:
        run()
        repetitions += 1
    return spent / repetitions


@torch.inference_mode()
def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    print("| outputs x inputs | density |", " | ".join(f"{rows} rows" for rows in ROWS), "|")
    print("|" + "---|" * (2 + len(ROWS)))
    for outputs, inputs in SIZES:
        for density in DENSITIES:
            dense = nn.Linear(inputs, outputs)
            dense.weight *= torch.rand(outputs, inputs) < density
            sparse = SparseLinear(dense.weight, dense.bias)
            cells = []
            for rows in ROWS:
                x = torch.randn(rows, inputs)
                dense(x), sparse(x)
                turns = [
                    [seconds(partial(linear, x)) for linear in (dense, sparse)]
                    for _ in range(ROUNDS)
                ]
                best = [min(turn[i] for turn in turns) for i in range(2)]
                cells.append(f"{best[0] / best[1]:.2f}")
            print(f"| {outputs} x {inputs} | {density:g} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
