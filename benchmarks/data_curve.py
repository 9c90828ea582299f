"""Draw a recorded curve of errors by the amount of recordings: docs/figures/how-much-data.png.

    python -m benchmarks.data_curve TITLE FILE.png

TITLE is that of a table of docs/results.md with the columns minutes, speakers and CER (%), as
`benchmarks.little_data` measures them. The trainings that have all of the corpus' speakers are a
line, those with fewer are single points; where a table tells the errors of each seed, these are
small points.
"""

import argparse
import sys
from pathlib import Path

from asr.reporting.plots import check_matplotlib, new_figure, save_figure
from benchmarks.record import Result
from benchmarks.tables import newest, read_all

_SEEDS = "of each seed (%)"


def table(title: str) -> Result | None:
    """Return the newest recorded table of this title."""
    found = [result for _, result in newest(read_all()) if result.title == title]
    return found[-1] if found else None


def points(result: Result) -> list[tuple[float, int, float, list[float]]]:
    """Return minutes, speakers, CER and that of each seed of the trainings, the shortest first.

    Raises KeyError where the table has not these columns.
    """
    found = []
    for row in result.rows:
        cells = dict(zip(result.columns, row, strict=True))
        seeds = [float(each) for each in str(cells.get(_SEEDS) or "").split()]
        minutes, speakers, cer = (cells[name] for name in ("minutes", "speakers", "CER (%)"))
        assert minutes is not None and speakers is not None and cer is not None
        found.append((float(minutes), int(speakers), float(cer), seeds))
    return sorted(found)


def draw(result: Result, path: Path) -> None:
    """Write the curve of a table as PNG."""
    check_matplotlib()
    figure, [[axes]] = new_figure(1, 1)
    found = points(result)
    most = max(speakers for _, speakers, _, _ in found)
    whole = [each for each in found if each[1] == most]
    axes.plot([m for m, *_ in whole], [cer for *_, cer, _ in whole], "o-", label=f"{most} speakers")
    for i, (minutes, speakers, cer, _) in enumerate(each for each in found if each[1] < most):
        axes.plot(minutes, cer, "s", color=f"C{i + 1}", label=f"{speakers} speakers")
    for minutes, _, _, seeds in found:
        axes.plot([minutes] * len(seeds), seeds, ".", color="0.6")
    axes.set(xscale="log", xlabel="minutes of recordings", ylabel="CER of other people (%)")
    axes.set_xticks([m for m, *_ in whole], [f"{m:.2g}" for m, *_ in whole])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0, 1.1 * max(max(seeds, default=cer) for *_, cer, seeds in found))
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
