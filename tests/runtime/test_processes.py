"""Pools of processes: all are up before any work, and none outlives its pool."""

import multiprocessing
import os
import time
from concurrent.futures.process import BrokenProcessPool

import pytest

from asr.runtime.processes import end_with_parent, process_pool

SPAWN = multiprocessing.get_context("spawn")


def test_all_are_started_before_any_work_and_no_later_one() -> None:
    before = set(multiprocessing.active_children())
    with process_pool(3, SPAWN, os.putenv, "WHOSE", "a pool's") as pool:
        started = set(multiprocessing.active_children()) - before
        assert len(started) == 3
        assert list(pool.map(abs, range(-50, 0))) == list(range(50, 0, -1))
        assert set(pool.map(os.system, ['test "$WHOSE" = "a pool\'s"'] * 8)) == {0}
        assert set(multiprocessing.active_children()) - before == started
    assert set(multiprocessing.active_children()) <= before


def test_the_death_of_one_and_the_end_of_the_work_end_all() -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(BrokenProcessPool), process_pool(2, SPAWN, end_with_parent) as pool:
        pool.submit(os._exit, 1)
        list(pool.map(time.sleep, [900] * 4))
    assert set(multiprocessing.active_children()) <= before
    with pytest.raises(KeyboardInterrupt), process_pool(2, SPAWN, end_with_parent) as pool:
        for _ in range(4):
            pool.submit(time.sleep, 900)
        raise KeyboardInterrupt
    assert set(multiprocessing.active_children()) <= before
