"""Tables of compared runs, as Markdown."""

from functools import partial

from tabulate import tabulate

from asr.reporting.comparison import ComparedRun, Run

DASH = "—"
markdown_table = partial(
    tabulate,
    tablefmt="pipe",
    disable_numparse=True,
    colglobalalign="right",
    colalign=("left",),
)
# Title of the first column; then heading, field of RunMetrics, format and factor of the others.
_TABLES = (
    ("model (thesis table 4.2)", (
        ("parameters (million)", "parameters_m", ".2f", 1),
        ("CER (%)", "cer", ".2f", 100),
        ("WER (%)", "wer", ".2f", 100),
    )),
    ("model (thesis table 4.3)", (
        ("ΔCER (points)", "delta_cer", "+.2f", 100),
        ("compression (%)", "compression", ".2f", 100),
        ("speed-up on GPU (×)", "speedup_gpu", ".2f", 1),
        ("speed-up on CPU (×)", "speedup_cpu", ".2f", 1),
        ("\\|X̄\\| (characters)", "mean_length", ".2f", 1),
    )),
)  # fmt: skip
_COSTS = (
    "training", "epochs", "train loss, last", "dev loss, lowest", "of epoch", "time (min)",
    "operations (PFLOP)", "energy", "CO2 (kg)",
)  # fmt: skip


def markdown(rows: list[ComparedRun]) -> str:
    """Return the tables of each corpus; the thesis's numbers follow a slash.

    Only a corpus whose texts have words has a WER.
    """
    parts = []
    for corpus in dict.fromkeys(row.run.corpus for row in rows):
        own = [row for row in rows if row.run.corpus == corpus]
        parts += [f"## {corpus}", _tests(own)]
        has_wer = any(row.measured.wer is not None for row in own)
        for title, all_columns in _TABLES:
            columns = [c for c in all_columns if c[1] != "wer" or has_wer]
            cells = [[r.run.recipe, *(_beside(r, *c[1:]) for c in columns)] for r in own]
            parts.append(markdown_table(cells, [title, *(column[0] for column in columns)]))
        parts.append(markdown_table([_cost_cells(row.run) for row in own], _COSTS))
    return "\n\n".join(parts) + "\n"


def _tests(rows: list[ComparedRun]) -> str:
    tests = {
        f"{e.cuts} ({e.utterances} utterances, beam {e.decoding.beam_size}"
        f"{', in 8 bits' if e.int8 else ''})"
        for row in rows
        if (e := row.run.evaluation)
    }
    evaluated = " and ".join(sorted(tests)) if tests else "nothing yet"
    return (
        f"Evaluated on {evaluated}. Baseline: {rows[0].baseline or 'none among the runs'}. "
        "After a slash: the thesis's number, on the whole corpus."
    )


def _beside(row: ComparedRun, name: str, form: str, scale: float) -> str:
    """Return a metric as measured / as in the papers, with a dash where it is unknown."""
    metrics = [row.measured, *([row.paper] if row.paper else [])]
    return " / ".join(_number(getattr(m, name), form, scale) for m in metrics)


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return DASH if value is None else format(value * scale, form)


def _cost_cells(run: Run) -> list[str]:
    cost, best = run.cost, run.best_epoch
    cells = [run.recipe, *[DASH] * 8]
    if run.history:
        cells[1:3] = [str(len(run.history)), _number(run.history[-1].train_loss, ".3f")]
    if best:
        cells[3:5] = [_number(best.val_loss, ".3f"), str(best.epoch)]
    if cost:
        cells[5:7] = [f"{cost.seconds / 60:.1f}", f"{cost.operations / 1e15:.3g}"]
        cells[7:9] = [cost.energy_text(), _number(cost.co2_kg, ".3g")]
    return cells
