"""`asr evaluate`, `asr tune`, `asr report`, `asr score`."""

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from tabulate import tabulate

from asr.cli import options
from asr.cli.options import (
    Beam,
    Bundle,
    Confidence,
    Device,
    Format,
    Int8,
    Lm,
    LmBonus,
    LmWeight,
    Method,
    app,
    show,
)

if TYPE_CHECKING:
    from asr.decoding.options import DecodingOptions
    from asr.evaluation.records import Evaluation, UtteranceErrors
    from asr.transcription.recognizer import Recognizer


@app.command()
def evaluate(
    bundle: Bundle,
    cuts: Annotated[Path, typer.Argument(help="A manifest, such as data/demo/test.jsonl.gz.")],
    beam: Beam = None,
    method: Method = None,
    lm: Lm = None,
    lm_weight: LmWeight = None,
    lm_bonus: LmBonus = None,
    confidence: Confidence = None,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst to show.")] = 10,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="A file for all hypotheses, as JSON lines.")
    ] = None,
    format: Format = "table",
    device: Device = "auto",
    int8: Int8 = False,
) -> None:
    """Print CER, WER of texts with spaces, the worst utterances; store them in evaluation.json."""
    import asr
    from asr.reporting.results import write_evaluation, write_hypotheses

    recognizer = asr.load(bundle, device, int8)
    changes = options.decoding_changes(beam, method, lm, lm_weight, confidence, lm_bonus)
    decoding = recognizer.config.decoding.changed(changes)
    result, utterances = evaluate_cuts(recognizer, cuts, decoding, worst)
    if format == "json":
        show(result.model_dump_json(indent=2))
    else:
        show(f"{cuts}: {result}")
        if result.whole and result.whole.confusions:
            show(f"\n{result.whole.table(worst)}\n")
        for utterance in result.worst:
            show(f"{utterance.id}  {utterance.errors} errors\n{utterance.alignment}")
    if out_file:  # after the result is shown, for the disk may be full
        write_hypotheses(out_file, utterances)
    is_int8 = int8 and recognizer.device.type == "cpu"  # elsewhere it has no effect
    given = [*options.as_arguments(changes), *(["--int8"] if is_int8 else [])]
    write_evaluation(bundle, cuts, result, given, is_int8)


def evaluate_cuts(
    recognizer: "Recognizer", cuts: Path, decoding: "DecodingOptions", n_worst: int
) -> tuple["Evaluation", list["UtteranceErrors"]]:
    """Return the result on a manifest, and that of each utterance; show the progress."""
    from asr.data.manifest import load_cuts
    from asr.evaluation.evaluate import evaluate as run

    chosen, utterances, n_done = load_cuts(cuts), list["UtteranceErrors"](), 0
    with options.progress("evaluating", len(chosen)) as on_progress:

        def on_group(size: int, found: list["UtteranceErrors"]) -> None:
            nonlocal n_done
            n_done += size
            on_progress(n_done)
            utterances.extend(found)

        return run(recognizer, chosen, decoding, n_worst, on_group), utterances


@app.command()
def tune(
    bundle: Bundle,
    cuts: Annotated[Path, typer.Argument(help="The dev manifest; never the test's.")],
    beam: Beam = None,
    method: Method = None,
    lm: Lm = None,
    limit: Annotated[int, typer.Option(min=1, help="The most utterances to decode.")] = 1000,
    write: Annotated[bool, typer.Option(help="Write the best ones into the bundle.")] = False,
    device: Device = "auto",
) -> None:
    """Find the weights of CTC head, language model and length on dev."""
    import asr
    from asr.data.manifest import load_cuts
    from asr.errors import ConfigError
    from asr.evaluation.tune import TUNED, check_writable, write_decoding
    from asr.evaluation.tune import tune as run

    recognizer = asr.load(bundle, device)
    changes = options.decoding_changes(beam, method, lm)
    decoding = recognizer.config.decoding.model_copy(update=changes)
    if lm and decoding.is_greedy:
        raise ConfigError(
            f"--method {decoding.method} has no language model: use ctc_beam, or omit --lm"
        )
    if write:
        check_writable(bundle, decoding.lm)
    n_tried = itertools.count(1)
    with options.progress("tuning") as on_progress:
        trials = run(
            recognizer, load_cuts(cuts), decoding, limit, lambda _: on_progress(next(n_tried))
        )
    names = (*TUNED, "confidence_threshold")
    rows = [[*(getattr(t.decoding, name) for name in names), f"{t.cer:.2%}"] for t in trials]
    heading = [*names, "CER"]
    if trials[0].wer is not None:
        heading.append("WER")
        rows = [[*row, f"{t.wer:.2%}"] for row, t in zip(rows, trials, strict=True)]
    show(f"{cuts}: best first\n\n{tabulate(rows, heading)}")
    if write:
        write_decoding(bundle, trials[0].decoding)
        show(f"written: {bundle / 'config.yaml'}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Bundles, such as exp/aishell1/lrt_r50.")],
    format: Annotated[Literal["md", "json"], typer.Option(help="Format.")] = "md",
    out_file: Annotated[Path | None, typer.Option("--out", help="A file for the tables.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A PNG of the losses by epoch.")] = None,
) -> None:
    """Print tables of runs beside the papers' results, with the cost of each."""
    from asr.reporting.comparison import as_json, compare, read_run
    from asr.reporting.plots import draw_losses
    from asr.reporting.tables import markdown
    from asr.runtime.files import write_text

    found = [read_run(run) for run in runs]
    text = (as_json if format == "json" else markdown)(compare(found))
    if plot:
        draw_losses(found, plot)
    if out_file:
        write_text(out_file, text)
    else:
        show(text.removesuffix("\n"))


@app.command()
def score(
    references: Annotated[Path, typer.Argument(help="Reference texts, a line `id text` each.")],
    hypotheses: Annotated[Path, typer.Argument(help="Recognized texts, a line `id text` each.")],
    format: Format = "table",
) -> None:
    """Print the pooled CER, and WER, of one text file against another with the same ids."""
    from asr.evaluation.cer import score_files

    counts, words = score_files(references, hypotheses)
    if format == "json":
        found = {"wer": words.rate, "words": vars(words)} if words else {}
        show(json.dumps({"cer": counts.rate, **found, **vars(counts)}, indent=2))
    else:
        show("\n".join([str(counts), *([words.described("WER", "words")] if words else [])]))
