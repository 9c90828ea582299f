"""`asr train`, `asr train-lm`."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from asr.cli.options import Bundle, Device, Overrides, app, err, out


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
    from asr.runtime.devices import choose_device
    from asr.train.language_model import train_lm as run

    out_dir = out_dir or bundle / "lm"

    def tell(epoch: int, loss: float, dev_loss: float) -> None:
        err.print(
            f"epoch {epoch}/{epochs}  train loss {loss:.4f}  dev loss {dev_loss:.4f}",
            highlight=False,
        )

    loaded = Loaded.load(bundle)
    run(loaded, texts or [], out_dir, epochs, resume, choose_device(device), tell)
    out.print(f"{out_dir}", highlight=False)
