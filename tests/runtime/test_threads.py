"""Threads follow what a process may use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asr.runtime.threads import choose_threads
from tests.helpers import run_cli


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "number"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 12),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "9900000 100000\n"}, 12),
        # The least of a group and those around it.
        (
            "0::/a/b\n",
            {
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
                "sys/fs/cgroup/a/cpu.max": "400000 100000",
                "sys/fs/cgroup/cpu.max": "800000 100000",
            },
            4,
        ),
        (
            "4:memory:/x\n3:cpu,cpuacct:/pod\n0::/\n",
            {
                "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            "3:cpu,cpuacct:/pod\n",  # a container, which sees its own group as the root
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            12,
        ),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "damaged"}, 12),
        ("", {}, 12),
    ],
)
def test_a_quota_limits_the_cores(
    tmp_path: Path, cgroup: str, files: dict[str, str], number: int
) -> None:
    assert choose_threads(root=machine(tmp_path, cgroup, files)).number == number


def test_what_is_asked_for_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert choose_threads(root=tmp_path).number == 3
    assert choose_threads(5, tmp_path).number == 5


def test_the_affinity_of_a_real_process_counts(tmp_path: Path) -> None:
    code = "from asr.runtime.threads import choose_threads; print(choose_threads().number)"
    one = min(os.sched_getaffinity(0))
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    found = subprocess.run(
        ["taskset", "-c", str(one), sys.executable, "-c", code],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == "1"


_SCRIPT = """
import sys
from asr.cli import main
sys.argv = ["asr", "--debug", "--threads", "2", "info", "none"]
try:
    main()
except Exception:
    import torch
    print(torch.get_num_threads())
"""


def test_debug_says_what_was_chosen_and_torch_has_as_many() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", _SCRIPT]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "2 threads to compute with: --threads" in found.stderr
    assert found.stdout.split()[-1] == "2"
    assert run_cli("--threads", "0", "info", "none").returncode == 2
