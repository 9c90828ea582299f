"""Draw a recorded curve of errors by the amount of recordings: docs/figures/how-much-data.png.

    python -m benchmarks.data_curve TITLE FILE.png

TITLE is that of a table of docs/results.md with the columns minutes, speakers and CER (%), as
`benchmarks.little_data` measures them. The trainings with all speakers of the corpus are a line,
trainings with fewer are single points. Errors of each seed, if the table has them, are small
points. The values of a column `WeNet's CER (%)` are a dashed line and hollow points.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from asr.reporting.plots import check_matplotlib, new_figure, save_figure
from benchmarks.record import Result
from benchmarks.tables import newest, read_all

_SEEDS, _WENET = "of each seed (%)", "WeNet's CER (%)"


def table(title: str) -> Result | None:
    """Return the newest recorded table of this title."""
    found = [result for _, result in newest(read_all()) if result.title == title]
    return found[-1] if found else None


@dataclass(frozen=True, order=True)
class Point:
    """A training: its recordings, its CER and that of each seed, and WeNet's if it is known."""

    minutes: float
    speakers: int
    cer: float
    seeds: list[float]
    wenet: float | None = None


def points(result: Result) -> list[Point]:
    """Return the trainings, those with the shortest recordings first.

    Raises KeyError where the table has no minutes, speakers or CER (%).
    """
    found = []
    for row in result.rows:
        cells = dict(zip(result.columns, row, strict=True))
        seeds = [float(each) for each in str(cells.get(_SEEDS) or "").split()]
        minutes, speakers, cer = (cells[name] for name in ("minutes", "speakers", "CER (%)"))
        assert minutes is not None and speakers is not None and cer is not None
        wenet = cells.get(_WENET)
        other = None if wenet is None else float(wenet)
        found.append(Point(float(minutes), int(speakers), float(cer), seeds, other))
    return sorted(found, key=lambda point: (point.minutes, point.speakers))


def draw(result: Result, path: Path) -> None:
    """Write the curve of a table as PNG."""
    check_matplotlib()
    figure, [[axes]] = new_figure(1, 1)
    found = points(result)
    most = max(each.speakers for each in found)
    whole = [each for each in found if each.speakers == most]
    for chosen, style in ((whole, "o-"), *(([each], "s") for each in found if each not in whole)):
        name, minutes = f"{chosen[0].speakers} speakers", [each.minutes for each in chosen]
        (line,) = axes.plot(minutes, [each.cer for each in chosen], style, label=name)
        others = [(each.minutes, each.wenet) for each in chosen if each.wenet is not None]
        if others:
            axes.plot(*zip(*others, strict=True), style.replace("-", "--"), color=line.get_color(),
                      fillstyle="none", label=f"WeNet, {name}")  # fmt: skip
    for each in found:
        axes.plot([each.minutes] * len(each.seeds), each.seeds, ".", color="0.6")
    axes.set(xscale="log", xlabel="minutes of recordings", ylabel="CER of other people (%)")
    axes.set_xticks([each.minutes for each in whole], [f"{each.minutes:.2g}" for each in whole])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0, 1.1 * max(max(each.cer, each.wenet or 0, *each.seeds) for each in found))
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)


def main() -> None:
    """Draw a table's curve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("title")
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    result = table(args.title)
    if result is None:
        sys.exit(f"{args.title}: no recorded table has this title: see docs/results.md")
    draw(result, args.file)


if __name__ == "__main__":
    main()
