"""What the verbs share: the program, its consoles, options that several take, progress."""

import time
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
_LINE_SECONDS = 30.0  # between lines of progress where there is no terminal

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


def decoding_changes(
    beam: int | None, method: str | None, lm: Path | None, lm_weight: float | None = None
) -> dict[str, object]:
    """Return the decoding options that are given, by name."""
    values = {"beam_size": beam, "method": method, "lm": lm, "lm_weight": lm_weight}
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def progress(
    title: str, total: int | None = None, completed: int = 0
) -> Iterator[Callable[[float], None]]:
    """Yield a function that shows how many of `total` are done, besides those completed before.

    It moves a bar, or, where standard error is no terminal, prints a line every half minute.
    """
    from rich.progress import Progress

    printed = time.monotonic()
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(title, total=total, completed=completed)

        def show(n_done: float) -> None:
            nonlocal printed
            done = completed + n_done
            bar.update(task, completed=done)
            if not err.is_terminal and time.monotonic() - printed >= _LINE_SECONDS:
                printed = time.monotonic()
                note(f"{title}: {int(done)}" + (f"/{total}, {done / total:.0%}" if total else ""))

        yield show


def note(text: str) -> None:
    """Print a line on standard error as it is, without markup."""
    err.print(text, markup=False, highlight=False, soft_wrap=True)
