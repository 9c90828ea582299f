"""How many threads a process computes with, chosen once, before a library that has some is loaded.

Libraries take a thread for each core of the machine. Where a process may use fewer cores, or other
programs need them too, its threads wait for one another most of the time. By default OpenMP waits
by spinning for long, which takes the time that the others need. Sleeping at once costs a small
model a third of its speed on an idle machine. So threads spin for some microseconds, then sleep,
unless their number follows the load.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

NUMBER, _WAITING, _SPINS = "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
# GNU's OpenMP goes by the second, others by the first.
_WAYS = ((_WAITING, "PASSIVE"), (_SPINS, "10000"))
# They bound the thread pools of torch, scikit-learn; MKL in torch; numpy and scipy; numba.
_NUMBERS = (NUMBER, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Threads:
    """A number of threads, and why; `given` are the environment variables to set for it."""

    number: int
    reason: str
    given: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return a sentence."""
        return f"threads to compute with: {self.number} ({self.reason})"


def choose_threads(asked: int | None = None, root: Path = Path("/")) -> Threads:
    """Choose as many threads as processor cores that this process may use, at least one.

    `asked` comes first, then the environment, then the quota of cgroups and the affinity; `root`
    holds the system's files about them. Where nothing limits the number, the libraries choose: a
    thread for each core, and not for each of its hyper-threads.
    """
    if asked is not None:
        return Threads(asked, "--threads", tuple((name, str(asked)) for name in _NUMBERS))
    if number := _from_environment():
        return Threads(number, f"{NUMBER} is set", ((NUMBER, str(number)),))
    cpus = affinity()
    cores, quota = _count_cores(cpus, root), _quota(root)
    if quota < cores:
        return _limited(_rounded(quota), f"a quota of {quota:g} CPUs, by a cgroup")
    if len(cpus) < (os.cpu_count() or 1):
        return _limited(cores, "the processor cores of its affinity")
    return Threads(cores, "one for each processor core that other programs leave free")


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs that this process may use, hyper-threads included."""
    return min(len(affinity()), _rounded(_quota(root)))


def thread_variables(threads: Threads) -> dict[str, str]:
    """Return environment variables for a number of threads that soon sleep while they wait.

    They are for a process that has not loaded the libraries yet. A way of waiting that is set in
    its environment stays. Where `threads` gives no variables, the number of threads follows the
    load (`asr.runtime.load`), and they wait as OpenMP does.
    """
    is_free = not threads.given or {_WAITING, _SPINS} & os.environ.keys()
    return dict((() if is_free else _WAYS) + threads.given)


def set_threads(threads: Threads) -> None:
    """Set the variables of `thread_variables` for this process and its children."""
    os.environ.update(thread_variables(threads))


def _limited(number: int, reason: str) -> Threads:
    """Return a number of threads for the libraries of which the environment says nothing."""
    names = [name for name in _NUMBERS if name == NUMBER or name not in os.environ]
    return Threads(number, reason, tuple((name, str(number)) for name in names))


def _from_environment() -> int:
    """Return OMP_NUM_THREADS as OpenMP reads it, 0 where it is not set or no number from 1."""
    first = os.environ.get(NUMBER, "").partition(",")[0].strip()  # others: of nested regions
    return int(first) if first.isascii() and first.isdecimal() else 0


def affinity() -> set[int]:
    """Return the CPUs on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _count_cores(cpus: set[int], root: Path) -> int:
    """Return how many cores these CPUs belong to; hyper-threads of a core list the same CPUs."""
    cores = set()
    for cpu in cpus:
        path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        cores.add(_read(path).strip() or str(cpu))
    return len(cores)


def _rounded(quota: float) -> int:
    """Return a quota as a whole number of threads, at least one.

    A half is rounded up: two threads that may run for three quarters of the time do more than one.
    """
    return max(1, math.floor(min(quota, 1e6) + 0.5))


def _quota(root: Path) -> float:
    """Return the smallest quota in CPUs of this process's cgroups and of those around them."""
    return min(_quotas(root), default=math.inf)


def _quotas(root: Path) -> Iterator[float]:
    groups = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _around(groups, path, _new_quota)
        elif "cpu" in controllers.split(","):
            for name in {controllers, "cpu"}:
                yield from _around(groups / name, path, _old_quota)


def _around(folder: Path, path: str, read: Callable[[Path], list[str]]) -> Iterator[float]:
    """Yield the quotas of a cgroup and of those around it; a container sees its own as `/`."""
    names = [name for name in PurePosixPath(path).parts[1:] if name != ".."]
    for n in range(len(names) + 1):
        values = read(folder.joinpath(*names[:n]))
        if len(values) == 2 and all(value.isdecimal() for value in values):
            quota, period = map(int, values)  # microseconds of a period
            if quota and period:
                yield quota / period


def _new_quota(folder: Path) -> list[str]:
    """Return quota and period of version 2; the quota may be `max`."""
    return _read(folder / "cpu.max").split()


def _old_quota(folder: Path) -> list[str]:
    """Return quota and period of version 1; the quota may be -1."""
    return [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]


def _read(path: Path) -> str:
    """Return the text of a file of the kernel, "" where it cannot be read; names are any bytes."""
    try:
        return os.fsdecode(path.read_bytes())
    except (OSError, ValueError):
        return ""
