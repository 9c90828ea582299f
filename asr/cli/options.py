"""What the verbs share: the program, its consoles, options that several take, progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

app = typer.Typer(
    help="Small, fast speech recognition with the Low-Rank Transformer. Any verb takes --debug: "
    "a traceback in place of the one-sentence error.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
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
    typer.Option(help="Decoding method; default: the recipe's."),
]
Lm = Annotated[Path | None, typer.Option(help="A language model: ARPA, or `asr train-lm`'s.")]
LmWeight = Annotated[float | None, typer.Option(min=0, help="Its weight, as `asr tune` finds it.")]
Bundle = Annotated[Path, typer.Argument(help="A model bundle's folder, as `asr train` makes it.")]
Format = Annotated[Literal["table", "json"], typer.Option(help="Format of the output.")]


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Callable[[int, str], None]]:
    """Show a bar on a terminal; yield a function that advances it and names what is finished.

    Where standard error is no terminal, each name is a line.
    """
    from rich.progress import Progress

    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task, done = bar.add_task(title, total=total), 0

        def advance(n: int, name: str = "") -> None:
            nonlocal done
            done += n
            bar.update(task, advance=n, description=name or title)
            if name and not err.is_terminal:
                err.print(f"{done}/{total} {name}", highlight=False, markup=False, soft_wrap=True)

        yield advance
