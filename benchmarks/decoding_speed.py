"""Measure utterances per second of beam search, ours and other engines', in turn in one run.

    python -m benchmarks.decoding_speed [--quick] [--batches 1 8 32] [--rounds 5] [--before FOLDER]

Random weights of the papers' shapes, vocabulary 4364, 4.5 s of audio, 112 encoder positions, beam
8, exactly 24 tokens, on a CPU. Whole recognizers begin with the waveform, of one utterance. Other
engines: `pip install transformers ctranslate2 sherpa-onnx`; those that are not installed are left
out. sherpa-onnx has the encoder and the CTC head of the LRT, and decodes greedily. FOLDER is a
checkout of aa6b0bc, whose decoders are `before` (`benchmarks.first_joint`).

A setting is the number of workers that share a batch, and the threads of each. Workers are
processes for our engine and `generate` (as with `asr transcribe --jobs`), and CTranslate2's own
workers. Subjects take turns of as many batches as hold 16 utterances. Only one works at a time; the
threads of the last one are asleep when the next begins. A number is the median of the turns in the
best setting of its row.
"""

import argparse
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch

from benchmarks import record
from benchmarks.engines import (
    VOCAB,
    Run,
    ctranslate2_translate,
    sherpa_onnx_ctc,
    transformers_generate,
)
from benchmarks.record import Result, Value

OURS = ["dense", "lrt", "lrt_int8"]
WHOLE = [f"{name} whole" for name in OURS]
SURE = ["lrt sure stepwise", "lrt sure", "lrt_int8 sure", "lrt_int8 whole sure",
        "lrt_int8 whole small", "lrt whole small sure", "lrt_int8 whole small sure",
        "lrt whole greedy", "lrt whole small greedy", "lrt_int8 whole small greedy"]  # fmt: skip
FRONTEND = "front end"
# The four 3×3 convolutions, an utterance: frames × bins × (channels in × out), two pairs.
FRONTEND_GFLOP = 2 * 9 * (450 * 161 * (64 + 64 * 64) + 225 * 80 * (64 * 128 + 128**2)) / 1e9
YARDSTICKS = {"transformers": "transformers", "ctranslate2": "ctranslate2",
              "ctranslate2_int8": "ctranslate2", "sherpa": "sherpa_onnx",
              "sherpa small": "sherpa_onnx"}  # fmt: skip
BEFORE = ["before lrt", "before lrt_int8", "before lrt sure"]
MATRIX = 2048
_TURN = 16  # utterances: one by itself would pay for caches that others filled
_REST = 0.3  # OpenMP's threads wait actively for 0.2 s
PAIRS = [
    ("lrt", "dense"), ("dense", "transformers"), ("dense", "ctranslate2"),
    ("lrt", "transformers"), ("lrt", "ctranslate2"), ("lrt_int8", "ctranslate2_int8"),
    ("lrt sure", "lrt sure stepwise"), ("lrt sure", "ctranslate2_int8"),
    ("lrt_int8 sure", "ctranslate2_int8"),
    ("lrt sure", "before lrt sure"), ("lrt", "before lrt"), ("lrt_int8", "before lrt_int8"),
    ("lrt whole greedy", "sherpa"), ("lrt whole small greedy", "sherpa small"),
]  # fmt: skip
Best = dict[int, tuple[float, str]]  # by batch: utterances a second, the setting


def frontend() -> Run:
    """Return a run of the front end, from spectrograms to the encoder's frames."""
    from asr.model.inference.frontend import in_tiles
    from asr.model.projection import LowRankConfig
    from asr.model.transformer import ModelConfig

    torch.manual_seed(0)
    model = ModelConfig(projection=LowRankConfig(rank=50)).build(161, VOCAB).eval()
    tiled, feats = in_tiles(model.frontend), torch.randn(32, 450, 161)
    return torch.inference_mode()(lambda b: tiled(feats[:b], torch.full((b,), 450)))


def build(subject: str, workers: int, threads: int) -> Run:
    """Return the run that a process measures."""
    name = subject.partition(" ")[0]
    if name.startswith("ctranslate2"):
        return ctranslate2_translate("int8" if "int8" in name else "float32", workers, threads)
    torch.set_num_threads(threads)
    if subject == FRONTEND:
        return frontend()
    if name == "transformers":
        return transformers_generate()
    from benchmarks.our_decoders import Subject as Ours
    from benchmarks.our_decoders import noise

    if name == "sherpa":
        return sherpa_onnx_ctc(noise(), "small" in subject, threads)
    return Ours.named(subject).run()


def serve(subject: str, workers: int, threads: int) -> None:
    """Run batches: each input line has a batch size and how often; print `done` after it."""
    run = build(subject, workers, threads)
    run(workers if subject.startswith("ctranslate2") else 1)
    print("ready", flush=True)
    for line in sys.stdin:
        batch, times = map(int, line.split())
        for _ in range(times):
            run(batch)
        print("done", flush=True)


class Subject:
    """One subject in one setting: a process, or several that share a batch."""

    def __init__(self, name: str, workers: int, threads: int, before: str | None) -> None:
        self.name, self.workers = name, workers
        self.setting = f"{workers} × {threads}"
        n_processes = 1 if name.startswith("ctranslate2") else workers
        module, path = ["-m", "benchmarks.decoding_speed"], {}
        if before and name in BEFORE:
            script = Path(before, "benchmarks/decoding.py")
            if "sure" in name:
                script = Path(__file__).with_name("first_joint.py")
            module, path = [str(script)], {"PYTHONPATH": before}
            name = name.removeprefix("before ")
        command = [sys.executable, *module, "--serve", name, str(workers), str(threads)]
        self.processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(threads), **path},
            )
            for _ in range(n_processes)
        ]  # fmt: skip
        self._wait("ready")

    def seconds(self, batch: int) -> float:
        """Return how long a batch takes now."""
        times = max(1, _TURN // batch)
        time.sleep(_REST)
        start = time.perf_counter()
        for process in self.processes:
            assert process.stdin
            process.stdin.write(f"{batch // len(self.processes)} {times}\n")
            process.stdin.flush()
        self._wait("done")
        return (time.perf_counter() - start) / times

    def _wait(self, word: str) -> None:
        for process in self.processes:
            assert process.stdout
            if process.stdout.readline().strip() != word:
                raise SystemExit(f"{self.name}, {self.setting}: it failed, see above")

    def stop(self) -> None:
        """End the processes."""
        for process in self.processes:
            assert process.stdin
            process.stdin.close()
            process.wait()


def takes(name: str, workers: int, batch: int) -> bool:
    """Tell whether a batch is measured with so many workers; some subjects have one utterance."""
    is_alone = name in (*WHOLE, *SURE, "before lrt sure") or name.startswith("sherpa")
    return batch % workers == 0 and (batch == 1 or not is_alone)


def matrix_rate(threads: int) -> float:
    """Return the GFLOP/s of a float32 product."""
    torch.set_num_threads(threads)
    a = torch.randn(MATRIX, MATRIX)
    start = time.perf_counter()
    a @ a
    return 2 * MATRIX**3 / (time.perf_counter() - start) / 1e9


def take_turns(
    subjects: list[Subject], batches: list[int], rounds: int, threads: int
) -> tuple[dict[tuple[str, int, str], list[float]], float]:
    """Return utterances a second by subject, batch and setting, and the matrix rate."""
    rates: dict[tuple[str, int, str], list[float]] = {}
    matrix = []
    for turn in range(rounds + 1):
        matrix.append(matrix_rate(threads))
        for batch in batches:
            for subject in (s for s in subjects if takes(s.name, s.workers, batch)):
                rate = batch / subject.seconds(batch)
                key = (subject.name, batch, subject.setting)
                if turn:  # the first warms up
                    rates.setdefault(key, []).append(rate)
                record.progress(f"round {turn}, {key}: {rate:.1f} utterances/s")
    return rates, median(matrix)


def measure(
    names: list[str], batches: list[int], rounds: int, threads: int, before: str | None
) -> tuple[dict[str, Best], float]:
    """Return for each subject and batch the rate of its best setting, and the matrix rate."""
    settings = dict.fromkeys([(1, threads), (1, 1), (threads, 1)])
    subjects = [
        Subject(name, *setting, before)
        for name in names
        for setting in settings
        if any(takes(name, setting[0], batch) for batch in batches)
    ]
    rates, matrix = take_turns(subjects, batches, rounds, threads)
    for subject in subjects:
        subject.stop()
    found: dict[str, Best] = {}
    for (name, batch, setting), values in rates.items():
        best = found.setdefault(name, {})
        best[batch] = max(best.get(batch, (0.0, "")), (median(values), setting))
    return found, matrix


def rates_table(found: dict[str, Best], matrix: float, batches: list[int]) -> Result:
    """Return utterances per second and the best setting."""
    rows: list[list[Value]] = [
        [name, *(f"{best[b][0]:.1f} ({best[b][1]})" if b in best else None for b in batches)]
        for name, best in found.items()
    ]
    note = (
        f"Matrix rate {matrix:.0f} GFLOP/s float32. The columns are batch sizes; in brackets the "
        "best setting, processes or workers × threads."
    )
    columns = dict.fromkeys(["engine", *map(str, batches)], "")
    return Result(title="Utterances per second", note=note, columns=columns, rows=rows)


def ratios_table(found: dict[str, Best], matrix: float, batches: list[int]) -> Result:
    """Return the ratios that are the goals."""
    rows: list[list[Value]] = []
    if FRONTEND in found:
        shares = [found[FRONTEND][b][0] * FRONTEND_GFLOP / matrix for b in batches]
        rows.append(["front end / matrix rate", *shares])
    for left, right in PAIRS:
        if left in found and right in found:
            both = [b for b in batches if b in found[left] and b in found[right]]
            ratios = {b: found[left][b][0] / found[right][b][0] for b in both}
            rows.append([f"{left} / {right}", *map(ratios.get, batches)])
    columns = {"ratio": "", **{str(b): ".2f" for b in batches}}
    return Result(title="Ratios", columns=columns, rows=rows)


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", help="these subjects, such as lrt or 'lrt whole'")
    parser.add_argument("--before", metavar="FOLDER", help="a checkout of aa6b0bc")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    record.add_option(parser)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve[0], int(args.serve[1]), int(args.serve[2]))
    names = [*OURS, *WHOLE, *SURE, FRONTEND, *(BEFORE if args.before else [])]
    for name, package in YARDSTICKS.items():
        if find_spec(package):
            names.append(name)
        else:
            record.progress(f"{name}: not installed")
    rounds = 1 if args.quick else args.rounds
    found, matrix = measure(args.only or names, args.batches, rounds, args.threads, args.before)
    tables = [rates_table(found, matrix, args.batches), ratios_table(found, matrix, args.batches)]
    record.publish(args, "decoding-speed", [table for table in tables if table.rows])
    return None


if __name__ == "__main__":
    main()
