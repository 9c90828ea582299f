"""Pools of processes: each death is told, none is waited for without an end, none stays behind."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path
from pickle import PicklingError

import pytest

from asr.runtime.processes import process_pool

SPAWN = multiprocessing.get_context("spawn")
# Larger than a pipe holds: a process writes it while it is read.
LARGE = "b'x' * 2**22"
DIES_WITHIN_A_RESULT = f"""(
    __import__("threading").Timer({{}}, __import__("os")._exit, [1]).start(), [{LARGE}] * 40
)[1]"""


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


def test_tasks_are_done_in_order_by_all_processes() -> None:
    with process_pool(3, SPAWN, os.umask) as pool:  # of the processes' numbers
        assert list(pool.map(abs, range(-50, 0))) == list(range(50, 0, -1))
        asked = ["__import__('time').sleep(1) or __import__('os').umask(0)"] * 3
        assert set(pool.map(eval, asked)) == {0, 1, 2}


def test_what_a_task_raises_is_raised_and_its_process_goes_on() -> None:
    with process_pool(1, SPAWN) as pool:
        with pytest.raises(ZeroDivisionError) as caught:
            pool.submit(eval, "1 / 0").result()
        assert 'File "<string>", line 1' in "".join(caught.value.__notes__)
        with pytest.raises(PicklingError):
            pool.submit(eval, "lambda: 0").result()
        with pytest.raises(RuntimeError, match=r"KeyError: <function"):
            pool.submit(eval, "{}[lambda: 0]").result()
        assert pool.submit(abs, -1).result() == 1


def test_a_death_is_told_wherever_it_comes() -> None:
    with process_pool(2, SPAWN) as pool:
        naps = [pool.submit(time.sleep, 0.01) for _ in range(40)]
        with pytest.raises(BrokenExecutor):
            pool.submit(os._exit, 1).result()
        assert all(nap.exception() is None for nap in naps)
    with pytest.raises(BrokenExecutor), process_pool(2, SPAWN, os._exit) as pool:
        list(pool.map(abs, [1, 2]))
    for seconds in (0, 0.02, 0.05, 0.1):
        with pytest.raises(BrokenExecutor), process_pool(1, SPAWN) as pool:
            pool.submit(eval, DIES_WITHIN_A_RESULT.format(seconds)).result()
            while True:
                pool.submit(abs, 1).result()


@pytest.mark.parametrize("task", ["__import__('time').sleep(900)", LARGE])
def test_processes_end_with_the_work_that_is_left(task: str) -> None:
    for seconds in (0, 0.05, 0.3):
        with pytest.raises(KeyboardInterrupt), process_pool(2, SPAWN) as pool:
            pool.map(eval, [task] * 200)
            time.sleep(seconds)
            raise KeyboardInterrupt


def test_processes_that_cannot_be_started_leave_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start, n = SPAWN.Process.start, iter(range(3))

    def limited(process: multiprocessing.Process) -> None:
        if next(n) == 2:
            raise BlockingIOError("no process is left")
        start(process)

    monkeypatch.setattr(SPAWN.Process, "start", limited)
    with pytest.raises(BlockingIOError), process_pool(4, SPAWN):
        pass


def test_a_program_ends_in_the_middle_of_its_work(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        """if __name__ == "__main__":
        import multiprocessing
        from asr.runtime.processes import process_pool
        def work():
            with process_pool(2, multiprocessing.get_context("spawn")) as pool:
                yield from pool.map(abs, [1, 2, 3])
        results = work()
        print(next(results))"""
    )
    command = [sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
