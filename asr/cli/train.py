"""`asr train`, `asr finetune`, `asr train-lm`."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from asr.cli.options import Bundle, Device, Overrides, app, resumable, show
from asr.errors import ConfigError

Resume = Annotated[bool, typer.Option(help="Continue the run that --out holds.")]


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as recipes/demo/lrt.yaml.")],
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Default: exp/CORPUS/RECIPE.")
    ] = None,
    resume: Resume = False,
    overrides: Overrides = None,
    device: Device = "auto",
) -> None:
    """Train a recipe into a model bundle."""
    from asr.config import load_config

    config = load_config(recipe, overrides)  # before the slow imports: mistakes show at once
    from asr.train.run import train as run

    out_dir = out_dir or Path("exp") / recipe.resolve().parent.name / recipe.stem
    changes = "".join(f" --set '{change}'" for change in overrides or [])
    with resumable(f"asr train {recipe}{changes} --out {out_dir} --resume"):
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
    command = [argument for argument in sys.argv[1:] if argument != "--resume"]
    with resumable(shlex.join(["asr", *command, "--resume"])):
        outcome = run.run(resume, device)
    show(f"{outcome}\n{out_dir}")


@app.command()
def train_lm(
    bundle: Bundle,
    texts: Annotated[
        list[Path] | None,
        typer.Argument(help="Text files, a line each; default: the training transcripts."),
    ] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Default: BUNDLE/lm.")] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    resume: Resume = False,
    device: Device = "auto",
) -> None:
    """Train a language model with a recognizer's tokens and sizes, for --lm."""
    from asr.bundle import Bundle as Loaded
    from asr.bundle import is_within
    from asr.runtime.devices import choose_device
    from asr.train.language_model import train_lm as run

    if out_dir is None:
        out_dir = bundle / "lm"
        for path in (out_dir, *out_dir.rglob("*")):
            if not is_within(bundle, path):  # a stranger's bundle would choose what is overwritten
                raise ConfigError(f"{path}: leads out of {bundle}: give --out DIR")
    files = "".join(f" {path}" for path in texts or [])
    with resumable(f"asr train-lm {bundle}{files} --epochs {epochs} --out {out_dir} --resume"):
        run(Loaded.load(bundle), texts or [], out_dir, epochs, resume, choose_device(device))
    show(f"{out_dir}")
