"""Runs compared with a baseline and with Cahyawijaya 2021, tables 4.2 and 4.3, figure 4.3.

Unknown values of a run (not evaluated yet, no baseline, energy not measured) are missing, never
zero: a dash in Markdown, null in JSON.
"""

from pathlib import Path

from pydantic import TypeAdapter

from asr.bundle import load_bundle_config
from asr.errors import BundleError
from asr.reporting.cost import Cost, read_cost
from asr.reporting.published import PAPERS, RunMetrics
from asr.reporting.results import KeptEvaluation, describe, read_evaluation
from asr.runtime.files import read_csv
from asr.schema import FrozenModel, OmitNone

HISTORY = Path("training") / "history.csv"
BASELINE = "transformer_large"


class Epoch(FrozenModel):
    """A line of training/history.csv; that of texts without words has no WER."""

    epoch: int
    train_loss: float | None
    val_loss: float | None
    val_cer_percent: float | None
    val_wer_percent: OmitNone[float] = None
    seconds: float | None


class Run(FrozenModel):
    """The contents of a bundle's files about its training and evaluation."""

    corpus: str
    recipe: str
    is_dense: bool
    parameters: int
    evaluation: KeptEvaluation | None
    cost: Cost | None
    history: tuple[Epoch, ...]

    @property
    def best_epoch(self) -> Epoch | None:
        """Return the epoch of the lowest validation loss."""
        known = [epoch for epoch in self.history if epoch.val_loss is not None]
        return min(known, key=lambda e: e.val_loss or 0.0, default=None)


class ComparedRun(FrozenModel):
    """A run and its metrics relative to the baseline among the runs of its corpus."""

    run: Run
    baseline: str | None
    measured: RunMetrics
    paper: RunMetrics | None


def read_run(folder: Path) -> Run:
    """Read a run of `exp/CORPUS/RECIPE`. Raises BundleError that names the file that is wrong."""
    folder = folder.resolve()
    config = load_bundle_config(folder)
    return Run(
        corpus=folder.parent.name,
        recipe=folder.name,
        is_dense=config.model.is_dense,
        parameters=describe(config)["parameters"],
        evaluation=read_evaluation(folder),
        cost=read_cost(folder),
        history=tuple(read_csv(folder / HISTORY, Epoch, BundleError)),
    )


def compare(runs: list[Run]) -> list[ComparedRun]:
    """Compare each run with its corpus's Transformer (large), or else its largest dense model."""
    rows = []
    for run in runs:
        peers = [r for r in runs if r.corpus == run.corpus and r.is_dense]
        base = max(peers, key=lambda r: (r.recipe == BASELINE, r.parameters), default=None)
        measured, paper = _measured(run, base), PAPERS.get((run.corpus, run.recipe))
        name = base.recipe if base else None
        rows.append(ComparedRun(run=run, baseline=name, measured=measured, paper=paper))
    return rows


def _measured(run: Run, base: Run | None) -> RunMetrics:
    own, other = run.evaluation, base and base.evaluation
    # Errors and speed are not comparable across recordings or decoding options.
    if own and other and own.setting != other.setting:
        other = None

    def speedup(device: str) -> float | None:
        known = own and other and device in own.speed and device in other.speed
        return other.speed[device] / own.speed[device] if own and other and known else None

    return RunMetrics(
        parameters_m=run.parameters / 1e6,
        cer=own.cer if own else None,
        delta_cer=other.cer - own.cer if own and other else None,
        compression=1 - run.parameters / base.parameters if base else None,
        speedup_gpu=speedup("cuda"),
        speedup_cpu=speedup("cpu"),
        mean_length=own.mean_length if own else None,
        wer=own.wer if own else None,
    )


def as_json(rows: list[ComparedRun]) -> str:
    """Return all that is known, but the worst utterances, as JSON; shares are not percentages."""
    worst = {"__all__": {"run": {"evaluation": {"worst"}}}}
    return TypeAdapter(list[ComparedRun]).dump_json(rows, indent=2, exclude=worst).decode() + "\n"
