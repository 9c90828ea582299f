"""`asr evaluate`, `asr tune`, `asr report`, `asr score`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from asr.cli.options import Beam, Bundle, Device, Format, Int8, Lm, LmWeight, Method, app, err, out

if TYPE_CHECKING:
    from asr.evaluation.evaluate import Evaluation


@app.command()
def evaluate(
    bundle: Bundle,
    cuts: Annotated[Path, typer.Argument(help="A manifest, such as data/demo/test.jsonl.gz.")],
    beam: Beam = None,
    method: Method = None,
    lm: Lm = None,
    lm_weight: LmWeight = None,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst to show.")] = 10,
    format: Format = "table",
    device: Device = "auto",
    int8: Int8 = False,
) -> None:
    """Corpus CER, its parts and the worst utterances; kept as evaluation.json in the bundle."""
    from rich.progress import Progress

    import asr
    from asr.data.manifest import load_cuts
    from asr.evaluation.evaluate import evaluate as run
    from asr.reporting.results import write_evaluation

    recognizer = asr.load(bundle, device, int8)
    changes = {"beam_size": beam, "method": method, "lm": lm, "lm_weight": lm_weight}
    search = recognizer.config.decoding.changed(changes)
    chosen = load_cuts(cuts)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("evaluating", total=len(chosen))
        result = run(recognizer, chosen, search, worst, lambda n: progress.advance(task, n))
    if format == "json":
        print(result.model_dump_json(indent=2))
    else:
        _show_evaluation(cuts, result)
    write_evaluation(bundle, cuts, result)


def _show_evaluation(cuts: Path, result: "Evaluation") -> None:
    table = Table(title=f"{cuts}: {result.utterances} utterances, {result.skipped} skipped")
    for name in ("CER", "substitutions", "insertions", "deletions", "characters", "|X̄|", "RTF"):
        table.add_column(name, justify="right")
    table.add_row(
        f"{result.cer:.2%}", str(result.substitutions), str(result.insertions),
        str(result.deletions), str(result.reference_length), f"{result.mean_length:.2f}",
        f"{result.rtf:.4f}",
    )  # fmt: skip
    out.print(table)
    for utterance in result.worst:
        out.print(
            f"{utterance.id}  {utterance.errors} errors\n{utterance.alignment}",
            markup=False,
            highlight=False,
        )


@app.command()
def tune(
    bundle: Bundle,
    cuts: Annotated[Path, typer.Argument(help="The dev manifest; never the test's.")],
    beam: Beam = None,
    method: Method = None,
    lm: Lm = None,
    most: Annotated[int, typer.Option(min=1, help="Utterances heard, at most.")] = 1000,
    write: Annotated[bool, typer.Option(help="Write what is best into the bundle.")] = False,
    device: Device = "auto",
) -> None:
    """Find the weights of CTC head, language model and length on dev."""
    from rich.progress import Progress

    import asr
    from asr.data.manifest import load_cuts
    from asr.evaluation.tune import tune as run
    from asr.evaluation.tune import write_weights

    recognizer = asr.load(bundle, device)
    changes = {"beam_size": beam, "method": method, "lm": lm}
    search = recognizer.config.decoding.model_copy(
        update={name: value for name, value in changes.items() if value is not None}
    )
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("tuning", total=None)
        trials = run(recognizer, load_cuts(cuts), search, most, lambda _: progress.advance(task))
    table = Table("ctc_weight", "lm_weight", "gamma", "CER", title=f"{cuts}: best first")
    for trial in trials:
        tried = trial.decoding
        weights = (tried.ctc_weight, tried.lm_weight, tried.gamma)
        table.add_row(*(f"{weight:g}" for weight in weights), f"{trial.cer:.2%}")
    out.print(table)
    if write:
        write_weights(bundle, trials[0].decoding)
        out.print(f"written: {bundle / 'config.yaml'}", highlight=False, soft_wrap=True)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Bundles, such as exp/aishell1/lrt_r50.")],
    format: Annotated[Literal["md", "json"], typer.Option()] = "md",
    out_file: Annotated[Path | None, typer.Option("--out", help="A file for the tables.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A PNG of the losses by epoch.")] = None,
) -> None:
    """Runs in the papers' tables, beside the papers' figures; what each cost."""
    from asr.reporting.comparison import as_json, compare, read_run
    from asr.reporting.plots import draw_losses
    from asr.reporting.tables import markdown
    from asr.runtime.files import write_atomically

    found = [read_run(run) for run in runs]
    text = (as_json if format == "json" else markdown)(compare(found))
    if plot:
        draw_losses(found, plot)
    if out_file:
        write_atomically(out_file, lambda path: path.write_text(text, "utf-8"))
    else:
        print(text, end="")


@app.command()
def score(
    references: Annotated[Path, typer.Argument(help="What was said, a line `id text` each.")],
    hypotheses: Annotated[Path, typer.Argument(help="What was recognised, likewise.")],
    format: Format = "table",
) -> None:
    """Pooled CER of one text file against another; ids are checked both ways."""
    from asr.evaluation.cer import score_files

    counts = score_files(references, hypotheses)
    facts = {"cer": counts.rate, **vars(counts)}
    if format == "json":
        print(json.dumps(facts, indent=2))
    else:
        out.print(
            f"CER {counts.rate:.2%}: {counts.substitutions} substitutions, {counts.insertions} "
            f"insertions, {counts.deletions} deletions of {counts.reference_length} characters",
            highlight=False,
        )
