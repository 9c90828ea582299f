"""TODO: tables."""

from asr.reporting.comparison import ComparedRun, Run
from asr.reporting.markdown import table

_DASH = "—"


def markdown(rows: list[ComparedRun]) -> str:
    """The tables of each corpus; a figure of the thesis stands after a slash."""
    parts = []
    for corpus in dict.fromkeys(row.run.corpus for row in rows):
        own = [row for row in rows if row.run.corpus == corpus]
        parts += [f"## {corpus}", _tests(own), _results(own), _savings(own), _costs(own)]
    return "\n\n".join(parts) + "\n"


def _tests(rows: list[ComparedRun]) -> str:
    tests = {
        f"{e.cuts} ({e.utterances} utterances, beam {e.decoding.beam_size})"
        for row in rows
        if (e := row.run.evaluation)
    }
    evaluated = " and ".join(sorted(tests)) if tests else "nothing yet"
    return (
        f"Evaluated on {evaluated}. Baseline: {rows[0].baseline or 'none among the runs'}. "
        "After a slash: the thesis's figure, on the whole corpus."
    )


def _beside(row: ComparedRun, name: str, form: str, scale: float = 1.0) -> str:
    """The run's figure / the papers', each in its form or a dash."""
    figures = [row.measured, *([row.paper] if row.paper else [])]
    return " / ".join(_number(getattr(f, name), form, scale) for f in figures)


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return _DASH if value is None else format(value * scale, form)


def _results(rows: list[ComparedRun]) -> str:
    head = ["model (thesis table 4.2)", "parameters (million)", "CER (%)"]
    return table(head, [
        [r.run.recipe, _beside(r, "parameters_m", ".2f"), _beside(r, "cer", ".2f", 100)]
        for r in rows
    ])  # fmt: skip


def _savings(rows: list[ComparedRun]) -> str:
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


def _costs(rows: list[ComparedRun]) -> str:
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
