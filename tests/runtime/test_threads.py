"""Threads follow what a process may use."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from asr.runtime.threads import choose_threads, set_threads, thread_variables, usable_cpus
from serve.engine.client import _environment
from tests.helpers import run_cli

ROOT = Path(__file__).parents[2]

VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS",
    "OMP_WAIT_POLICY", "GOMP_SPINCOUNT",
)  # fmt: skip
CORES = 12


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", plain_environment())
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(CORES)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: CORES)


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(text))
    return root


def new(quota: str, group: str = "") -> dict[str, str]:
    return {f"sys/fs/cgroup/{group}cpu.max": quota}


def old(quota: str, group: str, period: str = "100000\n") -> dict[str, str]:
    folder = f"sys/fs/cgroup/{group}"
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period}


@pytest.mark.parametrize(
    ("cgroup", "files", "number"),
    [
        ("0::/\n", new("150000 100000\n"), 2),
        ("0::/\n", new("140000 100000\n"), 1),
        ("0::/\n", new("50000 100000\n"), 1),
        ("0::/\n", new("1000 100000\n"), 1),
        ("0::/\n", new("200000 50000\n"), 4),
        ("0::/\n", new("max 100000\n"), CORES),
        ("0::/\n", new("9900000 100000\n"), CORES),
        # The smallest of a group and those around it, at any depth.
        ("0::/a/b\n", new("max 1", "a/b/") | new("400000 100000", "a/") | new("8 1"), 4),
        ("0::/a/b\n", new("3 1", "a/b/") | new("4 1", "a/") | new("8 1"), 3),
        ("0::/a/b\n", new("5 1", "a/b/") | new("4 1", "a/") | new("2 1"), 2),
        # Version 1, alone and beside version 2; the smaller one counts.
        ("4:memory:/x\n3:cpu,cpuacct:/pod\n0::/\n", old("300000\n", "cpu,cpuacct/pod"), 3),
        ("3:cpuacct,cpu:/pod\n", old("250000\n", "cpu/pod"), 3),
        ("1:cpu:/a/b\n", old("500000", "cpu/a/b") | old("200000", "cpu/a"), 2),
        ("1:cpu:/\n0::/\n", old("500000", "cpu") | new("4 1"), 4),
        ("1:cpu:/\n", old("-1\n", "cpu"), CORES),
        # A container may see its own group as the root, whatever name it reads.
        ("1:cpu:/docker/0123\n", old("200000", "cpu"), 2),
        ("0::/../other\n", new("2 1"), 2),
        ("0::/a:b\n", new("2 1", "a:b/"), 2),
        ("0::/a\udcff\n", new("2 1", "a\udcff/"), 2),
        *(
            ("0::/\n", new(text), CORES)
            for text in ("", "damaged", "1", "1 2 3", "0 100000", "5 0", "-5 100000", "5 x", "5 \0",
                         "\udcff 1", "1.5 1")
        ),
        ("1:cpu:/\n", old("100000", "cpu", ""), CORES),
        ("", {}, CORES),
        ("damaged\n\n:\n0:\n\udcff\n", {}, CORES),
    ],
)  # fmt: skip
def test_a_quota_limits_the_threads_and_the_jobs(
    tmp_path: Path, cgroup: str, files: dict[str, str], number: int
) -> None:
    root = machine(tmp_path, cgroup, files)
    chosen = choose_threads(root=root)
    assert chosen.number == usable_cpus(root) == number
    needed = thread_variables(chosen)
    if number == CORES:  # the libraries find it themselves, and it follows the load
        assert not needed
    else:
        assert "quota" in str(chosen)
        numbers = {name: value for name, value in needed.items() if name.endswith("NUM_THREADS")}
        assert len(numbers) == 4 and set(numbers.values()) == {str(number)}


def test_hyper_threads_of_a_core_count_once_but_jobs_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list":
        f"{cpu % 6},{cpu % 6 + 6}\n"
        for cpu in range(CORES)
    }  # fmt: skip
    root = machine(tmp_path, "0::/\n", pairs)
    chosen = choose_threads(root=root)
    assert (chosen.number, chosen.given, usable_cpus(root)) == (6, (), CORES)
    machine(tmp_path, "0::/\n", new("800000 100000"))
    assert (choose_threads(root=root).number, usable_cpus(root)) == (6, 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 6, 1})
    assert (choose_threads(root=root).number, usable_cpus(root)) == (2, 3)
    assert thread_variables(choose_threads(root=root))["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    ("value", "number"),
    [("3", 3), (" 4", 4), ("4,2", 4), ("4 , 2", 4), ("07", 7), *(
        (wrong, CORES) for wrong in ("0", "", " ", "-2", "two", ",3", "1.5", "\u00b2", "\u0664")
    )],
)  # fmt: skip
def test_the_environment_comes_before_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, number: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert choose_threads(root=tmp_path).number == number
    assert choose_threads(5, tmp_path).number == 5
    limited = choose_threads(root=machine(tmp_path, "0::/\n", new("2 1")))
    assert limited.number == (2 if number == CORES else number)
    assert thread_variables(limited)["OMP_NUM_THREADS"] == str(limited.number)


def test_what_is_asked_for_bounds_every_pool_and_a_way_of_waiting_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKL_NUM_THREADS", "8")
    root = machine(tmp_path, "0::/\n", new("2 1"))
    assert "MKL_NUM_THREADS" not in thread_variables(choose_threads(root=root))
    assert thread_variables(choose_threads(3, root))["MKL_NUM_THREADS"] == "3"
    for name, value in (("OMP_WAIT_POLICY", "ACTIVE"), ("GOMP_SPINCOUNT", "100")):
        monkeypatch.setenv(name, value)
        set_threads(choose_threads(3, root))
        assert os.environ["OPENBLAS_NUM_THREADS"] == "3"
        assert os.environ.get("OMP_WAIT_POLICY") == ("ACTIVE" if "WAIT" in name else None)
        assert os.environ.get("GOMP_SPINCOUNT") == ("100" if "SPIN" in name else None)
        monkeypatch.delenv(name)


def test_the_engine_of_the_service_gets_the_variables_however_it_was_started() -> None:
    found = _environment()
    assert found.get("OMP_NUM_THREADS", str(CORES)) == str(choose_threads().number)
    os.environ["OMP_NUM_THREADS"] = "3"
    found = _environment()
    assert (found["OMP_WAIT_POLICY"], found["GOMP_SPINCOUNT"]) == ("PASSIVE", "10000")
    assert found["OMP_NUM_THREADS"] == "3"


def plain_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in VARIABLES}


def test_the_affinity_of_a_real_process_counts() -> None:
    code = "from asr.runtime.threads import choose_threads; print(choose_threads().number)"
    listed = Path("/proc/self/status").read_text().split("Cpus_allowed_list:")[1].split()[0]
    one = re.split("[,-]", listed)[0]
    found = subprocess.run(
        ["taskset", "-c", one, sys.executable, "-c", code],
        env=plain_environment(), cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == "1"


_SCRIPT = """
import os, sys
from asr.runtime import threads
found = []
threads.set_threads, change = lambda t: (
    found.extend(m for m in ("torch", "numpy", "scipy", "numba", "sklearn") if m in sys.modules),
    change(t),
), threads.set_threads
from asr.cli import main
sys.argv = ["asr", "--debug", *sys.argv[1:]]
try:
    main()
except Exception:
    import torch
    print(found, torch.get_num_threads(), os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.costly
def test_the_number_is_chosen_before_any_library_is_loaded_and_torch_has_as_many() -> None:
    command = [sys.executable, "-c", _SCRIPT, "--threads", "2", "info", "none"]
    found = subprocess.run(
        command, env={**plain_environment(), "MKL_NUM_THREADS": "1"}, cwd=ROOT,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "threads to compute with: 2 (--threads)" in found.stderr
    assert found.stdout.split() == ["[]", "2", "PASSIVE"]
    assert run_cli("--threads", "0", "info", "none").returncode == 2
