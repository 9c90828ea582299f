"""The command line: its verbs are listed by `asr --help`.

Verbs import what they need inside, so that `asr --help` and a mistyped option answer at once.
Results go to standard output, everything else to standard error.
"""

import logging
import os
import sys
from io import TextIOWrapper

from rich.logging import RichHandler

from asr.cli import prepare, train, evaluate, transcribe, serve, model, bench  # isort: skip  # as help lists
from asr.cli.options import app, err
from asr.errors import AsrError, is_out_of_memory

__all__ = [
    "app", "bench", "evaluate", "main", "model", "prepare", "serve", "train", "transcribe",
]  # fmt: skip


def main() -> None:
    """Run the program: one sentence for what the user can fix, a traceback only on --debug."""
    debug = "--debug" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--debug"]
    if isinstance(sys.stdout, TextIOWrapper):  # a file's name need not be UTF-8: as it came
        sys.stdout.reconfigure(errors="surrogateescape")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_handler(debug)])
    logging.getLogger("asr").setLevel(logging.DEBUG if debug else logging.INFO)
    logging.getLogger("data_prep").setLevel(logging.DEBUG if debug else logging.INFO)
    try:
        app()
    except AsrError as error:
        if debug:
            raise
        err.print(f"asr: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        err.print("asr: interrupted")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if debug:
            raise
        what = error.strerror or str(error)
        if isinstance(error, FileExistsError | NotADirectoryError):
            what = "a file is in the way: give another path, or move it"
        err.print(f"asr: {error.filename or 'disk'}: {what}", soft_wrap=True)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if debug or not is_out_of_memory(error):
            raise
        err.print("asr: memory is out: use a smaller --beam, or end what else runs on the device")
        sys.exit(1)


def _handler(debug: bool) -> logging.Handler:
    return RichHandler(console=err, show_time=debug, show_level=debug, show_path=debug)
