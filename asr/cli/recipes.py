"""`asr recipes`: the recipes that come with the program."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from tabulate import tabulate

from asr.cli.options import app, show
from asr.errors import AsrError, ConfigError

recipes_app = typer.Typer()
app.add_typer(recipes_app, name="recipes")

_LEFT_OUT = shutil.ignore_patterns("__pycache__")


@recipes_app.callback(invoke_without_command=True)
def recipes(context: typer.Context) -> None:
    """List the recipes that come with the program; copy one to change or run it."""
    if context.invoked_subcommand is None:
        rows = [
            (name, _title(folder), " ".join(sorted(path.stem for path in folder.glob("*.yaml"))))
            for name, folder in _shipped().items()
        ]
        show(tabulate(rows, ("name", "for", "recipes"), maxcolwidths=[None, 40, 50]))
        show("\nasr recipes copy NAME copies one to recipes/NAME here")


@recipes_app.command()
def copy(
    name: Annotated[str, typer.Argument(help="One that `asr recipes` lists, such as demo.")],
    folder: Annotated[
        Path, typer.Argument(help="Where recipes/NAME is made, and its commands are to be run.")
    ] = Path(),
) -> None:
    """Copy a recipe, with its README and its preparation, to FOLDER/recipes/NAME."""
    shipped = _shipped()
    if name not in shipped:
        raise ConfigError(f"{name}: there is no such recipe: give one of {', '.join(shipped)}")
    out = folder / "recipes" / name
    if out.exists():
        raise ConfigError(f"{out}: already exists: give another folder, or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".recipe-") as scratch:
            whole = Path(scratch, name)
            shutil.copytree(shipped[name], whole, ignore=_LEFT_OUT)
            whole.rename(out)
    except OSError as error:
        raise AsrError(f"{out}: cannot be written ({error.strerror or error})") from error
    show(str(out))


def _shipped() -> dict[str, Path]:
    """Return the folders of recipes by name: of the wheel, or of the repository."""
    package = Path(__file__).parents[1]
    inside = package / "recipes"  # see setup.py
    root = inside if inside.is_dir() else package.parent / "recipes"
    return {path.parent.name: path.parent for path in sorted(root.glob("*/README.md"))}


def _title(folder: Path) -> str:
    """Return the first heading of a folder's README."""
    lines = (folder / "README.md").read_text("utf-8").splitlines()
    return lines[0].removeprefix("# ")
