"""Figures 3.4 to 3.7 of Cahyawijaya 2021, as PNG."""

from pathlib import Path

from asr.efficiency.grid import BASELINE, MATRIX, MODES, Measurement, Mode
from asr.efficiency.ratios import COSTS, Ratio, ratios
from asr.reporting.plots import new_figure, save_figure


def draw(rows: list[Measurement], out: Path) -> None:
    """Draw the figures of measured models; files `_matrix` are of models that form matrices."""
    names, measured = ["lrt", "linformer"], {row.model for row in rows}
    models = [name for name in names if name in measured]
    if models:
        _draw_sizes(rows, models, out / "figure_3_6.png")
    _draw_ratios(rows, BASELINE, models, out, "")
    matrices = [MATRIX[name] for name in names if MATRIX[name] in measured]
    _draw_ratios(rows, MATRIX[BASELINE], matrices, out, "_matrix")


def _draw_ratios(
    rows: list[Measurement], baseline: str, models: list[str], out: Path, suffix: str
) -> None:
    """Draw figures 3.4 and 3.7, and 3.5 where both models were measured, LRT first."""
    figures = {"3_4": _against(rows, baseline, models, "inference")}
    low_rank_only = [model for model in models if model.startswith("lrt")]
    figures["3_7"] = _against(rows, baseline, low_rank_only, "training")
    if len(models) == 2:
        low_rank, linformer = models
        figures["3_5"] = {
            f"{measure}, {mode}: LRT / Linformer": ratios(rows, measure, low_rank, linformer, mode)
            for measure in COSTS
            for mode in MODES
        }
    for name, panels in figures.items():
        if any(panels.values()):
            _draw(panels, out / f"figure_{name}{suffix}.png")


def _against(
    rows: list[Measurement], baseline: str, models: list[str], mode: Mode
) -> dict[str, list[Ratio]]:
    """Return the baseline's time over each model's, and each model's share of its memory."""
    panels: dict[str, list[Ratio]] = {}
    for model in models:
        title = f"{model}, {mode}: "
        panels[title + "times as fast"] = ratios(rows, "seconds", baseline, model, mode)
        panels[title + "memory"] = ratios(rows, "memory_mib", model, baseline, mode)
    return panels


def _draw(panels: dict[str, list[Ratio]], path: Path) -> None:
    """Draw two panels per row: a line per rank over the length, and a gray one at a ratio of 1."""
    figure, axes_by_row = new_figure(len(panels) // 2, 2)
    all_axes = [axes for row in axes_by_row for axes in row]
    for axes, (title, found) in zip(all_axes, panels.items(), strict=True):
        for rank in sorted({rank for _, _, rank in found}):
            own = {length: value for value, length, r in found if r == rank}
            axes.plot(list(own), list(own.values()), "o-", label=f"r = {rank}")
        axes.axhline(1.0, color="gray", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set(title=title, xlabel="length n")
        if found:
            axes.legend(fontsize="small")
    save_figure(figure, path)


def _draw_sizes(rows: list[Measurement], models: list[str], path: Path) -> None:
    """Draw parameters by rank, at the greatest length: those of Linformer depend on it."""
    figure, [[axes]] = new_figure(1, 1)
    longest = max(row.length for row in rows)
    own = [row for row in rows if row.length == longest and row.mode == MODES[0]]
    dense = next(row.parameters for row in own if row.model == BASELINE)
    axes.axhline(dense / 1e6, color="gray", label=BASELINE)
    for model in models:
        sizes = {row.rank or 0: row.parameters / 1e6 for row in own if row.model == model}
        axes.plot(list(sizes), list(sizes.values()), "o-", label=model)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(title=f"parameters, million (n = {longest})", xlabel="rank")
    axes.legend()
    save_figure(figure, path)
