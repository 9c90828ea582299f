"""Time and memory of every attention by length.

    python benchmarks/attention.py [--lengths 512 1024 …] [--only linear performer …]

A self-attention unit (dense projections, d_model 256, 4 heads, a batch of 1), forward in evaluation
and a training step (dropout 0.1, forward and backward). What `full` is depends: torch's fused
kernel in evaluation, a matrix of T × T in training, since torch drops no weights in its kernel on a
CPU; `full, matrix` is the thesis's, with a matrix in both. Where Linformer overtakes the LRT
(thesis fig. 3.5) `asr bench efficiency` shows.

Each cell is a process of its own with one thread. Seconds are the processor's, the least of its
runs, so that other work on the machine counts little; memory is the rise of the peak of resident
memory over what weights and input take. An exponent is the slope of a line through the logarithms.
"""

import argparse
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asr.model.attention import Kernel
from asr.model.dropout import dropout
from asr.model.layers import MultiHeadAttention
from asr.model.projection import DenseConfig
from asr.model.transformer import EncoderConfig, ModelConfig
from asr.runtime.memory import keep_buffers

LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
MOST = 4096  # longer, matrices of T × T need more memory than we take
SECONDS = 0.4  # of runs for a cell, at least
LINEAR = ["linformer", "conv_linformer", "linear", "performer", "sliding_window"]
MODES = ["forward", "training"]
Make = Callable[[int], nn.Module]


class Matrix(Kernel):
    """Full attention as its equation has it."""

    def forward(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor | None = None
    ) -> Tensor:
        """(B, H, T, K)."""
        assert mask_BS is None or mask_BS.all()
        weights = (q_BHTK @ k_BHSK.transpose(2, 3) * q_BHTK.shape[-1] ** -0.5).softmax(-1)
        return dropout(weights, 0.1 if self.training else 0.0) @ v_BHSK


def attention(kind: str, numbers: dict[str, Any], T: int) -> EncoderConfig:
    """The kind with k = 128 landmarks, features or neighbours, whatever the length."""
    numbers = {key: value(T) if callable(value) else value for key, value in numbers.items()}
    return EncoderConfig.model_validate({"attention": {"kind": kind, **numbers}})


def unit(kind: str, numbers: dict[str, Any]) -> Make:
    """A self-attention unit."""

    def make(T: int) -> nn.Module:
        config = ModelConfig(d_model=256, n_heads=4, projection=DenseConfig())
        return config.self_attention(attention(kind, numbers, T).attention)

    return make


def matrix_unit(T: int) -> nn.Module:
    """A self-attention unit that forms its matrix."""
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
    """The peak of this process's resident memory since the last `forget_peak`, in MiB."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def forget_peak() -> None:
    """Let the peak be what is resident now."""
    Path("/proc/self/clear_refs").write_text("5", "utf-8")


def runner(model: nn.Module, mode: str) -> Callable[[Tensor], None]:
    """A run over an input (1, T, D)."""
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


def cell(make: Make, T: int, mode: str, answer: Any) -> None:
    """Send seconds and MiB."""
    torch.set_num_threads(1)
    keep_buffers()  # as training does
    torch.manual_seed(0)
    model = make(T)
    run = runner(model, mode)
    d_model = next(p for p in model.modules() if isinstance(p, nn.LayerNorm)).normalized_shape[0]
    x = torch.randn(1, T, d_model)
    run(x[:, :64])  # what the libraries keep is no part of it
    forget_peak()
    before = peak()
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < SECONDS and len(seconds) < 20):
        start = time.process_time()
        run(x)
        seconds.append(time.process_time() - start)
        if len(seconds) == 1:
            rise = peak() - before
    answer.send((min(seconds), rise))


def measure(make: Make, T: int, mode: str) -> tuple[float, float]:
    """Seconds and MiB of a cell, in a process of its own."""
    # A fork of a process that has imported torch and computed nothing is a fresh one, sooner.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=cell, args=(make, T, mode, theirs))
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        found = (math.nan, math.nan)
    process.join()
    return found


def exponent(lengths: list[int], values: list[float]) -> float:
    """The slope of log value over log length."""
    pairs = [(t, v) for t, v in zip(lengths, values, strict=True) if v > 0]
    if len(pairs) < 2:
        return math.nan
    log_T, log_values = np.log(np.array(pairs)).T
    return float(np.polyfit(log_T, log_values, 1)[0])


def table(title: str, lengths: list[int], rows: dict[str, list[float]], digits: int) -> None:
    """Values by length, with exponents."""
    print(f"\n| {title} | " + " | ".join(map(str, lengths)) + " | exponent |")
    print("|---|" + "---|" * (len(lengths) + 1))
    for name, values in rows.items():
        cells = ["—" if math.isnan(v) else f"{v:.{digits}f}" for v in values]
        print(f"| {name} | " + " | ".join(cells) + f" | {exponent(lengths, values):.2f} |")


def by_length(
    subjects: dict[str, Make], lengths: list[int]
) -> dict[str, tuple[dict[str, list[float]], dict[str, list[float]]]]:
    """Milliseconds and MiB by subject and length, for each mode; printed as they come."""
    found = {}
    for mode in MODES:
        times: dict[str, list[float]] = {}
        memory: dict[str, list[float]] = {}
        for name, make in subjects.items():
            forms = name == "full, matrix" or (mode == "training" and name == "full")
            cells = [
                (math.nan, math.nan) if forms and MOST < T else measure(make, T, mode)
                for T in lengths
            ]
            times[name] = [1000 * seconds for seconds, _ in cells]
            memory[name] = [mib for _, mib in cells]
        table(f"{mode}, ms", lengths, times, 1)
        table(f"{mode}, MiB", lengths, memory, 1)
        found[mode] = times, memory
    return found


def kinds(lengths: list[int], only: list[str]) -> None:
    """Every kind, and what it saves."""
    subjects = {name: make for name, make in UNITS.items() if name in only or not only}
    found = by_length(subjects, lengths)
    at = lengths.index(4096) if 4096 in lengths else -1
    print(f"\nat {lengths[at]}: times as fast as full (full, matrix) and share of its memory")
    for mode, (times, memory) in found.items():
        for name in (n for n in LINEAR if n in subjects):
            said = [
                f"{times[f][at] / times[name][at]:.1f} x, {memory[name][at] / memory[f][at]:.0%}"
                for f in ("full", "full, matrix") if f in subjects
            ]  # fmt: skip
            slopes = [exponent(lengths, values[name]) for values in (times, memory)]
            verdict = "linear" if max(slopes) <= 1.15 else "above 1.15"
            print(f"{mode}, {name}: {'; '.join(said)}; exponents of time and memory"
                  f" {slopes[0]:.2f}, {slopes[1]:.2f}: {verdict}")  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--only", nargs="+", default=[], choices=list(UNITS))
    args = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, one thread,"
          f" torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    kinds(args.lengths, args.only)


if __name__ == "__main__":
    main()
