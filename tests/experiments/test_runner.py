"""recipes/experiment.py: results that last, and the last word."""

import json
from pathlib import Path

import pytest

from asr.errors import ConfigError, DataError
from experiments import runner as experiment


def test_settings_are_written_with_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "out" / "results.json"
    experiment.Results(path, {"seed": "mistyped"})
    assert not list(path.parent.iterdir())
    results = experiment.Results(path, {"seed": "1"})
    results.add({"model": "a", "AUC": 50})
    again = experiment.Results(path, {"seed": "1"})
    assert {"model": "a"} in again and {"model": "b"} not in again
    assert json.loads(path.read_text()) == {"settings": {"seed": "1"}, "rows": again.rows}
    with pytest.raises(ConfigError, match="is of other settings"):
        experiment.Results(path, {"seed": "2"})


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", "[]", "null", '{"settings": {}}', '{"settings": {}, "rows": [1]}', "\udcff"],
)
def test_damaged_results_are_named_and_stay(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text, errors="surrogateescape")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"results.json: no results that can be read: give"):
        experiment.Results(path, {})
    assert path.read_bytes() == before


def test_an_out_that_cannot_be_written_is_known_before_any_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(ConfigError, match=f"--out {folder}: cannot be written "):
            experiment.Results(folder / "results.json", {})


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (DataError("x.fa: no bases"), 3, "pixels: x.fa: no bases\n"),
        (
            IsADirectoryError(21, "Is a directory", "out"),
            1,
            "pixels: out: Is a directory: mend that; the same command goes on\n",
        ),
        (OSError("full"), 1, "pixels: disk: full: mend that; the same command goes on\n"),
        (KeyboardInterrupt(), 130, "pixels: interrupted; the same command goes on\n"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, says: str
) -> None:
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        experiment.start("pixels", main)
    assert caught.value.code == code and capsys.readouterr().err == says
