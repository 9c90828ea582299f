"""Runs beside one another, and beside the papers' own: thesis tables 4.2 and 4.3, figure 4.3.

What a run does not tell (not evaluated yet, no baseline, energy that nobody measured) is missing,
never zero: a dash in Markdown, null in JSON.
"""

import csv
from math import nan
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from asr.bundle import CONFIG, write_atomically
from asr.card import KeptEvaluation, describe, read_evaluation
from asr.config import load_config
from asr.cost import Cost, read_cost
from asr.errors import BundleError, ConfigError, DataError
from asr.markdown import table
from asr.node import Node

HISTORY = Path("training") / "history.csv"
BASELINE = "transformer_large"
_DASH = "—"


class Figures(Node):
    """A row of thesis tables 4.2 and 4.3: of a run as measured, or as the papers print it.

    `delta_cer` is how much less the CER is than the baseline's, absolute; `compression` the share
    of the baseline's parameters that is saved; `speedup` how many times faster it decodes;
    `mean_length` is |X̄|, in characters.
    """

    parameters_m: float | None = None
    cer: float | None = None
    delta_cer: float | None = None
    compression: float | None = None
    speedup_gpu: float | None = None
    speedup_cpu: float | None = None
    mean_length: float | None = None


def _printed(
    size: float, cer: float, delta: float | None = None, compression: float | None = None,
    gpu: float | None = None, cpu: float | None = None, length: float | None = None,
) -> Figures:  # fmt: skip
    """As the thesis prints them, shares in percent."""
    shares = [None if share is None else share / 100 for share in (cer, delta, compression)]
    return Figures(
        parameters_m=size, cer=shares[0], delta_cer=shares[1], compression=shares[2],
        speedup_gpu=gpu, speedup_cpu=cpu, mean_length=length,
    )  # fmt: skip


# Thesis tables 4.2 (parameters in millions, CER in %) and 4.3 (the rest; it has the large model
# and the LRTs only), by corpus and recipe.
PAPERS = {
    ("aishell1", "transformer_large"): _printed(25.1, 13.49, 0, 0, 1, 1, 23.08),
    ("aishell1", "transformer_medium"): _printed(12.7, 14.47),
    ("aishell1", "transformer_small"): _printed(8.7, 15.66),
    ("aishell1", "lrt_r100"): _printed(12.7, 13.09, 0.40, 49.40, 1.17, 1.15, 23.15),
    ("aishell1", "lrt_r75"): _printed(10.7, 13.23, 0.26, 57.37, 1.23, 1.16, 23.17),
    ("aishell1", "lrt_r50"): _printed(8.7, 13.60, -0.11, 65.34, 1.30, 1.23, 23.19),
    ("hkust", "transformer_large"): _printed(22, 29.21, 0, 0, 1, 1, 22.43),
    ("hkust", "transformer_medium"): _printed(11.5, 29.73),
    ("hkust", "transformer_small"): _printed(7.8, 31.30),
    ("hkust", "lrt_r100"): _printed(11.5, 28.95, 0.26, 47.72, 1.21, 1.14, 22.32),
    ("hkust", "lrt_r75"): _printed(9.7, 29.08, 0.13, 55.90, 1.26, 1.15, 22.15),
    ("hkust", "lrt_r50"): _printed(7.8, 30.74, -1.53, 64.54, 1.35, 1.22, 22.49),
}


class Epoch(Node):
    """A line of training/history.csv."""

    epoch: int
    train_loss: float | None
    val_loss: float | None
    val_cer: float | None
    seconds: float | None


class Run(Node):
    """What a bundle's files tell of a run."""

    corpus: str
    recipe: str
    is_dense: bool
    parameters: int
    evaluation: KeptEvaluation | None
    cost: Cost | None
    history: tuple[Epoch, ...]

    @property
    def best_epoch(self) -> Epoch | None:
        """The epoch of the lowest dev loss."""
        known = [epoch for epoch in self.history if epoch.val_loss is not None]
        return min(known, key=lambda e: e.val_loss or 0.0, default=None)


class Row(Node):
    """A run, with its figures relative to the baseline among the runs of its corpus."""

    run: Run
    baseline: str | None
    measured: Figures
    paper: Figures | None


def read_run(folder: Path) -> Run:
    """A run of `exp/CORPUS/RECIPE`. Raises BundleError that names the file that is wrong."""
    folder = folder.resolve()
    if not (folder / CONFIG).is_file():
        raise BundleError(f"{folder}: no {CONFIG} here: give folders that `asr train` has finished")
    config = load_config(folder / CONFIG)
    return Run(
        corpus=folder.parent.name,
        recipe=folder.name,
        is_dense=config.model.projection.kind == "dense" and not config.model.ranks,
        parameters=describe(config)["parameters"],
        evaluation=read_evaluation(folder),
        cost=read_cost(folder),
        history=tuple(_read_history(folder / HISTORY)),
    )


def compare(runs: list[Run]) -> list[Row]:
    """Rows in the order given, each relative to its corpus's Transformer (large).

    Where that is not among the runs, the largest dense model stands for it.
    """
    rows = []
    for run in runs:
        peers = [r for r in runs if r.corpus == run.corpus and r.is_dense]
        base = max(peers, key=lambda r: (r.recipe == BASELINE, r.parameters), default=None)
        rows.append(
            Row(
                run=run,
                baseline=base.recipe if base else None,
                measured=_measured(run, base),
                paper=PAPERS.get((run.corpus, run.recipe)),
            )
        )
    return rows


def _measured(run: Run, base: Run | None) -> Figures:
    own, other = run.evaluation, base and base.evaluation
    # Errors and speed on other recordings, or of another search, tell nothing of the model.
    if own and other and (own.cuts, own.search) != (other.cuts, other.search):
        other = None

    def speedup(device: str) -> float | None:
        known = own and other and device in own.speed and device in other.speed
        return other.speed[device] / own.speed[device] if own and other and known else None

    return Figures(
        parameters_m=run.parameters / 1e6,
        cer=own.cer if own else None,
        delta_cer=other.cer - own.cer if own and other else None,
        compression=1 - run.parameters / base.parameters if base else None,
        speedup_gpu=speedup("cuda"),
        speedup_cpu=speedup("cpu"),
        mean_length=own.mean_length if own else None,
    )


def _read_history(path: Path) -> list[Epoch]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    epochs, columns = [], list(Epoch.model_fields)
    for number, line in enumerate(lines, 2):
        try:
            known = {key: None if line[key] in ("", "nan") else line[key] for key in columns}
            epochs.append(Epoch.model_validate(known))
        except (ValidationError, KeyError) as error:
            raise BundleError(
                f"{path}, line {number}: not an epoch ({','.join(columns)}): mend it"
            ) from error
    return epochs


def as_json(rows: list[Row]) -> str:
    """All that is known, for programs; shares are shares, not percentages."""
    worst = {"__all__": {"run": {"evaluation": {"worst"}}}}
    return TypeAdapter(list[Row]).dump_json(rows, indent=2, exclude=worst).decode() + "\n"


# --- as Markdown ---------------------------------------------------------------------------


def markdown(rows: list[Row]) -> str:
    """The tables of each corpus; a figure of the thesis stands after a slash."""
    parts = []
    for corpus in dict.fromkeys(row.run.corpus for row in rows):
        own = [row for row in rows if row.run.corpus == corpus]
        parts += [f"## {corpus}", _tests(own), _results(own), _savings(own), _costs(own)]
    return "\n\n".join(parts) + "\n"


def _tests(rows: list[Row]) -> str:
    tests = {
        f"{e.cuts} ({e.utterances} utterances, beam {e.search.beam_size})"
        for row in rows
        if (e := row.run.evaluation)
    }
    evaluated = " and ".join(sorted(tests)) if tests else "nothing yet"
    return (
        f"Evaluated on {evaluated}. Baseline: {rows[0].baseline or 'none among the runs'}. "
        "After a slash: the thesis's figure, on the whole corpus."
    )


def _beside(row: Row, name: str, form: str, scale: float = 1.0) -> str:
    """The run's figure / the papers', each in its form or a dash."""
    figures = [row.measured, *([row.paper] if row.paper else [])]
    return " / ".join(_number(getattr(f, name), form, scale) for f in figures)


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return _DASH if value is None else format(value * scale, form)


def _results(rows: list[Row]) -> str:
    head = ["model (thesis table 4.2)", "parameters (million)", "CER (%)"]
    return table(head, [
        [r.run.recipe, _beside(r, "parameters_m", ".2f"), _beside(r, "cer", ".2f", 100)]
        for r in rows
    ])  # fmt: skip


def _savings(rows: list[Row]) -> str:
    head = [
        "model (thesis table 4.3)", "ΔCER (points)", "compression (%)", "speed-up on GPU (×)",
        "speed-up on CPU (×)", "|X̄| (characters)",
    ]  # fmt: skip
    return table([cell.replace("|", "\\|") for cell in head], [
        [
            r.run.recipe, _beside(r, "delta_cer", "+.2f", 100),
            _beside(r, "compression", ".2f", 100), _beside(r, "speedup_gpu", ".2f"),
            _beside(r, "speedup_cpu", ".2f"), _beside(r, "mean_length", ".2f"),
        ]
        for r in rows
    ])  # fmt: skip


def _costs(rows: list[Row]) -> str:
    head = [
        "training", "epochs", "train loss, last", "dev loss, lowest", "of epoch", "time (min)",
        "operations (PFLOP)", "energy", "CO2 (kg)",
    ]  # fmt: skip
    return table(head, [_cost_cells(row.run) for row in rows])


def _cost_cells(run: Run) -> list[str]:
    cost, best = run.cost, run.best_epoch
    losses = [_DASH] * 4
    if run.history:
        losses[:2] = [str(len(run.history)), _number(run.history[-1].train_loss, ".3f")]
    if best:
        losses[2:] = [_number(best.val_loss, ".3f"), str(best.epoch)]
    if not cost:
        return [run.recipe, *losses, *[_DASH] * 4]
    return [
        run.recipe, *losses, f"{cost.seconds / 60:.1f}", f"{cost.operations / 1e15:.3g}",
        cost.energy_text(), _number(cost.co2_kg, ".3g"),
    ]  # fmt: skip


# --- as a picture ---------------------------------------------------------------------------


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
