"""The script: its table, and a second run that continues."""

import json
import sys
from pathlib import Path
from typing import cast

import pytest

from asr.errors import ConfigError
from experiments.pixels import images
from experiments.pixels import run as script
from experiments.runner import Examples


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_it_prints_the_table_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train, test = images.load_digits()
    monkeypatch.setattr(images, "load_digits", lambda: (train[:64], test[:50]))
    monkeypatch.setattr(script, "RATES", {"digits": [2e-3]})

    def run(*options: str) -> list[str]:
        command = ["run.py", "--out", str(tmp_path), "--epochs", "2", *options]
        monkeypatch.setattr(sys, "argv", command)
        script.main()
        return capsys.readouterr().out.splitlines()

    lines = run("--seeds", "1")
    assert [cells(line)[0] for line in lines[2:]] == ["transformer", "lrt", "linformer"]
    path = tmp_path / "results.json"
    found = json.loads(path.read_text())
    measured = [row for row in found["rows"] if "seed" in row]
    assert len(found["rows"]) == 6
    assert all(0 <= row[key] <= 100 for row in measured for key in ("train", "test"))
    parameters = [row["parameters"] for row in measured]
    # 4 layers: 6 factorized projections for LRT; E and F of 16 × 65 for Linformer.
    dense, low_rank = 4 * 64 * 64 + 2 * 64 * 256, 4 * 16 * 128 + 2 * 16 * 320
    assert parameters[0] - parameters[1] == 4 * (dense - low_rank)
    assert parameters[2] - parameters[0] == 4 * 2 * 16 * 65
    assert all(row["kept"] > 1 and row["seconds"] > 0 for row in measured)
    measured[0]["test"] = 12.5
    found["rows"].remove(measured[2])
    path.write_text(json.dumps(found))
    again = run("--seeds", "1")
    assert cells(again[2])[7] == "12.50"
    assert json.loads(path.read_text())["rows"][-1]["model"] == "linformer"
    with pytest.raises(ConfigError, match="damaged"):
        path.write_text("{")
        run()


def test_settings_are_those_of_the_highest_accuracy_held_out_and_the_fewest_epochs() -> None:
    tried = [
        {"model": "lrt", "lr": 1e-3, "epochs": 12, "held out": 90.0},
        {"model": "lrt", "lr": 2e-3, "epochs": 36, "held out": 95.0},
        {"model": "lrt", "lr": 4e-3, "epochs": 12, "held out": 95.0},
        {"model": "transformer", "lr": 8e-3, "epochs": 48, "held out": 99.0},
    ]
    assert script.found_settings(tried, "lrt") == {"lr": 4e-3, "epochs": 12}


def test_what_is_held_out_is_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = images.load_digits()
    study = script.Study(train[:100], test[:5], script.SIZES["digits"])
    seen = dict[str, Examples]()

    def fit(*args: object) -> None:
        seen["trained on"] = cast(Examples, args[-1])

    def accuracy(model: object, examples: Examples) -> float:
        seen["held out"] = examples
        return 50.0

    monkeypatch.setattr(script.Study, "fit", fit)
    monkeypatch.setattr(script, "accuracy", accuracy)
    assert study.hold_out("lrt", 1e-3, 1) == {"held out": 50.0}
    some, others = ({id(pixels) for pixels, _ in part} for part in seen.values())
    assert (len(some), len(others)) == (80, 20) and not some & others
