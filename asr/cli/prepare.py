"""`asr prepare CORPUS`: a corpus on disk to lhotse cuts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from asr.cli.options import Jobs, app, out

if TYPE_CHECKING:
    from collections.abc import Callable

    from data_prep.corpus_writer import Report

prepare_app = typer.Typer(help="A corpus on disk to lhotse cuts.", no_args_is_help=True)
app.add_typer(prepare_app, name="prepare")

Corpus = Annotated[Path, typer.Argument(metavar="CORPUS_DIR", help="The corpus as published.")]
Out = Annotated[Path, typer.Argument(metavar="OUT_DIR", help="Where the cuts go.")]
Features = Annotated[
    Path | None,
    typer.Option(metavar="RECIPE", help="Compute the features of this recipe now, and store them."),
]


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
        from data_prep.features import store

        store(out, report.splits, config, jobs=jobs)


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
