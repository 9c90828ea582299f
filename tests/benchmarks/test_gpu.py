"""The benchmark of GPUs runs as a whole, at tiny sizes on the CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.record import Result

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_dry_run_does_all_parts() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for part in gpu.PARTS:
        assert f"{part}: " in done.stderr
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in done.stdout.splitlines()
        if line.startswith("|")
    ]
    cells = {row[0]: row[1:] for row in rows}
    assert sum(row[-1] == "passed" for row in rows) >= 6
    for variant in gpu.VARIANTS:
        rate, _, _, loss, equal = cells[variant.name]
        assert float(rate) > 0 and 0 < float(loss) < 10 and equal == "yes"
    for batch in gpu.BATCHES:
        assert float(cells[str(batch)][0]) > 0
    assert "transformer" in cells and "lrt, r = 8" in cells


@pytest.mark.parametrize(
    ("loss", "other", "equal"),
    [(2.01, 2.0, True), (2.03, 2.0, False), (2.03, 2.02, True), (2.05, 1.98, False),
     (1.96, 2.02, True), (float("nan"), 2.0, False)],
)  # fmt: skip
def test_a_loss_is_equal_within_noise(loss: float, other: float, equal: bool) -> None:
    assert gpu.equals(loss, 2.0, other) == equal


def test_a_part_that_fails_is_named_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(sizes: gpu.Sizes) -> list[Result]:
        raise RuntimeError("no kernel")

    def work(sizes: gpu.Sizes) -> list[Result]:
        return [Result(title="works", columns={"a": ""}, rows=[["b"]])]

    monkeypatch.setattr(gpu, "PARTS", {"one": fail, "two": work})
    results, failed = gpu.measure(gpu.dry_sizes())
    assert [result.title for result in results] == ["works"] and failed == ["one"]
    assert "CPU" in results[0].note


def test_a_dry_run_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--dry", "--record"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
