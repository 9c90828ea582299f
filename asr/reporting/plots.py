"""Figures as PNG, by matplotlib."""

from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from asr.errors import ConfigError, DataError
from asr.reporting.comparison import HISTORY, Run
from asr.runtime.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def check_matplotlib() -> None:
    """Raise ConfigError where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("figures need matplotlib: pip install 'lrt-asr[report]'") from error


def new_figure(n_rows: int, n_columns: int) -> "tuple[Figure, list[list[Axes]]]":
    """Return a figure and its panels by row and column."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * n_columns, 4.5 * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(n_rows, n_columns, squeeze=False).tolist()


def save_figure(figure: "Figure", path: Path) -> Path:
    """Write a figure as PNG and return its path."""
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=120))
    return path


def draw_losses(runs: list[Run], path: Path) -> None:
    """Draw losses by epoch, one panel per corpus (Cahyawijaya 2021, figure 4.3).

    Raises ConfigError without matplotlib, DataError where no run has a history.
    """
    drawn = [run for run in runs if run.history]
    if not drawn:
        raise DataError(f"no run has a {HISTORY}: there are no losses to draw")
    check_matplotlib()
    corpora = list(dict.fromkeys(run.corpus for run in drawn))
    figure, [panels] = new_figure(1, len(corpora))
    for axes, corpus in zip(panels, corpora, strict=True):
        for i, run in enumerate(run for run in drawn if run.corpus == corpus):
            epochs = [epoch.epoch for epoch in run.history]
            for name, line in (("train", "--"), ("val", "-")):
                losses = [getattr(epoch, f"{name}_loss") for epoch in run.history]
                known = [nan if loss is None else loss for loss in losses]
                label = f"{run.recipe}, {'training' if name == 'train' else 'validation'}"
                axes.plot(epochs, known, line, color=f"C{i}", label=label)
        axes.set(title=corpus, xlabel="epoch", ylabel="loss")
        axes.legend(fontsize="small")
    save_figure(figure, path)
