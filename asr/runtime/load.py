"""How many threads to compute with while other programs use the processors too.

The threads of a computation wait for one another. Where another program uses one of their cores,
all of them wait for the thread that shares it: on two cores, beside one busy loop, two threads were
four times as slow as one. A process that follows the load takes as many threads as there are free
processors. The first look is at the start, so the time that libraries take to load is measured.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from asr.runtime.threads import NUMBER, affinity

_PAUSE = 0.5  # seconds between two looks
_TRIES = 4  # steps with a number of threads before another is tried
_BUSY = (1, 2, 3, 6, 7, 8)  # user, nice, system, irq, softirq, steal: fields of /proc/stat


class Load:
    """How much other programs use the processors on which this process may run (Linux)."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._file, self._names = root / "proc/stat", {f"cpu{n}" for n in affinity()}
        self._seconds = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.0
        self._time, self._used = time.monotonic(), self._used_by_others()
        self._free = float(len(self._names))

    def free(self) -> float:
        """Return how many processors others leave free, on average since the look before."""
        now = time.monotonic()
        passed = now - self._time
        if passed >= _PAUSE:
            used = self._used_by_others()
            others = max(0.0, (used - self._used) / passed)
            self._free = max(0.0, len(self._names) - others)
            self._time, self._used = now, used
        return self._free

    def _used_by_others(self) -> float:
        """Return the processor seconds of others since some time; 0 where nothing tells them."""
        try:
            lines = self._file.read_text("ascii").splitlines()
            found = [line.split() for line in lines]
            ours = [fields for fields in found if fields and fields[0] in self._names]
            ticks = sum(int(fields[i]) for fields in ours for i in _BUSY)
        except (OSError, ValueError, IndexError):
            return 0.0
        return ticks * self._seconds - time.process_time()


class _Follower(threading.local):
    """Hold the number that was set in this thread: OpenMP has one for each that computes."""

    number = 0


_load: Load | None = None
_most = 0
_follower = _Follower()


def follow_load() -> None:
    """Let `adapt` change the number of threads in this process, if no number is set for it."""
    global _load, _most
    _load, _most = None if NUMBER in os.environ else Load(), 0


def number_of_threads(free: float, most: int) -> int:
    """Return the number of free processors, rounded, from 1 to the most."""
    return max(1, min(most, math.floor(free + 0.5)))


def adapt(limit: int | None = None) -> int:
    """Let this thread compute with as many threads as processors are free, but `limit` at most.

    Returns their number. Where the load is not followed, as in a program that imports this package,
    it does nothing and returns 0.
    """
    global _most  # noqa: PLW0603
    if _load is None:
        return 0
    import torch

    _most = _most or torch.get_num_threads()
    number = number_of_threads(_load.free(), min(_most, limit or _most))
    if number != _follower.number:
        torch.set_num_threads(number)
        _follower.number = number
    return number


class FastestThreads:
    """Finds with how many threads the steps of a training take the least time.

    Threads wait for one another after every operation, longer than they compute where matrices are
    small. Some steps have as many threads as processors are free, the next ones half as many, and
    so on while that is faster. Where no smaller number was faster, a larger one is tried when more
    processors become free.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.limit: int | None = None  # None: as many as processors are free
        self._clock = clock
        self._seconds: dict[int, list[float]] = {}  # of a step of size 1, by the number of threads

    @contextmanager
    def step(self, size: int) -> Iterator[None]:
        """Compute a step with the number to try, or the best; a step of size 0 is not timed.

        Steps of twice the size take about twice the time.
        """
        number, begin = adapt(self.limit), self._clock()
        yield
        times = self._seconds.setdefault(number, [])
        if number and size and len(times) < _TRIES:
            times.append((self._clock() - begin) / size)
            if len(times) == _TRIES:
                self.limit = self._next()

    def _next(self) -> int | None:
        """Return the number to try next, or the best one; None where that is the largest tried."""
        least = {n: min(times) for n, times in self._seconds.items() if len(times) == _TRIES}
        most = number = max(least)
        while number > 1:
            if number // 2 not in least:
                return number // 2
            if least[number // 2] >= least[number]:
                break
            number //= 2
        best = min(least, key=lambda n: (least[n], -n))
        return None if best == most else best
