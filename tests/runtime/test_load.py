"""Threads follow what other programs leave of the processors."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.runtime import load
from asr.runtime.load import Load
from asr.runtime.threads import NUMBER

ROOT = Path(__file__).parents[2]
TICK = os.sysconf("SC_CLK_TCK")


class Machine:
    """A clock, the own time, and /proc/stat of four processors, of which three are ours."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.file = root, root / "proc/stat"
        self.now = self.own = 0.0
        self.ticks = [0] * 4
        self.file.parent.mkdir()
        self.write()
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 3}, raising=False)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "process_time", lambda: self.own)

    def write(self) -> None:
        rows = "".join(f"cpu{i} {n} 0 0 99 7 0 0 0 0 0\n" for i, n in enumerate(self.ticks))
        self.file.write_text(f"cpu  1 2 3 4 5 6 7 8 9 10\n{rows}intr 1 2\n")

    def run(self, seconds: float, own: float, used: tuple[float, ...]) -> None:
        """Let time pass, in which processors are used so many seconds each."""
        self.now, self.own = self.now + seconds, self.own + own
        self.ticks = [n + round(u * TICK) for n, u in zip(self.ticks, used, strict=True)]
        self.write()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_what_others_use_of_the_own_processors_is_not_free(machine: Machine) -> None:
    found = Load(machine.root)
    assert found.free() == 3
    machine.run(2.0, own=1.0, used=(1.0, 1.0, 2.0, 1.0))  # processor 2 is not ours
    assert found.free() == pytest.approx(2.0)
    machine.run(0.1, own=0.0, used=(0.1, 0.1, 0.1, 0.1))
    assert found.free() == pytest.approx(2.0), "it looks now and then"
    machine.run(1.9, own=5.9, used=(1.9, 1.9, 1.9, 1.9))
    assert found.free() == pytest.approx(3.0, abs=0.11), "what it uses itself is free"


@pytest.mark.parametrize("text", ["", "cpu0\ncpu1 x\n", "cpu0 -1 2\n", "\0\xff"])
def test_a_machine_that_tells_nothing_is_free(machine: Machine, text: str) -> None:
    machine.file.write_bytes(text.encode("latin-1"))
    found = Load(machine.root)
    machine.now += 1
    assert found.free() == 3
    machine.file.unlink()
    machine.now += 1
    assert found.free() == 3


@given(st.floats(0, 8), st.integers(1, 8))
def test_threads_are_one_to_most(free: float, most: int) -> None:
    number = load.number_of_threads(free, most)
    assert 1 <= number <= most
    assert abs(number - free) <= 0.5 or number in (1, most)


_SCRIPT = """
import sys, time
from asr.runtime.load import adapt, follow_load
import torch
torch.set_num_threads(4)
adapt()
before = torch.get_num_threads()
follow_load()
time.sleep(1.0)
adapt()
print(before, torch.get_num_threads())
"""


@pytest.mark.costly
@pytest.mark.drawn(1)
@pytest.mark.parametrize(("number", "expected"), [("", "4 1"), ("4", "4 4")])
def test_beside_busy_programs_a_real_process_computes_with_one_thread_unless_a_number_is_set(
    number: str, expected: str
) -> None:
    cores = set(sorted(os.sched_getaffinity(0))[:2])
    at_cores = f"import os\nos.sched_setaffinity(0, {cores})\n"
    busy = f"{at_cores}while os.getppid() == {os.getpid()}: pass"
    loops = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(4)]
    try:
        env = {k: v for k, v in os.environ.items() if k != NUMBER}
        found = subprocess.run(
            [sys.executable, "-c", at_cores + _SCRIPT],
            env=env | ({NUMBER: number} if number else {}),
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
    finally:
        for process in loops:
            process.kill()
            process.wait()
    assert found.stdout.strip() == expected


class Steps:
    """Steps that take some seconds by the number of threads, of which as many are free."""

    def __init__(self, seconds: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.free, self.now = seconds, max(seconds), 0.0
        monkeypatch.setattr(load, "adapt", lambda limit=None: min(self.free, limit or self.free))
        self.threads = load.FastestThreads(clock=lambda: self.now)
        self.used: list[int] = []

    def make(self, n: int) -> None:
        for i in range(n):
            size = 1 + i % 3
            with self.threads.step(size):
                number = load.adapt(self.threads.limit)
                self.now += size * self.seconds[number] * (1 + (0.0, 0.5, 0.1, 0.3)[i % 4])
            self.used.append(number)


@given(st.integers(1, 64), st.floats(0, 2), st.floats(0.001, 10))
def test_steps_get_the_number_of_threads_that_is_fastest(
    most: int, waiting: float, computing: float
) -> None:
    seconds = {n: computing / n + waiting * n for n in range(1, most + 1)}
    with pytest.MonkeyPatch.context() as monkeypatch:
        steps = Steps(seconds, monkeypatch)
        steps.make(60)
    tried = sorted({most >> i for i in range(most.bit_length())})
    assert set(steps.used) <= set(tried)
    assert seconds[steps.used[-1]] == min(seconds[n] for n in tried)
    assert len(set(steps.used[30:])) == 1, "nothing is tried for long"


def test_all_processors_that_become_free_are_used_where_more_threads_are_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = Steps({1: 8.0, 2: 4.0, 4: 2.0, 8: 1.0}, monkeypatch)
    steps.free = 4
    steps.make(20)
    steps.free = 8
    steps.make(1)
    assert steps.used[-1] == 8


@pytest.mark.parametrize(
    "free", [[1] * 4 + [4] * 40, [4, 2] * 30, [4, 1, 1, 4, 4, 4, 1] * 12 + [4] * 20]
)
def test_one_thread_is_found_to_be_fastest_while_other_programs_come_and_go(
    monkeypatch: pytest.MonkeyPatch, free: list[int]
) -> None:
    steps = Steps({1: 1.0, 2: 1.5, 4: 3.0}, monkeypatch)
    for steps.free in free:
        steps.make(1)
    assert steps.used[-1] == 1 and steps.threads.limit == 1


def test_a_number_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_load", None)
    threads = load.FastestThreads()
    for _ in range(40):
        with threads.step(1):
            pass
    assert threads.limit is None
