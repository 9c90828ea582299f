"""Runs beside one another, and beside the papers' own: thesis tables 4.2 and 4.3, figure 4.3.

What a run does not tell (not evaluated yet, no baseline, energy that nobody measured) is missing,
never zero: a dash in Markdown, null in JSON.
"""

import csv
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from asr.bundle import CONFIG
from asr.config import load_config
from asr.errors import BundleError
from asr.reporting.cost import Cost, read_cost
from asr.reporting.published import PAPERS, Figures
from asr.reporting.results import KeptEvaluation, describe, read_evaluation
from asr.schema import FrozenModel

HISTORY = Path("training") / "history.csv"


BASELINE = "transformer_large"


class Epoch(FrozenModel):
    """A line of training/history.csv."""

    epoch: int
    train_loss: float | None
    val_loss: float | None
    val_cer: float | None
    seconds: float | None


class Run(FrozenModel):
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


class ComparedRun(FrozenModel):
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


def compare(runs: list[Run]) -> list[ComparedRun]:
    """Rows in the order given, each relative to its corpus's Transformer (large).

    Where that is not among the runs, the largest dense model stands for it.
    """
    rows = []
    for run in runs:
        peers = [r for r in runs if r.corpus == run.corpus and r.is_dense]
        base = max(peers, key=lambda r: (r.recipe == BASELINE, r.parameters), default=None)
        rows.append(
            ComparedRun(
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
    if own and other and (own.cuts, own.decoding) != (other.cuts, other.decoding):
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


def as_json(rows: list[ComparedRun]) -> str:
    """All that is known, for programs; shares are shares, not percentages."""
    worst = {"__all__": {"run": {"evaluation": {"worst"}}}}
    return TypeAdapter(list[ComparedRun]).dump_json(rows, indent=2, exclude=worst).decode() + "\n"
