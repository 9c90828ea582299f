"""TODO: plots."""

from math import nan
from pathlib import Path

from asr.errors import ConfigError, DataError
from asr.reporting.comparison import HISTORY, Run
from asr.runtime.files import write_atomically


def draw_losses(runs: list[Run], path: Path) -> None:
    """Training and validation loss by epoch, a panel a corpus (thesis figure 4.3), as PNG.

    Raises ConfigError without matplotlib, DataError where no run has a history.
    """
    drawn = [run for run in runs if run.history]
    if not drawn:
        raise DataError(f"no run has a {HISTORY}: there are no losses to draw")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install 'lrt-asr[report]'") from error
    corpora = list(dict.fromkeys(run.corpus for run in drawn))
    figure = Figure(figsize=(6.5 * len(corpora), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, corpus in enumerate(corpora, 1):
        axes = figure.add_subplot(1, len(corpora), panel)
        for i, run in enumerate(run for run in drawn if run.corpus == corpus):
            epochs = [epoch.epoch for epoch in run.history]
            for name, line in (("train", "--"), ("val", "-")):
                losses = [getattr(epoch, f"{name}_loss") for epoch in run.history]
                known = [nan if loss is None else loss for loss in losses]
                label = f"{run.recipe}, {'training' if name == 'train' else 'validation'}"
                axes.plot(epochs, known, line, color=f"C{i}", label=label)
        axes.set(title=corpus, xlabel="epoch", ylabel="loss")
        axes.legend(fontsize="small")
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=120))
