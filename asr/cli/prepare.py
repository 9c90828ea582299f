"""`asr prepare CORPUS`: convert a corpus on disk to lhotse cuts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tabulate import tabulate

from asr.cli.extras import require_ray
from asr.cli.options import Column, Jobs, TextColumn, app, show

if TYPE_CHECKING:
    from data_prep.corpus_writer import Report
    from data_prep.ray_tasks import RayTasks

prepare_app = typer.Typer(help="Prepare a corpus on disk as lhotse cuts.", no_args_is_help=True)
app.add_typer(prepare_app, name="prepare")

Corpus = Annotated[Path, typer.Argument(metavar="CORPUS_DIR", help="The corpus as published.")]
Out = Annotated[Path, typer.Argument(metavar="OUT_DIR", help="Folder for the cuts.")]


@prepare_app.command()
def demo(
    out_dir: Out = Path("data/demo"),
    train: Annotated[int, typer.Option(min=1, help="Training utterances.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the sentences.")] = 1,
    jobs: Jobs = None,
) -> None:
    """Prepare synthetic Mandarin, spoken by espeak-ng, for a first trial."""
    from data_prep.demo import prepare

    show_report(prepare(out_dir, seed=seed, train=train, jobs=jobs), out_dir)


@prepare_app.command()
def aishell1(corpus: Corpus, out_dir: Out, jobs: Jobs = None) -> None:
    """Prepare AiShell-1 from the extracted tree or from data_aishell.tgz."""
    from data_prep.aishell1 import prepare

    show_report(prepare(corpus, out_dir, jobs=jobs), out_dir)


@prepare_app.command()
def hkust(corpus: Corpus, out_dir: Out, jobs: Jobs = None) -> None:
    """Prepare HKUST from a folder that holds LDC2005S15 and LDC2005T32."""
    from data_prep.hkust import prepare

    show_report(prepare(corpus, out_dir, jobs=jobs), out_dir)


@prepare_app.command()
def table(
    recordings: Annotated[
        str, typer.Argument(help="A folder of recordings, in any format, or its URL.")
    ],
    transcripts: Annotated[
        Path,
        typer.Argument(
            help="Their texts: csv, tsv, jsonl, or a folder: Kaldi's, or with a.txt for a.wav."
        ),
    ],
    out_dir: Annotated[
        str, typer.Argument(metavar="OUT_DIR", help="Folder for the cuts, or its URL.")
    ],
    audio_column: Column = None,
    text_column: TextColumn = None,
    speaker_column: Column = None,
    dev: Annotated[float, typer.Option(min=0.01, max=0.5, help="Share for development.")] = 0.1,
    test: Annotated[float, typer.Option(min=0.0, max=0.5, help="Share for the test.")] = 0.1,
    jobs: Jobs = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ray|ray://HOST:PORT",
            help="The nodes of a Ray cluster look at the recordings, --jobs groups of them at a "
            "time: URLs, or paths that all nodes see.",
        ),
    ] = None,
) -> None:
    """Prepare recordings of your own with a table of their texts, speakers kept apart."""
    from asr.runtime.storage import is_url
    from data_prep.table import prepare

    source, out = (place if is_url(place) else Path(place) for place in (recordings, out_dir))
    if engine and isinstance(source, Path):  # nodes work in another folder
        source = source.absolute()
    if engine and isinstance(out, Path):  # of which converted copies are read
        out = out.absolute()
    named = {
        "audio": audio_column,
        "text": text_column,
        "speaker": speaker_column,
    }
    columns = {kind: name for kind, name in named.items() if name}
    cluster, here = (_cluster(engine, jobs), None) if engine else (None, jobs)
    report = prepare(
        source, transcripts, out, columns=columns, dev=dev, test=test, jobs=here, cluster=cluster
    )
    show_report(report, out_dir)


@prepare_app.command()
def speech(
    sentences: Annotated[Path, typer.Argument(help="Texts without recordings, one a line.")],
    corpus: Annotated[
        Path,
        typer.Argument(
            metavar="CORPUS_DIR",
            help="The prepared recordings beside which they train: what is said in its dev and "
            "test is not spoken.",
        ),
    ],
    out_dir: Out,
    language: Annotated[
        str | None,
        typer.Option(help="As espeak-ng names it (cmn, yue, ja); default: by letters."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the voices' settings.")] = 1,
    jobs: Jobs = None,
) -> None:
    """Prepare synthetic speech of sentences, to train beside recordings of people."""
    from data_prep.sentences import prepare

    report = prepare(sentences, corpus, out_dir, language=language, seed=seed, jobs=jobs)
    show_report(report, out_dir)


def _cluster(engine: str, jobs: int | None) -> "RayTasks":
    require_ray(engine, "prepare")
    from data_prep.ray_tasks import RayTasks

    return RayTasks(engine, jobs)


def show_report(report: "Report", folder: Path | str) -> None:
    """Print the counts of a prepared corpus, and what was left out."""
    head = ("split", "utterances", "speakers", "hours", "characters", "left out")
    rows = [
        (
            name,
            s.utterances,
            s.speakers or ("not named" if s.utterances else 0),
            s.hours,
            s.characters,
            reasons_text(s.left_out) or "-",
        )
        for name, s in report.splits.items()
    ]
    show(tabulate(rows, head, intfmt=",", floatfmt=".2f"))
    if reasons := reasons_text(report.left_out):
        show(f"left out: {reasons}; listed in {folder}/left_out.tsv")


def reasons_text(left_out: dict[str, int]) -> str:
    """Return how many are left out for each reason."""
    return ", ".join(f"{n:,} {reason}" for reason, n in left_out.items())
