"""The gain by number of pre-training steps."""

from pathlib import Path

import pytest

from experiments.genome import steps


def measure(
    folder: Path, unread: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, str]:
    """Return the rows of the table for a small cohort."""
    options = {
        "out": folder, "unread": unread, "simulated-subjects": 60, "simulated-panel": 32,
        "simulated-length": 1000, "tokens": 300, "vocab": 200, "pretraining-epochs": 3,
    }  # fmt: skip
    monkeypatch.setattr("sys.argv", ["steps"] + [f"--{k}={v}" for k, v in options.items()])
    steps.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return dict((name, auc) for name, auc in cells)


@pytest.mark.slow
def test_more_pretraining_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measure(tmp_path, 0, monkeypatch, capsys)
    assert list(found) == [
        "all tokens read", "unread tokens hidden", "completed after 2 steps",
        "completed after 6 steps",
    ]  # fmt: skip
    assert len(set(found.values())) == 1  # nothing is unread, so nothing is completed
    hidden = measure(tmp_path, 80, monkeypatch, capsys)
    assert hidden["all tokens read"] == found["all tokens read"]
    assert len(set(hidden.values())) > 2
    assert len(list(tmp_path.glob("pretrained-*"))) == 2  # 1 epoch (3 // 6, 3 // 2) and 3
