"""Pools of processes: each death is told, none is waited for without an end, none stays behind."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor

import pytest

from asr.runtime.processes import end_with_parent, process_pool

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


def test_tasks_are_done_in_order_by_all_processes_and_their_errors_are_raised() -> None:
    with process_pool(3, SPAWN, os.putenv, "WHOSE", "a pool's") as pool:
        assert list(pool.map(abs, range(-50, 0))) == list(range(50, 0, -1))
        assert set(pool.map(os.system, ['test "$WHOSE" = "a pool\'s"'] * 8)) == {0}
        with pytest.raises(ZeroDivisionError) as caught:
            pool.submit(eval, "1 / 0").result()
        assert 'File "<string>", line 1' in "".join(caught.value.__notes__)
        asked = ["__import__('time').sleep(1) or __import__('os').getpid()"] * 3
        assert len(set(pool.map(eval, asked)) - {os.getpid()}) == 3


def test_a_death_is_told_wherever_it_comes() -> None:
    with pytest.raises(BrokenExecutor), process_pool(2, SPAWN, end_with_parent) as pool:
        pool.submit(os._exit, 1)
        list(pool.map(time.sleep, [0.1] * 40))
    with pytest.raises(BrokenExecutor), process_pool(2, SPAWN, os._exit, 1) as pool:
        list(pool.map(abs, [1, 2]))
    for seconds in (0, 0.02, 0.05, 0.1):
        with process_pool(1, SPAWN, end_with_parent) as pool:
            task = pool.submit(eval, DIES_WITHIN_A_RESULT.format(seconds))
            with pytest.raises(BrokenExecutor):
                task.result()
                time.sleep(seconds)
                pool.submit(abs, 1).result()


@pytest.mark.parametrize("task", ["__import__('time').sleep(900)", LARGE])
def test_processes_end_with_the_work_that_is_left(task: str) -> None:
    for seconds in (0, 0.05, 0.3):
        with pytest.raises(KeyboardInterrupt), process_pool(2, SPAWN, end_with_parent) as pool:
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
    with pytest.raises(BlockingIOError), process_pool(4, SPAWN, end_with_parent):
        pass
