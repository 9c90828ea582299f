"""The command line: its verbs are listed by `asr --help`.

Verbs import what they need inside, so that `asr --help` and a mistyped option answer at once.
Results go to standard output, everything else to standard error.
"""

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from asr.errors import AsrError, AudioError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from asr.evaluate import Evaluation
    from asr.recognizer import Transcript
    from data_prep.manifest import Report

app = typer.Typer(
    help="Small, fast speech recognition with the Low-Rank Transformer. Any verb takes --debug: "
    "a traceback in place of the one-sentence error.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip
prepare_app = typer.Typer(help="A corpus on disk to lhotse cuts.", no_args_is_help=True)
app.add_typer(prepare_app, name="prepare")

out, err = Console(), Console(stderr=True)

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Int8 = Annotated[
    bool, typer.Option("--int8", help="The decoder's larger weights in 8 bits: faster on a CPU.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; default: all cores.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe's value.")
]
Beam = Annotated[int | None, typer.Option(min=1, help="Beam size; default: the recipe's.")]
Method = Annotated[
    Literal["joint", "ctc_greedy", "ctc_beam", "rescore"] | None,
    typer.Option(help="How texts are looked for; default: the recipe's."),
]
Lm = Annotated[Path | None, typer.Option(help="A language model: ARPA, or `asr train-lm`'s.")]
LmWeight = Annotated[float | None, typer.Option(min=0, help="Its weight, as `asr tune` finds it.")]
Bundle = Annotated[Path, typer.Argument(help="A model bundle's folder, as `asr train` makes it.")]
Corpus = Annotated[Path, typer.Argument(metavar="CORPUS_DIR", help="The corpus as published.")]
Out = Annotated[Path, typer.Argument(metavar="OUT_DIR", help="Where the cuts go.")]
Features = Annotated[
    Path | None,
    typer.Option(metavar="RECIPE", help="Compute the features of this recipe now, and store them."),
]


def main() -> None:
    """Run the program: one sentence for what the user can mend, a traceback only on --debug."""
    debug = "--debug" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--debug"]
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_handler(debug)])
    logging.getLogger("asr").setLevel(logging.DEBUG if debug else logging.INFO)
    logging.getLogger("data_prep").setLevel(logging.DEBUG if debug else logging.INFO)
    try:
        app()
    except AsrError as error:
        if debug:
            raise
        err.print(f"asr: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        err.print("asr: interrupted")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if debug:
            raise
        err.print(f"asr: {error.filename or 'disk'}: {error.strerror or error}", soft_wrap=True)
        sys.exit(1)


def _handler(debug: bool) -> logging.Handler:
    return RichHandler(console=err, show_time=debug, show_level=debug, show_path=debug)


@prepare_app.command()
def demo(
    out_dir: Out = Path("data/demo"),
    train: Annotated[int | None, typer.Option(min=1, help="Training utterances.")] = None,
    seed: int = 1,
    jobs: Jobs = None,
) -> None:
    """Synthetic Mandarin, spoken by espeak-ng, for trying everything out."""
    from data_prep.demo import prepare

    sizes = {} if train is None else {"train": train}
    _show_report(prepare(out_dir, seed=seed, jobs=jobs, **sizes), out_dir)


@prepare_app.command()
def aishell1(corpus: Corpus, out_dir: Out, jobs: Jobs = None, features: Features = None) -> None:
    """AiShell-1: the extracted tree, or data_aishell.tgz."""
    from data_prep.aishell1 import prepare

    _prepare(prepare, corpus, out_dir, jobs, features)


@prepare_app.command()
def hkust(corpus: Corpus, out_dir: Out, jobs: Jobs = None, features: Features = None) -> None:
    """HKUST: a folder that holds LDC2005S15 and LDC2005T32."""
    from data_prep.hkust import prepare

    _prepare(prepare, corpus, out_dir, jobs, features)


def _prepare(
    prepare: "Callable[..., Report]", corpus: Path, out: Path, jobs: int | None,
    recipe: Path | None,
) -> None:  # fmt: skip
    from asr.config import load_config

    config = recipe and load_config(recipe).features  # a mistake shows before the work
    report = prepare(corpus, out, jobs=jobs)
    _show_report(report, out)
    if config:
        from data_prep.spectrograms import store

        store(out, report.splits, config, jobs=jobs)


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as recipes/demo/lrt.yaml.")],
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Default: exp/CORPUS/RECIPE.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run that --out holds.")] = False,
    overrides: Overrides = None,
    device: Device = "auto",
) -> None:
    """Train a recipe into a model bundle."""
    from asr.config import load_config

    config = load_config(recipe, overrides)  # before the slow imports: mistakes show at once
    from asr.train.run import train as run

    out_dir = out_dir or Path("exp") / recipe.resolve().parent.name / recipe.stem
    try:
        run(config, out_dir, resume, device)
    except KeyboardInterrupt as error:
        changes = "".join(f" --set '{change}'" for change in overrides or [])
        err.print(
            f"interrupted; go on with: asr train {recipe}{changes} --out {out_dir} --resume",
            soft_wrap=True,
        )
        sys.exit(128 + (error.args[0] if error.args else signal.SIGINT))
    if os.environ.get("RANK", "0") == "0":  # of torchrun's processes one speaks
        out.print(f"{out_dir}", highlight=False)


@app.command()
def evaluate(
    bundle: Bundle,
    cuts: Annotated[Path, typer.Argument(help="A manifest, such as data/demo/test.jsonl.gz.")],
    beam: Beam = None,
    method: Method = None,
    lm: Lm = None,
    lm_weight: LmWeight = None,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst to show.")] = 10,
    format: Annotated[Literal["table", "json"], typer.Option()] = "table",
    device: Device = "auto",
    int8: Int8 = False,
) -> None:
    """Corpus CER, its parts and the worst utterances; kept as evaluation.json in the bundle."""
    from rich.progress import Progress

    import asr
    from asr.card import write_evaluation
    from asr.data import load_cuts
    from asr.evaluate import evaluate as run

    recognizer = asr.load(bundle, device, int8)
    changes = {"beam_size": beam, "method": method, "lm": lm, "lm_weight": lm_weight}
    search = recognizer.config.search.changed(changes)
    chosen = load_cuts(cuts)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("evaluating", total=len(chosen))
        result = run(recognizer, chosen, search, worst, lambda n: progress.advance(task, n))
    if format == "json":
        print(result.model_dump_json(indent=2))
    else:
        _show_evaluation(cuts, result)
    write_evaluation(bundle, cuts, result)


@app.command()
def train_lm(
    bundle: Bundle,
    texts: Annotated[
        list[Path] | None, typer.Argument(help="Text, a line each; default: the train transcripts.")
    ] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Default: BUNDLE/lm.")] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    resume: Annotated[bool, typer.Option(help="Go on with the run that --out holds.")] = False,
    device: Device = "auto",
) -> None:
    """Train a language model with a recogniser's tokens and sizes, for --lm."""
    from asr.bundle import Bundle as Loaded
    from asr.recognizer import choose_device
    from asr.train.lm import train_lm as run

    out_dir = out_dir or bundle / "lm"

    def tell(epoch: int, loss: float, dev_loss: float) -> None:
        err.print(
            f"epoch {epoch}/{epochs}  train loss {loss:.4f}  dev loss {dev_loss:.4f}",
            highlight=False,
        )

    loaded = Loaded.load(bundle)
    run(loaded, texts or [], out_dir, epochs, resume, choose_device(device), tell)
    out.print(f"{out_dir}", highlight=False)


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
    from asr.data import load_cuts
    from asr.tune import tune as run
    from asr.tune import write_weights

    recognizer = asr.load(bundle, device)
    changes = {"beam_size": beam, "method": method, "lm": lm}
    search = recognizer.config.search.model_copy(
        update={name: value for name, value in changes.items() if value is not None}
    )
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("tuning", total=None)
        trials = run(recognizer, load_cuts(cuts), search, most, lambda _: progress.advance(task))
    table = Table("ctc_weight", "lm_weight", "gamma", "CER", title=f"{cuts}: best first")
    for trial in trials:
        tried = trial.search
        weights = (tried.ctc_weight, tried.lm_weight, tried.gamma)
        table.add_row(*(f"{weight:g}" for weight in weights), f"{trial.cer:.2%}")
    out.print(table)
    if write:
        write_weights(bundle, trials[0].search)
        out.print(f"written: {bundle / 'config.yaml'}", highlight=False, soft_wrap=True)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Bundles, such as exp/aishell1/lrt_r50.")],
    format: Annotated[Literal["md", "json"], typer.Option()] = "md",
    out_file: Annotated[Path | None, typer.Option("--out", help="A file for the tables.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A PNG of the losses by epoch.")] = None,
) -> None:
    """Runs in the papers' tables, beside the papers' figures; what each cost."""
    from asr.bundle import write_atomically
    from asr.report import as_json, compare, draw_losses, markdown, read_run

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
    format: Annotated[Literal["table", "json"], typer.Option()] = "table",
) -> None:
    """Pooled CER of one text file against another; ids are checked both ways."""
    from asr.metrics import score_files

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


@app.command()
def transcribe(
    bundle: Bundle,
    recordings: Annotated[
        list[str],
        typer.Argument(help="wav, flac, ogg or mp3: files, folders with all below, quoted globs."),
    ],
    format: Annotated[Literal["txt", "json", "srt", "vtt", "tsv"], typer.Option()] = "txt",
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="A folder for a file each; those there are kept.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Write anew what --out holds.")] = False,
    beam: Beam = None,
    method: Method = None,
    lm: Lm = None,
    lm_weight: LmWeight = None,
    device: Device = "auto",
    int8: Int8 = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, each with a GPU in turn.")] = 1,
) -> None:
    """The text of recordings; a bad one is told and the others go on (exit code 1)."""
    from rich.progress import Progress

    from asr.transcription import find_tasks, transcribe_all

    tasks = find_tasks(recordings, out_dir, format)
    if len(tasks) > 1 and not out_dir and format not in ("txt", "json"):
        raise ConfigError(f"--format {format} is a file a recording: add --out DIR")
    todo = [task for task in tasks if overwrite or not (task.out and task.out.is_file())]
    skipped, failed = len(tasks) - len(todo), 0
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("transcribing", total=len(tasks), completed=skipped)
        changes = {"beam_size": beam, "method": method, "lm": lm, "lm_weight": lm_weight}
        results = transcribe_all(
            todo, bundle, device, int8, changes, jobs,
            lambda n: progress.update(bar, completed=skipped + n),
        )  # fmt: skip
        for task, result in results:
            notes = [f"asr: {result}"] if isinstance(result, AudioError) else result.warnings
            for note in notes:
                err.print(note, markup=False, highlight=False, soft_wrap=True)
            if isinstance(result, AudioError):
                failed += 1
            elif not out_dir:
                _show_transcript(str(task.recording), result, format, alone=len(tasks) == 1)
    if out_dir:
        err.print(
            f"{len(todo) - failed} written to {out_dir}, {skipped} were there already",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    if failed:
        raise typer.Exit(1)


def _show_transcript(name: str, result: "Transcript", format: str, alone: bool) -> None:
    from asr.formats import FORMATS

    if format == "json":
        print(json.dumps({"file": name, **result.as_dict()}, ensure_ascii=False), flush=True)
    else:
        text = FORMATS[format](result) if alone else f"{name}\t{result.text}\n"
        print(text, end="", flush=True)


@app.command()
def info(
    source: Annotated[Path, typer.Argument(help="A recipe (no corpus needed) or a bundle.")],
    format: Annotated[Literal["table", "json"], typer.Option()] = "table",
    overrides: Overrides = None,
) -> None:
    """Parameters by part; of a bundle, its evaluation too."""
    from asr.card import describe
    from asr.config import load_config

    recipe = source / "config.yaml" if source.is_dir() else source
    facts = describe(load_config(recipe, overrides), source if source.is_dir() else None)
    if format == "json":
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    table = Table("part", "parameters", title=str(source))
    for name, count in facts["parts"].items():
        table.add_row(name, f"{count:,}")
    table.add_row(
        "total", f"{facts['parameters']:,} ({facts['parameters'] / 1e6:.2f} M)", style="bold"
    )
    out.print(table)
    if evaluation := facts.get("evaluation"):
        out.print(f"CER {evaluation['cer']:.2%} on {evaluation['cuts']}")


@app.command()
def serve(
    bundle: Bundle,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    device: Device = "auto",
    int8: Int8 = False,
) -> None:
    """An HTTP service in OpenAI's shape: POST /v1/audio/transcriptions."""
    import uvicorn

    from serve.app import create_app

    uvicorn.run(
        create_app(bundle, device=device, int8=int8), host=host, port=port, log_level="info"
    )


def _show_report(report: "Report", folder: Path) -> None:
    table = Table("split", "utterances", "speakers", "hours", "characters", "left out")
    for name, split in report.splits.items():
        table.add_row(*_report_row(name, split))
    out.print(table)
    if left := report.left_out:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in left.items())
        listed = folder / "left_out.tsv"
        out.print(f"left out: {reasons}; listed in {listed}", highlight=False, soft_wrap=True)


def _report_row(name: str, split: Any) -> list[str]:
    left_out = ", ".join(f"{n} {reason}" for reason, n in split.left_out.items()) or "-"
    return [
        name, f"{split.utterances:,}", str(split.speakers), f"{split.hours:.2f}",
        str(split.characters), left_out,
    ]  # fmt: skip


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


if __name__ == "__main__":  # torchrun -m asr.cli
    main()
