"""Measure training, decoding and the service where a process gets only a part of the CPUs.

    python -m benchmarks.contention [--seconds 4] [--rounds 3] [--quick] [--record]

The model is the demo's, with random weights. The script counts training steps, beam searches, and
answers of the service to four clients, in a second. Cases: nothing else runs; 1, 2 and 4 busy loops
run beside it; a cgroup has a quota. In each case the settings take turns: `before` is torch without
any variable (a thread for each core, which spins while it waits); `after` is what `asr` chooses
(asr.runtime.threads) and changes with the load (asr.runtime.load); `one thread` is
`asr --threads 1`.

A number is the throughput over what the fair share of the CPUs allows: 1.00 is the throughput of
the best setting with the CPUs idle, times the share. It may be above 1: a second thread gains less
than the first. Of C CPUs, a program with C threads beside k loops gets C / (C + k). The machine
must do nothing else. Linux only; quotas need the right to make cgroups.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from asr.runtime.load import adapt, follow_load
from asr.runtime.threads import choose_threads, set_threads
from benchmarks import record
from benchmarks.record import Result, Value

if TYPE_CHECKING:
    from asr.bundle import Bundle

WORK = ["training", "decoding", "service"]
SETTINGS = ["before", "after", "one thread"]
LOOPS, QUOTAS = [1, 2, 4], [0.5, 1.0, 1.5]
SECONDS, UTTERANCES, TOKENS = 1.5, 16, 6  # of a batch for training; decoding takes one of them
CLIENTS = 4
_PERIOD = 100_000  # µs
_BUSY = "import os\nwhile os.getppid() == {}:\n for _ in range(10**6): pass"
Rates = dict[tuple[str, str], float]  # times in a second, by work and setting


def run(work: str, setting: str) -> None:
    """Work for the seconds in each input line; print how often it was done in a second."""
    if setting != "before":  # and before torch is imported
        set_threads(choose_threads(1 if setting == "one thread" else None))
    import torch

    if setting == "after":
        follow_load()
    n_threads = torch.get_num_threads()
    if setting == "before":  # for the service, which would choose: what OpenMP does by itself
        os.environ.update(OMP_NUM_THREADS=str(n_threads), GOMP_SPINCOUNT="300000")
    with ExitStack() as stack:
        once = prepare(work, stack)
        once()
        print(f"ready {n_threads}", flush=True)
        for line in sys.stdin:
            n, start, seconds = 0, time.perf_counter(), float(line)
            while (spent := time.perf_counter() - start) < seconds:
                adapt()
                n += once()
            print(n / spent, flush=True)


def prepare(work: str, stack: ExitStack) -> Callable[[], int]:
    """Return a function that works once and returns how much it did."""
    import torch

    from asr.runtime.memory import keep_buffers
    from benchmarks.random_models import beam_search, noise_batch, random_bundle, training_step

    device, bundle = torch.device("cpu"), random_bundle("demo/lrt")
    if work == "service":
        return service(bundle, stack)
    batch = noise_batch(bundle, UTTERANCES if work == "training" else 1, SECONDS, TOKENS)
    if work == "training":
        keep_buffers()
        step = training_step(bundle, device)
        return lambda: len([step(batch)])
    search = beam_search(bundle, device, TOKENS)
    return lambda: len(search(batch))


def service(bundle: "Bundle", stack: ExitStack) -> Callable[[], int]:
    """Start `asr serve`; return a function that lets each client send a recording."""
    import httpx
    import numpy as np
    import soundfile as sf

    from benchmarks.serving import URL, serving

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    bundle.save(folder / "bundle", "random weights")
    wave = np.random.default_rng(0).normal(0, 0.1, round(SECONDS * 16000))
    sf.write(folder / "a.wav", wave, 16000)
    content = (folder / "a.wav").read_bytes()
    address, _ = stack.enter_context(serving(folder / "bundle", 80.0))
    client = stack.enter_context(httpx.Client(base_url=address, timeout=300, trust_env=False))
    pool = stack.enter_context(ThreadPoolExecutor(CLIENTS))

    def ask(_: int) -> None:
        files = {"file": ("a.wav", content)}
        client.post(URL, files=files, data={"model": "m"}).raise_for_status()

    return lambda: len(list(pool.map(ask, range(CLIENTS))))


class Worker:
    """One kind of work in one setting, in a process of its own, perhaps in a cgroup."""

    def __init__(self, work: str, setting: str, cgroup: Path | None) -> None:
        self.key = (work, setting)
        command = [sys.executable, "-m", "benchmarks.contention", "--run", work, setting]
        if cgroup:
            enter = 'echo $$ > "$0" && exec "$@"'
            command = ["sh", "-c", enter, str(cgroup / "cgroup.procs"), *command]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "MKL_"))}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=kept,
        )  # fmt: skip

    def wait(self) -> int:
        """Wait until it can work; return its number of threads."""
        return int(self._answer().split()[1])

    def rate(self, seconds: float) -> float:
        """Return how often it works in a second, now."""
        assert self._process.stdin
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"{' '.join(self.key)}: the process failed, see above")
        return line

    def close(self) -> None:
        """End the process, and the service that it may have started."""
        self._process.communicate()


@contextmanager
def workers(cgroup: Path | None = None) -> Iterator[list[Worker]]:
    """Yield a worker for each kind of work and setting; they sleep until they are asked."""
    with ExitStack() as stack:
        found = []
        for work in WORK:
            for setting in SETTINGS:
                found.append(Worker(work, setting, cgroup))
                stack.callback(found[-1].close)
                found[-1].wait()
        yield found


@contextmanager
def loops(n: int) -> Iterator[None]:
    """Keep n processes busy, which end with this one."""
    command = [sys.executable, "-c", _BUSY.format(os.getpid())]
    running = [subprocess.Popen(command) for _ in range(n)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def cgroup_of(quota: float, places: list[Path] | None = None) -> Iterator[Path | None]:
    """Yield a cgroup, of version 1 or 2, with a quota in CPUs; None where none can be made."""
    made = (_make_cgroup(place, quota) for place in (_places() if places is None else places))
    folder = next(filter(None, made), None)
    try:
        yield folder
    finally:
        if folder:
            _remove(folder)


def _make_cgroup(place: Path, quota: float) -> Path | None:
    folder, share = place / f"asr-contention-{os.getpid()}", round(quota * _PERIOD)
    values = {"cpu.max": f"{share} {_PERIOD}", "cpu.cfs_quota_us": f"{share}"}
    try:
        folder.mkdir()
        (file,) = (folder / name for name in values if (folder / name).exists())
        file.write_text(values[file.name])
    except (OSError, ValueError):  # not allowed, or no folder of cgroups for CPUs
        _remove(folder)
        return None
    return folder


def _places() -> list[Path]:
    """Return where a cgroup may be made: beside and within one's own, and at the top."""
    lines = Path("/proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    top = Path("/sys/fs/cgroup")
    own = [top / line[4:] for line in lines if line.startswith("0::/")]
    return [*(group.parent for group in own if group != top), *own, top / "cpu", top]


def _remove(folder: Path) -> None:
    """Remove a cgroup, in which ended processes stay for a moment."""
    for _ in range(50):
        with suppress(OSError):
            folder.rmdir()
        if not folder.exists():
            return
        time.sleep(0.1)


def turns(running: list[Worker], seconds: float, rounds: int) -> Rates:
    """Return the median rate of each worker; they work one at a time."""
    rates: dict[tuple[str, str], list[float]] = {worker.key: [] for worker in running}
    for _ in range(rounds):
        for worker in running:
            rates[worker.key].append(worker.rate(seconds))
    return {key: median(values) for key, values in rates.items()}


@dataclass
class Case:
    """What was measured in one case; `share` is the fair share of the idle machine's CPUs."""

    name: str
    share: float
    rates: Rates


def measure(n_loops: list[int], quotas: list[float], seconds: float, rounds: int) -> list[Case]:
    """Measure all cases, the idle machine first; say where there are no cgroups."""
    n_cpus, cases = len(os.sched_getaffinity(0)), []
    with workers() as running:
        for n in [0, *n_loops]:
            with loops(n):
                rates = turns(running, seconds, rounds)
            cases.append(Case(f"{n} busy loops" if n else "idle", n_cpus / (n_cpus + n), rates))
            record.progress(f"{cases[-1]}")
    for quota in quotas:
        with cgroup_of(quota) as group:
            if group is None:
                record.progress("quotas are left out: this user cannot make cgroups here")
                break
            with workers(group) as running:
                rates = turns(running, seconds, rounds)
        cases.append(Case(f"quota of {quota:g} CPUs", min(1.0, quota / n_cpus), rates))
        record.progress(f"{cases[-1]}")
    return cases


def table(cases: list[Case]) -> Result:
    """Return throughput over the fair share by case and setting; the first case is idle."""
    idle = cases[0].rates
    rows: list[list[Value]] = []
    for work in WORK:
        best = max(idle[work, setting] for setting in SETTINGS)
        for case in cases:
            rates = [case.rates[work, setting] for setting in SETTINGS]
            shares = [rate / best / case.share for rate in rates]
            rows.append([f"{work}, {case.name}", case.share, *shares, rates[1] / rates[0]])
    columns = {
        "case": "", "fair share": ".2f", **dict.fromkeys(SETTINGS, ".2f"), "after / before": ".2f",
    }  # fmt: skip
    bests = ", ".join(f"{max(idle[work, s] for s in SETTINGS):.1f} of {work}" for work in WORK)
    note = (
        "Throughput over the fair share of the CPUs; 1.00 is the best setting on the idle machine "
        f"times the share. The best, a second: {bests}."
    )
    return Result(title="Throughput under load", note=note, columns=columns, rows=rows)


def main() -> None:
    """Measure, print and record, or be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two cases, one round of 0.3 s")
    parser.add_argument("--run", nargs=2, metavar=("WORK", "SETTING"), help=argparse.SUPPRESS)
    record.add_option(parser)
    args = parser.parse_args()
    if args.run:
        run(*args.run)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # remove the cgroup
    if args.quick:
        cases = measure(LOOPS[:1], QUOTAS[-1:], 0.3, 1)
    else:
        cases = measure(LOOPS, QUOTAS, args.seconds, args.rounds)
    record.publish(args, "contention", [table(cases)])


if __name__ == "__main__":
    main()
