"""`asr train`, `asr finetune`, `asr train-lm`."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from asr.cli.extras import require
from asr.cli.options import Bundle, Device, Overrides, app, progress, resumable, show
from asr.errors import ConfigError

Resume = Annotated[bool, typer.Option(help="Continue the run that --out holds.")]


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as recipes/demo/lrt.yaml.")],
    out_dir: Annotated[
        str | None, typer.Option("--out", help="A folder or its URL; default: exp/CORPUS/RECIPE.")
    ] = None,
    resume: Resume = False,
    overrides: Overrides = None,
    device: Device = "auto",
) -> None:
    """Train a recipe into a model bundle."""
    require("train", "train")
    from asr.config import load_config

    config = load_config(recipe, overrides)  # before the slow imports: mistakes show at once
    from asr.train.run import train as run

    out_dir = out_dir or str(Path("exp") / recipe.resolve().parent.name / recipe.stem)
    command = _again()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        command = "what you started, with --resume"
    with resumable(command):
        run(config, out_dir, resume, device)
    if os.environ.get("RANK", "0") == "0":  # one of torchrun's processes prints
        show(f"{out_dir}")


@app.command()
def finetune(
    bundle: Bundle,
    data: Annotated[Path, typer.Argument(help="New recordings: a folder of `asr prepare`.")],
    out_dir: Annotated[Path, typer.Option("--out", help="A folder for the new bundle.")],
    replay: Annotated[
        Path | None,
        typer.Option(help="The bundle's own corpus, a folder or manifest: forget less, and tell."),
    ] = None,
    freeze: Annotated[
        str, typer.Option(metavar="PARTS", help="What stays as it is: frontend, or with ,encoder.")
    ] = "",
    resume: Resume = False,
    overrides: Overrides = None,
    device: Device = "auto",
) -> None:
    """Teach a bundle further recordings: new voices, words, characters."""
    from asr.finetune.run import Finetuning

    parts = [part.strip() for part in freeze.split(",") if part.strip()]
    run = Finetuning(bundle, data, out_dir, replay, parts, overrides or [])
    with resumable(_again()):
        outcome = run.run(resume, device)
    show(f"{outcome}\n{out_dir}")


@app.command()
def train_lm(
    bundle: Bundle,
    texts: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Text files, a sentence per line, or manifests; default: the training transcripts."
        ),
    ] = None,
    order: Annotated[
        int | None,
        typer.Option(min=1, max=10, help="An n-gram of this order in place of a Transformer."),
    ] = None,
    words: Annotated[
        list[Path] | None,
        typer.Option(help="For --order: a list of words, a line each, with counts or without."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Default: BUNDLE/lm; with --order BUNDLE/lm.arpa.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Default: 10, or a resumed run's.")
    ] = None,
    resume: Resume = False,
    device: Device = "auto",
) -> None:
    """Train a language model with a recognizer's tokens, for --lm: a Transformer or an n-gram."""
    from asr.bundle import Bundle as Loaded
    from asr.runtime.devices import choose_device

    if order is not None and (epochs or resume):
        raise ConfigError("--epochs and --resume are for a Transformer: leave out --order, or them")
    if words and order is None:
        raise ConfigError("--words is for n-grams: give --order too, such as --order 4")
    out = out or _within(bundle, "lm" if order is None else "lm.arpa")
    if order is not None:
        from asr.lm.training import train_ngram

        loaded = Loaded.load(bundle)
        with progress("lines read") as on_lines:
            train_ngram(
                loaded.config, loaded.tokenizer, texts or [], words or [], out, order, on_lines
            )
    else:
        from asr.train.language_model import train_lm as run

        with resumable(_again()):
            run(Loaded.load(bundle), texts or [], out, epochs, resume, choose_device(device))
    show(f"{out}")


def _again() -> str:
    """Return the command that continues this one."""
    given = [argument for argument in sys.argv[1:] if argument != "--resume"]
    return shlex.join(["asr", *given, "--resume"])


def _within(bundle: Path, name: str) -> Path:
    """Return a path in a bundle. Raises ConfigError for a link out of it.

    A stranger's bundle would choose what is overwritten.
    """
    from asr.bundle import is_within

    found = bundle / name
    for path in (found, *found.rglob("*")):
        if not is_within(bundle, path):
            raise ConfigError(f"{path}: leads out of {bundle}: give --out")
    return found
