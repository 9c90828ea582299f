"""The files of results are valid, and docs/results.md is what they give."""

import argparse
import json
import re
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from benchmarks import record, tables
from benchmarks.record import Result, ResultFile

FILES = sorted(record.FOLDER.glob("*.json"))
RESULT = Result(
    title="a table", columns={"what": "", "CER (%)": ".2f"}, rows=[["x | y", 1.0], ["z", None]]
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_results_is_valid(path: Path) -> None:
    made = record.read(path)
    assert path.name == made.name
    assert made.theme in tables.THEMES
    titles = [result.title for result in made.results]
    assert len(set(titles)) == len(titles)
    assert all(result.rows and result.commit for result in made.results)


def test_the_page_of_results_is_up_to_date() -> None:
    assert FILES
    assert tables.PAGE.read_text("utf-8") == tables.page(tables.read_all()), (
        "run `python -m benchmarks.tables`"
    )


def test_results_are_recorded_only_on_request_and_a_title_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert record.write(argparse.Namespace(record=False), "noise", [RESULT], tmp_path) is None
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(sys, "argv", ["benchmarks/noise.py", "a b", "--record"])
    args = argparse.Namespace(record=True)
    record.write(args, "noise", [RESULT], tmp_path)
    other = RESULT.model_copy(update={"title": "another"})
    path = record.write(args, "noise", [RESULT, other], tmp_path)
    assert path is not None
    (made,) = tables.read_all(tmp_path)
    assert [result.title for result in made.results] == ["a table", "another"]
    assert "'a b'" in made.results[0].command
    assert "--record" not in made.results[0].command
    assert made.recorded == record.BY_SCRIPT
    assert json.loads(path.read_text("utf-8"))["theme"] == "noise"


def test_a_newer_run_of_a_machine_replaces_an_older_one() -> None:
    old, new = (
        ResultFile(
            theme="noise", machine="a cpu, 2 cores", date=day,
            results=[RESULT.model_copy(update={"commit": day})],
        )
        for day in ("2026-01-01", "2026-01-02")
    )  # fmt: skip
    text = tables.page([old, new])
    assert "Commit `2026-01-02`" in text
    assert "Commit `2026-01-01`" not in text
    assert re.search(r"\| x \\\| y +\| +1\.00 \|\n\| z +\| +— \|", text)


def test_rows_that_do_not_fit_their_columns_are_refused() -> None:
    with pytest.raises(ValidationError, match="cells"):
        Result(title="t", columns={"a": ""}, rows=[["x", 1]])
    with pytest.raises(ValidationError):
        Result(title="t", columns={"a": "no format"}, rows=[[1]])


OTHERS = {
    "__init__", "chromium", "record", "tables", "torch_baseline", "engines", "random_models",
    "local_s3", "light_s3", "our_decoders", "first_joint", "data_curve", "new_words",
    "corpora",
    "wenet_model",
}  # fmt: skip
SCRIPTS = sorted(path for path in record.FOLDER.parent.glob("*.py") if path.stem not in OTHERS)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_records_its_results_under_a_known_theme(path: Path) -> None:
    text = path.read_text("utf-8")
    assert "record.add_option(parser)" in text
    themes = re.findall(r'record\.publish\(args, "([a-z0-9-]+)"', text)
    assert themes
    assert set(themes) <= set(tables.THEMES)
