"""The command line: its verbs are listed by `asr --help`.

Verbs import what they need inside, so that `asr --help` and a mistyped option answer at once.
Results go to standard output, everything else to standard error.
"""

import logging
import os
import sys
from importlib import import_module, metadata
from io import TextIOWrapper
from typing import Annotated

import typer
from rich.logging import RichHandler

from asr.cli.extras import missing_extra
from asr.cli.options import app, err, note, on_one_line
from asr.errors import AsrError, is_out_of_memory
from asr.runtime.load import follow_load
from asr.runtime.threads import choose_threads, set_threads

__all__ = ["app", "main"]

log = logging.getLogger(__name__)

for _verbs in (
    "new", "recipes", "prepare", "train", "evaluate", "transcribe", "jobs", "pseudo_label", "serve",
    "model", "export", "bench",
):  # in the order of `asr --help`  # fmt: skip
    import_module(f"asr.cli.{_verbs}")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"lrt-asr {metadata.version('lrt-asr')}")
        raise typer.Exit


class _Escaping(logging.Formatter):
    """Messages hold names of files and texts of strangers."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return a line that a terminal shows and does not obey."""
        return on_one_line(super().formatMessage(record))


@app.callback()
def asr(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads to compute with; default: as many as cores are free."),
    ] = None,
) -> None:
    """Take the options that come before a verb."""
    chosen = choose_threads(threads)
    set_threads(chosen)
    follow_load()
    log.debug("%s", chosen)


def main() -> None:
    """Run the program: one sentence for what the user can fix, a traceback only on --debug."""
    debug = "--debug" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--debug"]
    _open_closed()
    if isinstance(sys.stdout, TextIOWrapper):
        # Results are UTF-8 whatever the locale, and names of files that are not stay as they are.
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    # Off a terminal lines stay whole: rich would wrap them at 80 columns.
    handler: logging.Handler = logging.StreamHandler()
    if err.is_terminal:
        handler = RichHandler(console=err, show_time=debug, show_level=debug, show_path=debug)
    handler.setFormatter(_Escaping("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for package in ("asr", "data_prep"):
        logging.getLogger(package).setLevel(logging.DEBUG if debug else logging.INFO)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where a full disk is reported, and not at Python's end
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        _discard_output()
        sys.exit(1)
    except (AsrError, OSError, MemoryError, RuntimeError, ImportError) as error:
        sentence = _sentence(error)
        if debug or sentence is None:
            raise
        if isinstance(error, OSError):
            _discard_output()
        _fail(sentence, error.exit_code if isinstance(error, AsrError) else 1)


def _open_closed() -> None:
    """Lead standard streams that are closed nowhere; else the next file would take their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115


def _fail(sentence: str, code: int) -> None:
    note(f"asr: {sentence}")
    sys.exit(code)


def _discard_output() -> None:
    """Drop what standard output still holds, which cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(error: Exception) -> str | None:
    """Return what to tell the user; None if the error is a bug."""
    if isinstance(error, AsrError):
        return str(error)
    if is_out_of_memory(error):
        return "out of memory: use a smaller --beam, or end other programs on the device"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename}: a file is in the way: give another path, or move it"
    if isinstance(error, OSError):
        return f"{error.filename or 'disk'}: {error.strerror or error}"
    verb = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), "")
    return missing_extra(error, verb)
