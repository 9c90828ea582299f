"""What a training step costs, as ratios of steps measured in turn, in one run.

    python benchmarks/training.py [--quick]

A step is forward, loss, backward, clipping and Adam, of utterances of 4.5 s with 15 tokens, at the
papers' sizes. Each variant is a process of its own, so that what one asks of its allocator is
nobody else's; the processes take turns, and the matrix rate is measured between them.
"""

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from plain import PlainModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.flop_counter import FlopCounterMode

from asr.config import load_config
from asr.runtime.memory import keep_buffers

RECIPE = Path(__file__).parent.parent / "recipes/aishell1/lrt_r50.yaml"
FRAMES, STEPS, TOKENS, FREQS, VOCAB = 450, 112, 15, 161, 4364
DENSE = "model.projection={kind: dense}"
# A rank at which the whole step is under 0.45 of the VGG's.
VGG_RANK = 16
LOW_RANK_VGG = f"model.frontend={{kind: vgg_low_rank, rank: {VGG_RANK}}}"
# Overrides of the recipe; the same without its front end; plain ones are of a rank or dense.
OURS = {"transformer_large": [DENSE], "lrt_r50": [], "lrt_r50, vgg_low_rank": [LOW_RANK_VGG]}
BODIES = {"transformer_large, no front end": [DENSE], "lrt_r50, no front end": []}
PLAIN = {"plain transformer_large": None, "plain lrt_r50": 50}
# Processes that are measured in turn, and hold memory at the same time.
GROUPS = [
    ["transformer_large", "plain transformer_large"],
    ["lrt_r50", "plain lrt_r50", "lrt_r50, vgg_low_rank"],
    list(BODIES),
]
MATRIX = 2048


class Steps(nn.Module):
    """Stands where the front end stood: a leaf with as many steps as that makes of the frames."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.x_1SD = nn.Parameter(torch.randn(1, STEPS, d_model))

    def forward(self, feats_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Nothing is computed of the frames."""
        return self.x_1SD.expand(len(feats_BTF), -1, -1), lengths_B // 4


def build(name: str) -> nn.Module:
    """A variant's network."""
    torch.manual_seed(0)
    if name in PLAIN:
        return PlainModel(FREQS, VOCAB, PLAIN[name])
    config = load_config(RECIPE, {**OURS, **BODIES}[name]).model
    model = config.build(FREQS, VOCAB)
    if name in BODIES:
        model.frontend = Steps(config.d_model)  # type: ignore[assignment]
    return model


def training_step(name: str, batch: int) -> Callable[[], float]:
    """A function that takes one step, and returns its seconds."""
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
    """Operations of a step as they are usually counted: three times those of the forward pass."""
    counter, model = FlopCounterMode(display=False), build(name).train()
    tokens_BU = torch.randint(4, VOCAB, (1, TOKENS))
    with counter:
        model(torch.randn(1, FRAMES, FREQS), torch.tensor([FRAMES]), tokens_BU)
    return 3.0 * counter.get_total_flops() * batch


def serve(name: str, batch: int) -> None:
    """A measured process: a step for every line that comes in."""
    step = training_step(name, batch)
    for _ in sys.stdin:
        print(step(), flush=True)


def matrix_rate() -> float:
    """Operations per second of a float32 matrix product."""
    a, b = torch.randn(2, MATRIX, MATRIX)
    start = time.perf_counter()
    a @ b
    return 2 * MATRIX**3 / (time.perf_counter() - start)


def measure(names: list[str], batch: int, rounds: int) -> tuple[dict[str, float], float]:
    """Median seconds of a step of each, taken in turn, and the median matrix rate between them."""
    threads = str(torch.get_num_threads())
    running = {}
    for name in names:
        command = [sys.executable, __file__, "--serve", name, "--batch", str(batch)]
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


def machine() -> str:
    """Whose figures these are."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines() if sys.platform == "linux" else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.processor()
    return f"{cpu}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32"


def report(batch: int, rounds: int) -> None:
    """Print the table of a batch size, and its ratios beside what is aimed at."""
    seconds: dict[str, float] = {}
    of_rate: dict[str, float] = {}
    print(f"\n## Batches of {batch}\n\n| step | s | utterances/s | GFLOP/s | of matrix rate |")
    print("|---|---|---|---|---|")
    for group in GROUPS:
        found, rate = measure(group, batch, rounds)
        seconds |= found
        for name, s in found.items():
            speed = operations(name, batch) / s
            of_rate[name] = speed / rate
            row = (name, f"{s:.2f}", f"{batch / s:.1f}", f"{speed / 1e9:.0f} of {rate / 1e9:.0f}")
            print("|", " | ".join(row), f"| {of_rate[name]:.0%} |", flush=True)
    dense, low = "transformer_large", "lrt_r50"
    print("\n| ratio | measured | aim |\n|---|---|---|")
    for name in (dense, low):
        print(f"| {name}: of the matrix rate | {of_rate[name]:.2f} | ≥ 0.60 |")
        print(f"| {name}: times plain | {seconds['plain ' + name] / seconds[name]:.2f} | ≥ 2 |")
    body = [seconds[f"{name}, no front end"] for name in (low, dense)]
    print(f"| no front end: lrt_r50 / dense | {body[0] / body[1]:.2f} | ≤ 0.55 |")
    factorised = seconds["lrt_r50, vgg_low_rank"] / seconds[low]
    print(f"| vgg_low_rank (r = {VGG_RANK}) / vgg | {factorised:.2f} | ≤ 0.45 |", flush=True)


def main() -> None:
    """Parse, then measure, or be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="batches of 12 alone, fewer rounds")
    parser.add_argument("--threads", type=int, help="of torch; all cores where not given")
    parser.add_argument("--serve", choices=[*OURS, *BODIES, *PLAIN], help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.serve:
        serve(arguments.serve, arguments.batch)
        return
    print(machine())
    for batch in (12,) if arguments.quick else (12, 32):
        report(batch, 3 if arguments.quick else 7)


if __name__ == "__main__":
    main()
