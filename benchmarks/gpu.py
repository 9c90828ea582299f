"""Try a GPU, in under ten minutes: tests, training, decoding, the efficiency study.

    python -m benchmarks.gpu [--record]
    python -m benchmarks.gpu --dry    # the same code at tiny sizes on the CPU: no measurement

The model is LRT r = 50 at the papers' size with random weights, the utterances are noise of 4.5 s
with 15 tokens. A part that fails is reported, the others run, and the exit code is 1. Not measured:
CUDA graphs, torch.compile of the decoding step, several GPUs, loading data. No GPU was there while
this was written: it was run with --dry alone.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import torch

from asr.data.dataset import Batch
from asr.efficiency.grid import MODES
from asr.efficiency.tables import Study
from benchmarks import record
from benchmarks.efficiency import by_length, claims
from benchmarks.random_models import beam_search, noise_batch, random_bundle, training_step
from benchmarks.record import Result, Value

ROOT = Path(__file__).parent.parent
RECIPE = "aishell1/lrt_r50"
BATCHES, TOKENS, SEARCHES = (1, 8, 32, 128), 24, 5
_WARM_UP = 3  # steps that are not timed; the first one compiles
_STUDY = "Efficiency study, quick"
_ROUND = 4  # different batches, in turn; the losses of the last round are compared


@dataclass(frozen=True)
class Sizes:
    """The sizes of a measurement; those of a dry run differ."""

    device: torch.device
    changes: tuple[str, ...] = ()
    utterances: int = 64
    seconds: float = 4.5
    tokens: int = 15
    steps: int = 60
    compiler: str = "inductor"
    study: tuple[str, ...] = ("--quick",)
    limit: float = 240.0  # seconds of a part that is a program


@dataclass(frozen=True)
class Variant:
    """One way of training; dropout is drawn by `seed`."""

    name: str
    bfloat16: bool = False
    compiled: bool = False
    seed: int = 0


VARIANTS = [
    Variant("float32"),
    Variant("float32, other dropout", seed=1),
    Variant("bfloat16", bfloat16=True),
    Variant("bfloat16, torch.compile", bfloat16=True, compiled=True),
]


@dataclass(frozen=True)
class Trained:
    """Utterances a second, MiB at most, seconds until the first step ended, the last losses."""

    rate: float
    memory: float | None
    first: float
    loss: float


def dry_sizes() -> Sizes:
    """Return sizes that a CPU takes seconds for; tracing is not followed by compilation."""
    changes = (
        "model.d_model=16", "model.d_inner=32", "model.n_heads=2", "model.projection.rank=4",
        "model.frontend={kind: vgg, channels: [2, 2]}", "model.encoder.n_layers=1",
        "model.decoder.n_layers=1", "tokenizer.vocab_size=20", "decoding.beam_size=2",
    )  # fmt: skip
    study = ("--quick", "--kinds", "lrt", "--lengths", "16", "--ranks", "8", "--runs", "1")
    return Sizes(torch.device("cpu"), changes, 2, 0.5, 3, 6, "eager", study)


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak(device: torch.device) -> float | None:
    """Return the most MiB since the last call; None on a CPU."""
    if device.type == "cpu":
        return None
    found = torch.cuda.max_memory_allocated() / 2**20
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return found


def train(sizes: Sizes, variant: Variant) -> Trained:
    """Train a variant, from the same weights on the same batches as the others."""
    device = sizes.device
    bundle = random_bundle(RECIPE, sizes.changes)
    batches = [
        noise_batch(bundle, sizes.utterances, sizes.seconds, sizes.tokens, seed).to(device)
        for seed in range(_ROUND)
    ]
    peak(device)
    compiler = sizes.compiler if variant.compiled else None
    step = training_step(bundle, device, variant.bfloat16, compiler)
    torch.manual_seed(variant.seed)
    losses, first = [], 0.0
    start = timed = time.perf_counter()
    for i in range(sizes.steps):
        losses.append(step(batches[i % _ROUND]))
        if i in (0, _WARM_UP - 1):
            synchronize(device)
            first = first or time.perf_counter() - start
            timed = time.perf_counter()
    synchronize(device)
    spent = time.perf_counter() - timed
    rate = (sizes.steps - _WARM_UP) * sizes.utterances / spent
    return Trained(rate, peak(device), first, mean(float(loss) for loss in losses[-_ROUND:]))


def equals(loss: float, reference: float, other: float) -> bool:
    """Tell whether a loss differs from float32's by noise: twice what dropout makes, or 1 %."""
    return abs(loss - reference) <= max(2 * abs(other - reference), 0.01 * reference)


def training(sizes: Sizes) -> list[Result]:
    """Return what each way of training takes, and whether its loss is that of float32."""
    found = {variant.name: train(sizes, variant) for variant in VARIANTS}
    reference, other = (found[variant.name].loss for variant in VARIANTS[:2])
    rows: list[list[Value]] = [
        [name, t.rate, t.memory, t.first, t.loss,
         "yes" if equals(t.loss, reference, other) else "no"]
        for name, t in found.items()
    ]  # fmt: skip
    columns = {
        "training": "", "utterances/s": ".1f", "MiB": ".0f", "first step (s)": ".1f",
        "loss": ".4f", "float32's loss": "",
    }  # fmt: skip
    note = (
        f"Batches of {sizes.utterances}; the mean loss of the last {_ROUND} of {sizes.steps} "
        "steps, float32's within twice the difference by other dropout, or 1 %."
    )
    return [Result(title="Training on a GPU", note=note, columns=columns, rows=rows)]


def decoding(sizes: Sizes) -> list[Result]:
    """Return the speed of beam search by batch, from features to texts of so many tokens."""
    device, bundle = sizes.device, random_bundle(RECIPE, sizes.changes)
    n_tokens = min(TOKENS, 8 * sizes.tokens)
    batch = noise_batch(bundle, max(BATCHES), sizes.seconds, sizes.tokens)
    search = beam_search(bundle, device, n_tokens)
    rows: list[list[Value]] = []
    for size in BATCHES:
        part = Batch([], [], *(tensor[:size] for tensor in tensors(batch))).to(device)
        search(part)
        peak(device)
        seconds = []
        for _ in range(SEARCHES):
            synchronize(device)
            start = time.perf_counter()
            texts = search(part)
            synchronize(device)
            seconds.append(time.perf_counter() - start)
        assert [len(text) for text in texts] == [n_tokens] * size
        spent = median(seconds)
        rows.append([size, size / spent, spent / size / sizes.seconds, peak(device)])
    columns = {"batch": "d", "utterances/s": ".1f", "RTF": ".5f", "MiB": ".0f"}
    note = f"Beam {bundle.config.decoding.beam_size}, {n_tokens} tokens, float32, from features."
    return [Result(title="Decoding on a GPU", note=note, columns=columns, rows=rows)]


def tensors(batch: Batch) -> list[torch.Tensor]:
    """Return what a batch holds beside ids and texts, in the order of its fields."""
    return [batch.feats_BTF, batch.frames_B, batch.tokens_BU, batch.lengths_B]


def program(sizes: Sizes, *arguments: str) -> str:
    """Run a module of Python; return what it printed. Raises RuntimeError with the end of it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    if sizes.device.type == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, env=environment, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=sizes.limit,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments[:2])}: {done.stdout[-3000:]}")
    return done.stdout


def tests(sizes: Sizes) -> list[Result]:
    """Run the tests marked gpu. Raises RuntimeError where one fails."""
    printed = program(sizes, "pytest", "-p", "no:cacheprovider", "-m", "gpu", "-vv", "tests/gpu")
    rows: list[list[Value]] = [
        [line.split("::")[1].split(" ")[0].replace("_", " "), "passed"]
        for line in printed.splitlines()
        if " PASSED" in line
    ]
    if not rows:
        raise RuntimeError(f"no test ran: {printed[-3000:]}")
    columns = dict.fromkeys(["test", "result"], "")
    return [Result(title="Tests on a GPU", columns=columns, rows=rows)]


def study(sizes: Sizes) -> list[Result]:
    """Return the main tables of `asr bench efficiency`."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--device", str(sizes.device), "--out", folder, *sizes.study]
        program(sizes, "asr.cli", "bench", "efficiency", *options)
        found = Study.model_validate_json(Path(folder, "efficiency.json").read_text("utf-8"))
    table = claims(found)
    measured = [row for row in table.rows if row[1] != "not measured"]
    results = [table.model_copy(update={"rows": measured})]
    for mode in MODES:
        for unit in ("ms", "MiB"):
            results.append(by_length(found.rows, mode, unit, f"{mode.capitalize()}, {unit}"))
    return [r.model_copy(update={"title": f"{_STUDY}: {r.title}"}) for r in results if r.rows]


PARTS: dict[str, Callable[[Sizes], list[Result]]] = {
    "tests": tests, "training": training, "decoding": decoding, "efficiency study": study,
}  # fmt: skip


def measure(sizes: Sizes) -> tuple[list[Result], list[str]]:
    """Return the tables of all parts that ran, with the GPU's name, and the parts that failed."""
    name = "CPU" if sizes.device.type == "cpu" else torch.cuda.get_device_name()
    results, failed = [], []
    for part, run in PARTS.items():
        start = time.perf_counter()
        try:
            found = run(sizes)
        except Exception:
            traceback.print_exc()
            failed.append(part)
            continue
        seconds = time.perf_counter() - start
        record.progress(f"{part}: {seconds:.0f} s")
        for result in found:
            note = f"{name}; this part took {seconds:.0f} s. {result.note}".strip()
            results.append(result.model_copy(update={"note": note}))
    return results, failed


def main() -> None:
    """Measure, print and record; exit with 1 where a part failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="the same code, tiny, on the CPU")
    record.add_option(parser)
    args = parser.parse_args()
    if args.dry and args.record:
        parser.error("--dry measures nothing: leave out --record")
    if not args.dry and not torch.cuda.is_available():
        sys.exit("no GPU that torch can use: run it on a machine with one, or with --dry")
    results, failed = measure(dry_sizes() if args.dry else Sizes(torch.device("cuda")))
    record.publish(args, "gpu", results)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the errors are above")


if __name__ == "__main__":
    main()
