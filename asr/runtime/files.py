"""TODO: files."""

import os
from collections.abc import Callable
from pathlib import Path

from asr.errors import AsrError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then put it in the place of `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    except OSError as error:
        raise AsrError(
            f"{path}: cannot be written ({error.strerror or error}): what was there stays"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
