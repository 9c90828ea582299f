"""Figures 3.4 to 3.7 of Cahyawijaya 2021, as PNG."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from asr.efficiency.claims import Ratio, ratios
from asr.efficiency.grid import BASELINE, MODES, Measurement, Mode
from asr.reporting.plots import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(rows: list[Measurement], out: Path) -> None:
    """Draw the figures whose models were measured."""
    models = [model for model in ("lrt", "linformer") if any(row.model == model for row in rows)]
    if models:
        save_figure(_against_baseline(rows, models, "inference"), out / "figure_3_4.png")
        save_figure(_sizes(rows, models), out / "figure_3_6.png")
    if len(models) == 2:
        save_figure(_against_each_other(rows), out / "figure_3_5.png")
    if "lrt" in models:
        save_figure(_against_baseline(rows, ["lrt"], "training"), out / "figure_3_7.png")


def _against_baseline(rows: list[Measurement], models: list[str], mode: Mode) -> "Figure":
    """Draw the Transformer's time over the model's (left), and the share of its memory (right)."""
    figure, panels = new_figure(len(models), 2)
    for model, (speed, memory) in zip(models, panels, strict=True):
        times = ratios(rows, "seconds", BASELINE, model, mode)
        _lines(speed, times, lambda r: r, f"{model}, {mode}: times as fast")
        shares = ratios(rows, "memory_mib", model, BASELINE, mode)
        _lines(memory, shares, lambda r: 100 * r, f"{model}, {mode}: memory, %")
    return figure


def _against_each_other(rows: list[Measurement]) -> "Figure":
    """Draw log2 of LRT over Linformer: LRT is better below 0."""
    figure, (times, memory) = new_figure(2, 2)
    for i, mode in enumerate(MODES):
        seconds = ratios(rows, "seconds", "lrt", "linformer", mode)
        _lines(times[i], seconds, math.log2, f"time, {mode}: log2(LRT / Linformer)")
        mib = ratios(rows, "memory_mib", "lrt", "linformer", mode)
        _lines(memory[i], mib, math.log2, f"memory, {mode}: log2(LRT / Linformer)")
    return figure


def _lines(axes: "Axes", found: list[Ratio], scale: Callable[[float], float], title: str) -> None:
    """Draw a line per rank over the length, and a gray one where both models are equal."""
    for rank in sorted({ratio.rank or 0 for ratio in found}):
        own = {ratio.length: scale(ratio.value) for ratio in found if ratio.rank == rank}
        axes.plot(list(own), list(own.values()), "o-", label=f"r = {rank}")
    axes.axhline(scale(1.0), color="gray", linewidth=1)
    lengths = sorted({ratio.length for ratio in found})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set(title=title, xlabel="length n")
    if found:
        axes.legend(fontsize="small")


def _sizes(rows: list[Measurement], models: list[str]) -> "Figure":
    """Draw parameters by rank, at the greatest length, on which the Linformer's depend."""
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
    return figure
