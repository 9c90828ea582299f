"""How many threads a process computes with, chosen once, before torch is loaded.

Libraries take a thread for each core of the machine. Where a process may use fewer, or others need
the cores too, its threads wait for one another most of the time; waiting by spinning, as OpenMP
does unless told otherwise, then takes the very time that the others need.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_NUMBER, _WAITING = "OMP_NUM_THREADS", "OMP_WAIT_POLICY"


@dataclass(frozen=True)
class Threads:
    """A number of threads, and why."""

    number: int
    reason: str

    def __str__(self) -> str:
        """Return a sentence."""
        return f"{self.number} threads to compute with: {self.reason}"


def choose_threads(asked: int | None = None, root: Path = Path("/")) -> Threads:
    """Choose as many threads as CPUs that this process may use, at least one.

    `asked` comes first, then the environment, then affinity and the quotas of cgroups, of which
    `root` holds the files.
    """
    if asked is not None:
        return Threads(asked, "--threads")
    if given := os.environ.get(_NUMBER):
        first = given.partition(",")[0]
        return Threads(int(first) if first.isdecimal() else 1, f"{_NUMBER} is set")
    return usable_cpus(root)


def usable_cpus(root: Path = Path("/")) -> Threads:
    """Return as many as the CPUs that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = min(_quotas(root), default=float("inf"))
    if quota < (cores or 1):
        return Threads(max(1, int(quota)), f"a quota of {quota:g} CPUs (cgroup)")
    return Threads(cores or 1, "the cores of this process")


def set_threads(threads: Threads) -> None:
    """Let the libraries that this process and its children load have as many, waiting asleep."""
    os.environ[_NUMBER] = str(threads.number)
    os.environ.setdefault(_WAITING, "PASSIVE")


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quotas in CPUs of this process's cgroups and of those around them."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from filter(None, map(_quota, _around(root / "sys/fs/cgroup", path)))
        elif "cpu" in controllers.split(","):
            for name in (controllers, "cpu"):
                yield from filter(
                    None, map(_old_quota, _around(root / "sys/fs/cgroup" / name, path))
                )


def _around(folder: Path, path: str) -> list[Path]:
    """Return the folders of a cgroup and of all that it is in; a container sees its own as `/`."""
    names = PurePosixPath(path).parts[1:]
    return [folder.joinpath(*names[:n]) for n in range(len(names), -1, -1)]


def _quota(folder: Path) -> float | None:
    """Return the quota that version 2 has in cpu.max: microseconds of a period, or max."""
    try:
        quota, period = (folder / "cpu.max").read_text("utf-8").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _old_quota(folder: Path) -> float | None:
    """Return the quota of version 1, -1 without one."""
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text("utf-8"))
        period = int((folder / "cpu.cfs_period_us").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
