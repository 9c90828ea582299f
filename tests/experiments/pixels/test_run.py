"""The script: its table, and a second run that continues."""

import json
import sys
from pathlib import Path

import pytest

from asr.errors import ConfigError
from experiments.pixels import images
from experiments.pixels import run as script


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_it_prints_the_table_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train, test = images.load_digits()
    monkeypatch.setattr(images, "load_digits", lambda: (train[:64], test[:50]))

    def run(*options: str) -> list[str]:
        command = ["run.py", "--out", str(tmp_path), "--epochs", "2", *options]
        monkeypatch.setattr(sys, "argv", command)
        script.main()
        return capsys.readouterr().out.splitlines()

    lines = run("--seeds", "1")
    assert [cells(line)[0] for line in lines[2:]] == ["transformer", "lrt", "linformer"]
    path = tmp_path / "results.json"
    found = json.loads(path.read_text())
    assert all(0 <= row[key] <= 100 for row in found["rows"] for key in ("train", "test"))
    parameters = [row["parameters"] for row in found["rows"]]
    # 4 layers: 6 factorized projections for LRT; E and F of 16 × 65 for Linformer.
    dense, low_rank = 4 * 64 * 64 + 2 * 64 * 256, 4 * 16 * 128 + 2 * 16 * 320
    assert parameters[0] - parameters[1] == 4 * (dense - low_rank)
    assert parameters[2] - parameters[0] == 4 * 2 * 16 * 65
    found["rows"][0]["test"] = 12.5
    del found["rows"][2]
    path.write_text(json.dumps(found))
    again = run("--seeds", "1")
    assert cells(again[2])[3] == "12.50" and len(json.loads(path.read_text())["rows"]) == 3
    with pytest.raises(ConfigError, match="has other settings"):
        run("--epochs", "3")
