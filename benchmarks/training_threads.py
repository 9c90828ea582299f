"""Measure training by numbers of threads, with and without a process that reads ahead, in turn.

    python -m benchmarks.training_threads RECIPE WORK [--set KEY=VALUE] [--rounds N] [--record]

Each run trains two epochs of the recipe in a new folder of WORK. The time is that of the second
epoch, by the clock: validation is included, the first reading of recordings is not. The numbers are
worthless if other programs use the cores.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from asr.runtime.threads import usable_cpus
from benchmarks import record
from benchmarks.record import Result, Value

_EPOCH = re.compile(r"epoch (\d+)/\d+  train loss")


def settings(most: int) -> dict[str, tuple[list[str], list[str]]]:
    """Return, by the name of a run, the options before the verb and those after it."""
    alone = ["--set", "data.num_workers=0"]
    return {
        "one thread, which reads too": (["--threads", "1"], alone),
        f"{most} threads, of which one reads too": (["--threads", str(most)], alone),
        "one thread, a process reads": (["--threads", "1"], []),
        "nothing set": ([], []),
    }


def seconds(recipe: Path, out: Path, before: list[str], after: list[str]) -> float:
    """Train in a process of its own; return the seconds of the second epoch."""
    command = [sys.executable, "-m", "asr", *before, "train", str(recipe), "--out", str(out)]
    command += ["--set", "training.epochs=2", *after]
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    ends = {}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if found := _EPOCH.search(line):
                ends[int(found[1])] = time.perf_counter()
    if run.returncode:
        raise SystemExit(f"{' '.join(command)}: ended with {run.returncode}")
    shutil.rmtree(out)
    return ends[2] - ends[1]


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=1)
    record.add_option(parser)
    args = parser.parse_args()
    common = [option for value in args.set for option in ("--set", value)]
    runs = settings(usable_cpus())
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.rounds):
        for i, (name, (before, after)) in enumerate(runs.items()):
            out = args.work / f"threads-{i}"
            spent[name].append(seconds(args.recipe, out, before, common + after))
            print(name, [round(one, 1) for one in spent[name]], flush=True)
    first = median(next(iter(spent.values())))
    rows: list[list[Value]] = [
        [name, median(found), first / median(found)] for name, found in spent.items()
    ]
    result = Result(
        title="Training by threads, and a process that reads ahead",
        note=f"The second epoch by the clock, medians of {args.rounds} rounds.",
        columns={"": "", "seconds": ".1f", "times as fast": ".2f"},
        rows=rows,
    )
    record.publish(args, "training-steps", [result])


if __name__ == "__main__":
    main()
