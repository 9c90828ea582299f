"""The benchmark of contention divides by the right share, and its quotas and loops are real."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.contention import Case, Worker, cgroup_of, loops, table

CHOOSE = "from asr.runtime.threads import choose_threads as c; print(c().number, c().reason)"
BURN = "import time\nwhile time.process_time() < 0.2: pass"


def rates(before: float, after: float) -> dict[tuple[str, str], float]:
    works = {"training": 1, "decoding": 10, "service": 100}
    return {
        (work, setting): rate * times
        for work, times in works.items()
        for setting, rate in (("before", before), ("after", after), ("one thread", 1.0))
    }


def test_a_number_is_throughput_over_the_fair_share_of_the_better_idle_setting() -> None:
    made = table(
        [
            Case("idle", 1.0, rates(4.0, 3.0)),
            Case("2 busy loops", 0.5, rates(0.2, 2.0)),
            Case("quota of 0.5 CPUs", 0.25, rates(0.5, 0.75)),
        ]
    )
    expected = [
        [1.0, 1.0, 0.75, 0.25, 0.75], [0.5, 0.1, 1.0, 0.5, 10.0], [0.25, 0.5, 0.75, 1.0, 1.5]
    ]  # fmt: skip
    assert len(made.rows) == 9
    for i, row in enumerate(made.rows):
        assert row[1:] == pytest.approx(expected[i % 3])
    assert "400.0 of service" in made.note


def test_loops_run_and_end() -> None:
    with loops(2):
        found = psutil.Process().children()
        busy = [child for child in found if any("getppid" in a for a in child.cmdline())]
        assert len(busy) == 2
        for child in busy:
            before = sum(child.cpu_times()[:2])
            deadline = time.monotonic() + 30
            while sum(child.cpu_times()[:2]) <= before and time.monotonic() < deadline:
                time.sleep(0.05)
            assert sum(child.cpu_times()[:2]) > before
    assert not any(child.is_running() for child in busy)


def test_a_process_in_a_cgroup_finds_its_quota_and_gets_no_more() -> None:
    code = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    with cgroup_of(0.5) as group:
        if group is None:
            pytest.skip("this user cannot make cgroups here")
        enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
        command = [*enter, sys.executable, "-c"]
        found = subprocess.check_output([*command, CHOOSE], env=code, text=True)
        start = time.monotonic()
        subprocess.run([*command, BURN], env=code, check=True)
        seconds = time.monotonic() - start
    assert found == "1 a quota of 0.5 CPUs, by a cgroup\n"
    assert seconds > 0.3
    assert not group.exists()


def test_where_no_cgroup_can_be_made_nothing_is_left(tmp_path: Path) -> None:
    with cgroup_of(0.5, [tmp_path, tmp_path / "none"]) as group:
        assert group is None
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_worker_works_in_its_own_process() -> None:
    worker = Worker("decoding", "one thread", None)
    try:
        assert worker.wait() == 1
        assert worker.rate(0.05) > 0
    finally:
        worker.close()
