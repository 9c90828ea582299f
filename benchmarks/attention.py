"""Measure time and memory of every attention by length.

    python -m benchmarks.attention [--lengths 512 1024 …] [--only linear performer …] [--record]

A self-attention unit (dense projections, d_model 256, 4 heads, a batch of 1), forward in evaluation
and a training step (dropout 0.1, forward and backward). `full` is torch's fused kernel in
evaluation, and a matrix of T × T in training: torch's kernel on a CPU has no dropout of weights.
`full, matrix` is the thesis's attention, with a matrix in both. `asr bench efficiency` shows at
which length Linformer overtakes the LRT (thesis fig. 3.5).

Each case is a process of its own with one thread. Seconds are processor time, the least of all
runs, so that other work on the machine counts little. Memory is the rise of the peak of resident
memory above what weights and input take. An exponent is the slope of a line through the logarithms.
"""

import argparse
import math
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asr.model.attention import Kernel
from asr.model.dropout import dropout
from asr.model.encoder import EncoderConfig
from asr.model.layers import MultiHeadAttention, self_attention
from asr.model.projection import DenseConfig
from asr.model.transformer import ModelConfig
from asr.runtime.memory import keep_buffers
from benchmarks import record
from benchmarks.record import Result, Value

LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
MOST = 4096  # longer, matrices of T × T need more memory than we take
SECONDS = 0.4  # of runs for a case, at least
LINEAR = ["linformer", "conv_linformer", "linear", "performer", "sliding_window"]
MODES = ["forward", "training"]
Make = Callable[[int], nn.Module]
Series = dict[str, list[float]]


class Matrix(Kernel):
    """Full attention as its equation has it."""

    def forward(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor | None = None
    ) -> Tensor:
        """Return the attended values (B, H, T, K)."""
        assert mask_BS is None or mask_BS.all()
        weights = (q_BHTK @ k_BHSK.transpose(2, 3) * q_BHTK.shape[-1] ** -0.5).softmax(-1)
        return dropout(weights, 0.1 if self.training else 0.0) @ v_BHSK


def attention(kind: str, numbers: dict[str, Any], T: int) -> EncoderConfig:
    """Configure the kind with k = 128 landmarks, features or neighbors, at any length."""
    numbers = {key: value(T) if callable(value) else value for key, value in numbers.items()}
    return EncoderConfig.model_validate({"attention": {"kind": kind, **numbers}})


def unit(kind: str, numbers: dict[str, Any]) -> Make:
    """Return a function that makes a self-attention unit for a length."""

    def make(T: int) -> nn.Module:
        config = ModelConfig(d_model=256, n_heads=4, projection=DenseConfig())
        return self_attention(config, attention(kind, numbers, T).attention)

    return make


def matrix_unit(T: int) -> nn.Module:
    """Make a self-attention unit that forms its matrix."""
    made = unit("full", {})(T)
    assert isinstance(made, MultiHeadAttention)
    made.kernel = Matrix()
    return made


UNITS: dict[str, Make] = {
    "full": unit("full", {}),
    "full, matrix": matrix_unit,
    "linformer": unit("linformer", {"rank": 128, "length": lambda T: T}),
    "conv_linformer": unit("conv_linformer", {"stride": lambda T: max(1, T // 128)}),
    "conv_linformer, stride 16": unit("conv_linformer", {"stride": 16}),
    "linear": unit("linear", {}),
    "performer": unit("performer", {"features": 128}),
    "sliding_window": unit("sliding_window", {"window": 64}),
    "lsh": unit("lsh", {"chunk": 64, "buckets": 32}),
    "nystrom": unit("nystrom", {"landmarks": 64}),
    "s4d": unit("s4d", {"states": 16}),
}


def peak() -> float:
    """Return the peak of this process's resident memory since the last `forget_peak`, in MiB."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def forget_peak() -> None:
    """Reset the peak to the memory that is resident now."""
    Path("/proc/self/clear_refs").write_text("5", "utf-8")


def runner(model: nn.Module, mode: str) -> Callable[[Tensor], None]:
    """Return a run over an input (1, T, D)."""
    model.train(mode == "training")

    def run(x_1TD: Tensor) -> None:
        keep = torch.ones(x_1TD.shape[:2], dtype=torch.bool)
        if mode == "training":
            model(x_1TD, keep).sum().backward()
            model.zero_grad()
        else:
            with torch.no_grad():
                model(x_1TD, keep)

    return run


def run_case(make: Make, T: int, mode: str, connection: Any) -> None:
    """Measure one case and send its seconds and MiB."""
    torch.set_num_threads(1)
    keep_buffers()  # as training does
    torch.manual_seed(0)
    model = make(T)
    run = runner(model, mode)
    d_model = next(p for p in model.modules() if isinstance(p, nn.LayerNorm)).normalized_shape[0]
    x = torch.randn(1, T, d_model)
    run(x[:, :64])  # warm up: what the libraries keep is not counted
    forget_peak()
    before = peak()
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < SECONDS and len(seconds) < 20):
        start = time.process_time()
        run(x)
        seconds.append(time.process_time() - start)
        if len(seconds) == 1:
            rise = peak() - before
    connection.send((min(seconds), rise))


def measure(make: Make, T: int, mode: str) -> tuple[float, float]:
    """Return seconds and MiB of a case, measured in a process of its own."""
    # A fork of a process that has only imported torch is like a new process, and starts sooner.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_case, args=(make, T, mode, theirs))
    process.start()
    theirs.close()
    try:
        found: tuple[float, float] = ours.recv()
    except EOFError:
        found = (math.nan, math.nan)
    process.join()
    return found


def exponent(lengths: list[int], values: list[float]) -> float:
    """Return the slope of log value over log length."""
    pairs = [(t, v) for t, v in zip(lengths, values, strict=True) if v > 0]
    if len(pairs) < 2:
        return math.nan
    log_T, log_values = np.log(np.array(pairs)).T
    return float(np.polyfit(log_T, log_values, 1)[0])


def by_length(subjects: dict[str, Make], lengths: list[int], mode: str) -> tuple[Series, Series]:
    """Return milliseconds and MiB by subject and length."""
    times: Series = {}
    memory: Series = {}
    for name, make in subjects.items():
        forms = name == "full, matrix" or (mode == "training" and name == "full")
        cases = [
            (math.nan, math.nan) if forms and MOST < T else measure(make, T, mode) for T in lengths
        ]
        times[name] = [1000 * seconds for seconds, _ in cases]
        memory[name] = [mib for _, mib in cases]
        record.progress(f"{mode}, {name}: {', '.join(f'{ms:.1f}' for ms in times[name])} ms")
    return times, memory


def table(title: str, lengths: list[int], rows: dict[str, list[float]]) -> Result:
    """Return values by length, with exponents."""
    columns = {"kind": "", **{str(T): ".1f" for T in lengths}, "exponent": ".2f"}
    lines: list[list[Value]] = [
        [name, *(None if math.isnan(v) else v for v in [*values, exponent(lengths, values)])]
        for name, values in rows.items()
    ]
    return Result(title=title, columns=columns, rows=lines)


def savings(mode: str, lengths: list[int], times: Series, memory: Series) -> Result:
    """Return how the linear kinds compare with full attention at 4096 steps, or at the longest."""
    at = lengths.index(4096) if 4096 in lengths else -1
    full = [name for name in ("full", "full, matrix") if name in times]
    columns = {"kind": ""}
    for name in full:
        columns |= {f"times as fast as {name}": ".1f", f"share of the memory of {name}": ".0%"}
    columns |= {"exponent of time": ".2f", "exponent of memory": ".2f"}
    rows: list[list[Value]] = []
    for kind in (name for name in LINEAR if name in times):
        row: list[Value] = [kind]
        for name in full:
            row += [times[name][at] / times[kind][at], memory[kind][at] / memory[name][at]]
        rows.append([*row, exponent(lengths, times[kind]), exponent(lengths, memory[kind])])
    return Result(
        title=f"At {lengths[at]} steps, {mode}", columns=columns, rows=rows,
        note="The aim is an exponent of at most 1.15.",
    )  # fmt: skip


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--only", nargs="+", default=[], choices=list(UNITS))
    record.add_option(parser)
    args = parser.parse_args()
    subjects = {name: make for name, make in UNITS.items() if name in args.only or not args.only}
    results = []
    for mode in MODES:
        times, memory = by_length(subjects, args.lengths, mode)
        results.append(table(f"{mode.capitalize()}, ms", args.lengths, times))
        results.append(table(f"{mode.capitalize()}, MiB", args.lengths, memory))
        results.append(savings(mode, args.lengths, times, memory))
    record.publish(args, "attention", results)


if __name__ == "__main__":
    main()
