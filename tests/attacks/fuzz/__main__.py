"""Fuzz the parsers: `python -m tests.attacks.fuzz [--seconds N | --count N] [TARGET ...]`.

Each target runs in a process of its own. The inputs of earlier findings (seeds/TARGET/) come first,
then mutations. Errors of the project's own kinds are right. Any other exception, a crash, more than
5 seconds of CPU, 500 MB of memory or an error of many lines is a finding: its input is stored
among the seeds, and the exit code is 1.
"""

import argparse
import faulthandler
import hashlib
import logging
import multiprocessing
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from itertools import chain, islice
from mmap import mmap
from pathlib import Path
from types import FrameType

from tests.attacks.fuzz.mutation import MAX_BYTES, Mutator
from tests.attacks.fuzz.targets import TARGETS

SEEDS = Path(__file__).parent / "seeds"
ROOT = str(Path(__file__).parents[3])
SECONDS, GROWTH, WORDS = 5.0, 500 * 2**20, 5000
_STUCK = 60.0  # seconds without another input: no signal ends it
_HEAD = struct.Struct("<QQd")


class Slow(BaseException):
    """An input took too long; no `except Exception` takes it for the parser's own."""


class Slot:
    """What a child process shares with its parent: the input at work, and how much was done."""

    def __init__(self) -> None:
        self.memory = mmap(-1, _HEAD.size + 64 * MAX_BYTES)

    def put(self, number: int, data: bytes) -> None:
        """Store an input before it is parsed."""
        head = _HEAD.pack(number, len(data), time.process_time())
        self.memory[: len(head) + len(data)] = head + data

    def get(self) -> tuple[int, float, bytes]:
        """Return the last input, its number, and the seconds of CPU until then."""
        number, size, seconds = _HEAD.unpack(self.memory[: _HEAD.size])
        return number, seconds, self.memory[_HEAD.size : _HEAD.size + size]


def fuzz(name: str, seed: int, seconds: float, count: int, replay: bool, slot: Slot) -> None:
    """Run one target until its time or its number of inputs is over; the child's own part."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGPROF, _on_alarm)
    parent = os.getppid()
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        target = TARGETS[name](Path(folder))
        _silence()
        mapped = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**31, mapped + 2**31))
        known = [path.read_bytes() for path in sorted((SEEDS / name).glob("*"))] if replay else []
        fresh = islice(Mutator(target.seeds, target.tokens, random.Random(f"{name} {seed}")), count)
        found, end = set[str](), time.process_time() + seconds
        for number, data in enumerate(chain(known, target.seeds, fresh)):
            slot.put(number, data)
            if reason := _fault(target.run, target.allowed, data):
                if (key := reason.splitlines()[0]) not in found:
                    _store(name, data, reason)
                found.add(key)
            if time.process_time() > end or os.getppid() != parent:
                break
    sys.stdout.flush()
    os._exit(bool(found))


def _silence() -> None:
    """Drop what libraries print, some of them on standard output; findings still get there."""
    faulthandler.disable()
    sys.stdout = os.fdopen(os.dup(1), "w")
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def _fault(run, allowed, data: bytes) -> str:
    """Return what is wrong with the answer to an input; empty if nothing is."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        run(data)
    except allowed as error:
        if len(text := str(error)) > WORDS:
            return f"an error of {type(error).__name__} is too long\n{text[:300]}"
    except (Exception, Slow) as error:
        stack = traceback.extract_tb(error.__traceback__)
        own = [f for f in stack if f.filename.startswith(ROOT) and "/.venv/" not in f.filename]
        where = " < ".join(f"{f.filename.removeprefix(ROOT)}:{f.lineno}" for f in own[:-4:-1])
        kind = type(error).__name__
        return f"{kind} at {where}\n{''.join(traceback.format_exception(error))[-1500:]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return f"more than {GROWTH >> 20} MB of memory" if grown > GROWTH else ""


def _on_alarm(_signal: int, _frame: FrameType | None) -> None:
    raise Slow


def _store(name: str, data: bytes, reason: str) -> None:
    path = SEEDS / name / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    print(f"{name}: {path}: {reason}", flush=True)


def supervise(name: str, seed: int, seconds: float, count: int) -> tuple[int, float, bool]:
    """Run one target to its end, again after a crash; return its inputs, CPU time and health."""
    n_inputs, used, sound = 0, 0.0, True
    for attempt in range(10):
        slot = Slot()
        arguments = (name, seed + 1000 * attempt, seconds - used, count, attempt == 0, slot)
        child = multiprocessing.get_context("fork").Process(target=fuzz, args=arguments)
        child.start()
        before = None
        while child.join(_STUCK) or child.is_alive():
            if slot.get()[0] == before:
                os.kill(child.pid, signal.SIGKILL)
            before = slot.get()[0]
        number, cpu, data = slot.get()
        n_inputs, used, sound = n_inputs + number + 1, used + cpu, sound and not child.exitcode
        if child.exitcode in (0, 1):
            break
        _store(name, data, f"ends the process ({child.exitcode}: the signal, if negative)")
    return n_inputs, used, sound


def main() -> None:
    """Fuzz all targets, or some, and print what was done."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=1e9, help="CPU time, for each target")
    parser.add_argument("--count", type=int, help="mutations of each target, in place of a time")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    if arguments.seconds == 1e9 and arguments.count is None:
        parser.error("give --seconds or --count")
    print(f"seed {arguments.seed}", flush=True)
    count = sys.maxsize if arguments.count is None else arguments.count
    total, seconds, all_sound = 0, 0.0, True
    for name in arguments.targets or TARGETS:
        n_inputs, cpu, sound = supervise(name, arguments.seed, arguments.seconds, count)
        print(f"{name}: {n_inputs} inputs in {cpu:.1f} s of CPU", flush=True)
        total, seconds, all_sound = total + n_inputs, seconds + cpu, all_sound and sound
    print(f"in all: {total} inputs in {seconds:.1f} s of CPU", flush=True)
    sys.exit(not all_sound)


if __name__ == "__main__":
    main()
