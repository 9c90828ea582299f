"""Thesis figures 3.4 to 3.7, as PNG."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from asr.efficiency.claims import Measure, Ratio, ratios
from asr.efficiency.grid import BASELINE, MODES, Measurement, Mode
from asr.errors import ConfigError
from asr.runtime.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLES: dict[Measure, str] = {"seconds": "time", "memory_mib": "memory"}


def check_matplotlib() -> None:
    """Raise ConfigError where there is none, before the work."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "`asr bench efficiency` draws figures: pip install 'lrt-asr[report]'"
        ) from error


def draw(rows: list[Measurement], out: Path) -> list[Path]:
    """The figures, those that the rows have something for."""
    low = [model for model in ("lrt", "linformer") if any(row.model == model for row in rows)]
    paths = []
    if low:
        paths.append(_save(_against_baseline(rows, low, "inference"), out / "figure_3_4.png"))
        paths.append(_save(_sizes(rows, low), out / "figure_3_6.png"))
    if len(low) == 2:
        paths.append(_save(_against_each_other(rows), out / "figure_3_5.png"))
    if "lrt" in low:
        paths.append(_save(_against_baseline(rows, ["lrt"], "training"), out / "figure_3_7.png"))
    return sorted(paths)


def _figure(n_rows: int, n_columns: int) -> "tuple[Figure, list[list[Axes]]]":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * n_columns, 4 * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(n_rows, n_columns, squeeze=False).tolist()


def _save(figure: "Figure", path: Path) -> Path:
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=110))
    return path


def _against_baseline(rows: list[Measurement], models: list[str], mode: Mode) -> "Figure":
    """Times as fast (left) and share of memory (right) of the Transformer."""
    figure, panels = _figure(len(models), 2)
    for model, (speed, memory) in zip(models, panels, strict=True):
        times = ratios(rows, "seconds", BASELINE, model, mode)
        _lines(speed, times, lambda r: r, f"{model}, {mode}: times as fast")
        shares = ratios(rows, "memory_mib", model, BASELINE, mode)
        _lines(memory, shares, lambda r: 100 * r, f"{model}, {mode}: memory, %")
    return figure


def _against_each_other(rows: list[Measurement]) -> "Figure":
    """Log2 of LRT over Linformer: below 0 LRT is better, above it Linformer."""
    figure, panels = _figure(2, 2)
    for measure, line in zip(_TITLES, panels, strict=True):
        for mode, axes in zip(MODES, line, strict=True):
            found = ratios(rows, measure, "lrt", "linformer", mode)
            _lines(axes, found, math.log2, f"{_TITLES[measure]}, {mode}: log2(LRT / Linformer)")
    return figure


def _lines(
    axes: "Axes", found: list[Ratio], shown: Callable[[float], float], title: str
) -> None:  # fmt: skip
    """A line a rank over the length, and where both are equal."""
    for rank in sorted({ratio.rank or 0 for ratio in found}):
        own = [ratio for ratio in found if ratio.rank == rank]
        values = [shown(ratio.value) for ratio in own]
        axes.plot([ratio.length for ratio in own], values, "o-", label=f"r = {rank}")
    axes.axhline(shown(1.0), color="grey", linewidth=1)
    lengths = sorted({ratio.length for ratio in found})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set(title=title, xlabel="length n")
    if found:
        axes.legend(fontsize="small")


def _sizes(rows: list[Measurement], models: list[str]) -> "Figure":
    """Parameters by rank, at the greatest length, of which the Linformer's depend."""
    figure, [[axes]] = _figure(1, 1)
    longest = max(row.length for row in rows)
    own = [row for row in rows if row.length == longest and row.mode == MODES[0]]
    axes.axhline(
        next(row.parameters for row in own if row.model == BASELINE) / 1e6,
        color="grey", label=BASELINE,
    )  # fmt: skip
    for model in models:
        sizes = {row.rank or 0: row.parameters / 1e6 for row in own if row.model == model}
        axes.plot(list(sizes), list(sizes.values()), "o-", label=model)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(title=f"parameters, million (n = {longest})", xlabel="rank")
    axes.legend()
    return figure
