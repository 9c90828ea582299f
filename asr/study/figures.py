"""Thesis figures 3.4 to 3.7, as PNG."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.bundle import write_atomically
from asr.errors import ConfigError
from asr.study.cells import BASELINE, MODES, Row
from asr.study.findings import Measure, ratios

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLES: dict[Measure, str] = {"seconds": "speed-up", "memory_mib": "memory"}


def check_matplotlib() -> None:
    """Raise ConfigError where there is none, before the work."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "`asr bench efficiency` draws figures: pip install 'lrt-asr[report]'"
        ) from error


def draw(rows: list[Row], out: Path) -> list[Path]:
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


def _against_baseline(rows: list[Row], models: list[str], mode: Any) -> "Figure":
    """Times as fast (left) and share of memory (right) of the Transformer."""
    figure, panels = _figure(len(models), 2)
    for model, (speed, memory) in zip(models, panels, strict=True):
        _lines(speed, rows, ("seconds", BASELINE, model, mode), f"{model}, {mode}: times as fast")
        _lines(memory, rows, ("memory_mib", model, BASELINE, mode), f"{model}, {mode}: memory, %")
    return figure


def _lines(axes: "Axes", rows: list[Row], what: tuple[Any, ...], title: str) -> None:
    scale = 100 if what[0] == "memory_mib" else 1
    found = ratios(rows, *what)
    for rank in sorted({ratio.rank or 0 for ratio in found}):
        own = [ratio for ratio in found if ratio.rank == rank]
        axes.plot(
            [r.length for r in own], [scale * r.value for r in own], "o-", label=f"r = {rank}"
        )
    axes.axhline(scale, color="grey", linewidth=1)
    _finish(axes, title, sorted({ratio.length for ratio in found}))


def _finish(axes: "Axes", title: str, lengths: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set(title=title, xlabel="length n")
    if axes.lines[1:]:
        axes.legend(fontsize="small")


def _against_each_other(rows: list[Row]) -> "Figure":
    """Log2 of LRT over Linformer: below 0 LRT is better, above it Linformer."""
    figure, panels = _figure(2, 2)
    measures: list[Measure] = ["seconds", "memory_mib"]
    for measure, line in zip(measures, panels, strict=True):
        for mode, axes in zip(MODES, line, strict=True):
            title = f"{_TITLES[measure]}, {mode}: LRT / Linformer, above 1 Linformer is better"
            _lines(axes, rows, (measure, "lrt", "linformer", mode), title)
            axes.set_yscale("log", base=2)
    return figure


def _sizes(rows: list[Row], models: list[str]) -> "Figure":
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
        axes.plot(list(sizes), list(sizes.values()), "o-", label=f"{model}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(title=f"parameters, million (n = {longest})", xlabel="rank")
    axes.legend()
    return figure
