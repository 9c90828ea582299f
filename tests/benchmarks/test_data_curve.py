"""A curve is drawn from a recorded table: each training once, in the order of its minutes."""

from pathlib import Path

import pytest

from benchmarks import data_curve
from benchmarks.data_curve import Point
from benchmarks.record import Result

pytest.importorskip("matplotlib")
RESULT = Result(
    title="curve",
    columns={
        "training": "", "minutes": ".1f", "speakers": "d", "CER (%)": ".2f",
        "of each seed (%)": "",
    },
    rows=[
        ["all", 60.0, 19, 5.0, "4.00 6.00"], ["0.25 h", 15.0, 19, 7.5, None],
        ["5 speakers", 15.8, 5, 9.5, None],
    ],
)  # fmt: skip


def test_points_are_in_order_and_have_their_seeds() -> None:
    assert data_curve.points(RESULT) == [
        Point(15.0, 19, 7.5, []), Point(15.8, 5, 9.5, []), Point(60.0, 19, 5.0, [4.0, 6.0])
    ]  # fmt: skip


def test_the_line_has_the_trainings_of_all_speakers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(data_curve, "save_figure", lambda figure, path: drawn.append(figure))
    data_curve.draw(RESULT, tmp_path / "curve.png")
    lines = {str(line.get_label()): line for line in drawn[0].axes[0].get_lines()}
    assert [list(lines["19 speakers"].get_xdata()), list(lines["19 speakers"].get_ydata())] == [
        [15.0, 60.0], [7.5, 5.0]
    ]  # fmt: skip
    assert list(lines["5 speakers"].get_ydata()) == [9.5]
    others = [line for name, line in lines.items() if name.startswith("_")]
    assert [4.0, 6.0] in [list(line.get_ydata()) for line in others]


def test_the_errors_of_another_system_are_a_line_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(data_curve, "save_figure", lambda figure, path: drawn.append(figure))
    columns = {**RESULT.columns, "WeNet's CER (%)": ".2f"}
    rows = [[*row, other] for row, other in zip(RESULT.rows, (20.0, 30.0, None), strict=True)]
    data_curve.draw(Result(title="curve", columns=columns, rows=rows), tmp_path / "curve.png")
    axes = drawn[0].axes[0]
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    assert list(lines["WeNet, 19 speakers"].get_ydata()) == [30.0, 20.0]
    assert "WeNet, 5 speakers" not in lines and axes.get_ylim()[1] > 30


def test_a_table_is_found_by_its_title_alone() -> None:
    title = "Twenty words by minutes of recordings and by speakers"
    found = data_curve.table(title)
    assert found is not None and found.title == title and len(data_curve.points(found)) >= 5
    assert data_curve.table("no such table") is None
