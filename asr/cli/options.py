"""What the verbs share: the program, its consoles, options that several take, progress."""

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
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
err = Console(stderr=True)
_LINE_SECONDS = 30.0  # between lines of progress where there is no terminal
# What a terminal obeys or hides instead of showing: control characters but tab and newline, the
# marks of bidirectional text, halves of surrogate pairs.
_UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Int8 = Annotated[
    bool, typer.Option("--int8", help="Compute larger maps in 8 bits: faster on a CPU.")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1, help="Recordings at a time; default: one for each usable CPU, or 16 for each by URL."
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe's value.")
]
Beam = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Beam size; default: the recipe's.")
]
Method = Annotated[
    Literal["joint", "ctc_greedy", "ctc_sounds", "ctc_beam", "rescore"] | None,
    typer.Option(help="Decoding method; default: the recipe's."),
]
Lm = Annotated[Path | None, typer.Option(help="A language model: ARPA, or `asr train-lm`'s.")]
Confidence = Annotated[
    float | None,
    typer.Option(min=0, max=0.99, help="Leave out texts of less confidence; 0: none."),
]
LmWeight = Annotated[float | None, typer.Option(min=0, help="Its weight, as `asr tune` finds it.")]
LmBonus = Annotated[
    float | None,
    typer.Option(min=0, max=20, help="What an n-gram adds for each token, as `asr tune` finds it."),
]
Column = Annotated[
    str | None, typer.Option(metavar="NAME", help="Its name, where it is not a usual one.")
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Its name, or that of the tier, where it is not a usual one."
    ),
]
Bundle = Annotated[Path, typer.Argument(help="A model bundle's folder, as `asr train` makes it.")]
Format = Annotated[Literal["table", "json"], typer.Option(help="Format of the output.")]


def decoding_changes(
    beam: int | None,
    method: str | None,
    lm: Path | None,
    lm_weight: float | None = None,
    confidence: float | None = None,
    lm_bonus: float | None = None,
) -> dict[str, object]:
    """Return the decoding options that are given, by name."""
    values = {
        "beam_size": beam, "method": method, "lm": lm, "lm_weight": lm_weight,
        "confidence_threshold": confidence, "lm_bonus": lm_bonus,
    }  # fmt: skip
    return {name: value for name, value in values.items() if value is not None}


def as_arguments(changes: Mapping[str, object]) -> list[str]:
    """Return the arguments of which `decoding_changes` made these."""
    names = {"beam_size": "beam", "confidence_threshold": "confidence"}
    options = ((names.get(name, name).replace("_", "-"), value) for name, value in changes.items())
    return [part for name, value in options for part in (f"--{name}", str(value))]


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


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """Print how to continue where a signal stops the work; exit with 128 and its number."""
    try:
        yield
    except KeyboardInterrupt as error:
        note(f"interrupted; continue with: {command}")
        sys.exit(128 + (error.args[0] if error.args else signal.SIGINT))


def note(text: str) -> None:
    """Print a line on standard error, without markup."""
    err.print(on_one_line(text), markup=False, highlight=False, soft_wrap=True)


def show(text: str) -> None:
    """Print results on standard output: as they are, but escaped on a terminal."""
    print(escaped(text) if sys.stdout.isatty() else text, flush=True)


def escaped(text: str) -> str:
    """Return a text that a terminal shows and does not obey."""
    return _UNSHOWN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def on_one_line(text: str) -> str:
    """Return an escaped text whose newlines and tabs are escaped too."""
    return escaped(text).translate({ord(c): repr(c)[1:-1] for c in "\t\n"})
