"""`asr train`, `asr train-lm`."""

import os
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
