"""Measure what a training step costs, as ratios of steps measured in turn, in one run.

    python -m benchmarks.training [--quick] [--record]

A step is forward, loss, backward, clipping and Adam, of utterances of 4.5 s with 15 tokens, at the
papers' sizes. Each variant is a process of its own, so that variants do not share an allocator. The
processes take turns, and the matrix rate is measured between them.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.flop_counter import FlopCounterMode

from asr.config import load_config
from asr.runtime.memory import keep_buffers
from benchmarks import record
from benchmarks.record import Result, Value
from benchmarks.torch_baseline import PlainModel

RECIPE = Path(__file__).parent.parent / "recipes/aishell1/lrt_r50.yaml"
FRAMES, STEPS, TOKENS, FREQS, VOCAB = 450, 112, 15, 161, 4364
DENSE = "model.projection={kind: dense}"
# A rank at which the whole step is under 0.45 of the VGG's.
VGG_RANK = 16
LOW_RANK_VGG = f"model.frontend={{kind: vgg_low_rank, rank: {VGG_RANK}}}"
# Overrides of the recipe; the same without its front end; the ranks of plain models, None is dense.
OURS = {"transformer_large": [DENSE], "lrt_r50": [], "lrt_r50, vgg_low_rank": [LOW_RANK_VGG]}
BODIES = {"transformer_large, no front end": [DENSE], "lrt_r50, no front end": []}
PLAIN = {"plain transformer_large": None, "plain lrt_r50": 50}
# Variants whose processes are measured in turn, and hold memory at the same time.
GROUPS = [
    ["transformer_large", "plain transformer_large"],
    ["lrt_r50", "plain lrt_r50", "lrt_r50, vgg_low_rank"],
    list(BODIES),
]
MATRIX = 2048


class Steps(nn.Module):
    """Replace the front end by a leaf with as many steps as it makes of the frames."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.x_1SD = nn.Parameter(torch.randn(1, STEPS, d_model))

    def forward(self, feats_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the leaf for each utterance."""
        return self.x_1SD.expand(len(feats_BTF), -1, -1), lengths_B // 4


def build(name: str) -> nn.Module:
    """Return a variant's network."""
    torch.manual_seed(0)
    if name in PLAIN:
        return PlainModel(FREQS, VOCAB, PLAIN[name])
    config = load_config(RECIPE, {**OURS, **BODIES}[name]).model
    model = config.build(FREQS, VOCAB)
    if name in BODIES:
        model.frontend = Steps(config.d_model)  # type: ignore[assignment]
    return model


def training_step(name: str, batch: int) -> Callable[[], float]:
    """Return a function that takes one step and returns its seconds."""
    if name not in PLAIN:
        keep_buffers()
    model = build(name).train()
    adam = torch.optim.Adam(
        model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=name not in PLAIN or None
    )
    feats_BTF, frames_B = torch.randn(batch, FRAMES, FREQS), torch.full((batch,), FRAMES)
    tokens_BU = torch.randint(4, VOCAB, (batch, TOKENS + 1))

    def step() -> float:
        start = time.perf_counter()
        adam.zero_grad()
        out = model(feats_BTF, frames_B, tokens_BU[:, :-1])
        logits_BUV = out if name in PLAIN else out[0]
        targets = tokens_BU[:, 1:].flatten()
        cross_entropy(logits_BUV.flatten(0, 1), targets, label_smoothing=0.1).backward()
        clip_grad_norm_(model.parameters(), 5.0)
        adam.step()
        return time.perf_counter() - start

    return step


def operations(name: str, batch: int) -> float:
    """Count the operations of a step, three times those of the forward pass as is usual."""
    counter, model = FlopCounterMode(display=False), build(name).train()
    tokens_BU = torch.randint(4, VOCAB, (1, TOKENS))
    with counter:
        model(torch.randn(1, FRAMES, FREQS), torch.tensor([FRAMES]), tokens_BU)
    return 3.0 * counter.get_total_flops() * batch


def serve(name: str, batch: int) -> None:
    """Take a step for every input line and print its seconds; this is a measured process."""
    step = training_step(name, batch)
    for _ in sys.stdin:
        print(step(), flush=True)


def matrix_rate() -> float:
    """Return the operations per second of a float32 matrix product."""
    a, b = torch.randn(2, MATRIX, MATRIX)
    start = time.perf_counter()
    a @ b
    return 2 * MATRIX**3 / (time.perf_counter() - start)


def measure(names: list[str], batch: int, rounds: int) -> tuple[dict[str, float], float]:
    """Return median seconds of a step of each, taken in turn, and the median matrix rate."""
    threads = str(torch.get_num_threads())
    running = {}
    for name in names:
        module = [sys.executable, "-m", "benchmarks.training"]
        command = [*module, "--serve", name, "--batch", str(batch)]
        running[name] = subprocess.Popen(
            [*command, "--threads", threads], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, bufsize=1,
        )  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in names}
    rates = []
    try:
        for turn in range(rounds + 2):
            rate = matrix_rate()
            for name, process in running.items():
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                seconds[name].append(float(process.stdout.readline()))
            if turn > 1:  # the first two warm up
                rates.append(rate)
    finally:
        for process in running.values():
            process.terminate()
            process.wait()
    return {name: median(values[2:]) for name, values in seconds.items()}, median(rates)


def steps(batch: int, rounds: int) -> tuple[list[list[Value]], dict[str, float], dict[str, float]]:
    """Return, for a batch size, the table, seconds by variant, and shares of the matrix rate."""
    seconds: dict[str, float] = {}
    shares: dict[str, float] = {}
    rows: list[list[Value]] = []
    for group in GROUPS:
        found, rate = measure(group, batch, rounds)
        seconds |= found
        for name, s in found.items():
            speed = operations(name, batch) / s
            shares[name] = speed / rate
            gflops = f"{speed / 1e9:.0f} of {rate / 1e9:.0f}"
            rows.append([name, s, batch / s, gflops, shares[name]])
            record.progress(f"batch of {batch}: {rows[-1]}")
    return rows, seconds, shares


def ratios(seconds: dict[str, float], shares: dict[str, float]) -> dict[tuple[str, str], float]:
    """Return the ratios that have aims, by name and aim."""
    dense, low = "transformer_large", "lrt_r50"
    found: dict[tuple[str, str], float] = {}
    for name in (dense, low):
        found[f"{name}: of the matrix rate", "≥ 0.60"] = shares[name]
        found[f"{name}: times plain", "≥ 2"] = seconds["plain " + name] / seconds[name]
    body = [seconds[f"{name}, no front end"] for name in (low, dense)]
    found["no front end: lrt_r50 / dense", "≤ 0.55"] = body[0] / body[1]
    vgg = seconds["lrt_r50, vgg_low_rank"] / seconds[low]
    found[f"vgg_low_rank (r = {VGG_RANK}) / vgg, whole step", "≤ 0.45"] = vgg
    return found


def report(batches: tuple[int, ...], rounds: int) -> list[Result]:
    """Measure the batch sizes; return their tables, and the ratios beside their aims."""
    results = []
    found: dict[int, dict[tuple[str, str], float]] = {}
    columns = {
        "step": "", "s": ".2f", "utterances/s": ".1f", "GFLOP/s": "", "of matrix rate": ".0%",
    }  # fmt: skip
    for batch in batches:
        rows, seconds, shares = steps(batch, rounds)
        results.append(Result(title=f"Batches of {batch}", columns=columns, rows=rows))
        found[batch] = ratios(seconds, shares)
    keys = next(iter(found.values()))
    headings = {"ratio": "", **{f"batch of {batch}": ".2f" for batch in found}, "aim": ""}
    lines: list[list[Value]] = [
        [key[0], *(found[batch][key] for batch in found), key[1]] for key in keys
    ]
    return [*results, Result(title="Ratios", columns=headings, rows=lines)]


def main() -> None:
    """Parse, then measure, or be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="batches of 12 alone, fewer rounds")
    parser.add_argument("--threads", type=int, help="of torch; all cores where not given")
    parser.add_argument("--serve", choices=[*OURS, *BODIES, *PLAIN], help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    record.add_option(parser)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.serve:
        serve(args.serve, args.batch)
        return
    batches = (12,) if args.quick else (12, 32)
    record.publish(args, "training-steps", report(batches, 3 if args.quick else 7))


if __name__ == "__main__":
    main()
