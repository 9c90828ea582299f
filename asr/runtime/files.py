"""Files: written whole or not at all, and read with their types."""

import contextlib
import csv
import errno
import fcntl
import io
import logging
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import BinaryIO, TypeVar, cast

from pydantic import BaseModel, ValidationError

from asr.errors import AsrError, BundleError, ConfigError

log = logging.getLogger(__name__)

Row = TypeVar("Row", bound=BaseModel)

LOCK = "lock"  # the file by which a process has a folder for itself
_LOCK_ATTEMPTS = 10  # to lock a file, which others may remove meanwhile
PARTIAL = ".partial-"  # begins the name of a folder that replaces another when it is whole
TEMPORARY = ".asr-*.tmp"  # matches a file that is not whole yet
_STALE_SECONDS = 24 * 3600  # no file takes longer to write
_MOST_BYTES = 1 << 26  # of a file that is read as a whole


def temporary_beside(path: Path) -> Path:
    """Return a new path in the same folder, hidden.

    Its name is short, because `path` may have the longest name there is. It is random, because
    processes of several containers may have the same process numbers.
    """
    return path.with_name(TEMPORARY.replace("*", secrets.token_hex(8)))


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then move it to `path`. Raises AsrError if that fails.

    The permissions of a file that was there before are kept.
    """
    temporary = temporary_beside(path)
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else None
        if mode is not None:
            temporary.touch(0o600)
        write(temporary)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        raise AsrError(
            f"{path}: cannot be written ({error.strerror or error}): the old file is unchanged"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def open_regular(path: Path) -> BinaryIO:
    """Open a plain file for reading. Raises OSError for others: opening a pipe could never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.ESPIPE, "not a plain file", str(path))
    return os.fdopen(descriptor, "rb")


@cache
def stdin_copy() -> BinaryIO:
    """Return a file with all that standard input holds, which can be read only once.

    Raises ConfigError where it is a terminal, AsrError where the disk has no room for it.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise ConfigError(
            "- is standard input, which is a terminal here: give a file, or a pipe into the command"
        )
    try:
        copy = TemporaryFile()  # noqa: SIM115
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
    except OSError as error:
        raise AsrError(
            f"standard input cannot be copied to {gettempdir()} ({error.strerror}): free some "
            "space or set TMPDIR"
        ) from error
    return cast(BinaryIO, copy)


def remove_stale(folder: Path) -> None:
    """Remove temporary files and folders that killed processes have left in a folder."""
    for path in (*folder.glob(TEMPORARY), *folder.glob(f"{PARTIAL}*")):
        with contextlib.suppress(FileNotFoundError):  # its owner may finish it now
            if path.stat().st_mtime < time.time() - _STALE_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def lock_folder(folder: Path) -> io.BufferedWriter:
    """Make a folder and lock it for this process, until the result is closed or the process ends.

    Raises ConfigError if another process has it. The kernel frees the lock of a killed process;
    forked processes do not inherit it.
    """
    for _ in range(_LOCK_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):  # a run that fails removes what it made
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / LOCK).open("ab")
            if not _lock(file, folder) or _is_at(file, folder / LOCK):
                return file
            file.close()
    raise _in_use(folder)


def _lock(file: io.BufferedWriter, folder: Path) -> bool:
    """Lock a folder's file; return whether its file system can. Raises ConfigError if in use."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        file.close()
        raise _in_use(folder) from error
    except OSError as error:
        log.warning("%s: start no second run there, it cannot be locked (%s)", folder, error)
        return False
    return True


def _is_at(file: io.BufferedWriter, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _in_use(folder: Path) -> ConfigError:
    return ConfigError(
        f"{folder}: another process is at work there: wait until it ends, or give another folder"
    )


def read_bytes(path: Path, most: int = _MOST_BYTES) -> bytes:
    """Read a plain file of at most `most` bytes as a whole. Raises OSError for others."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: temporary.write_text(text, "utf-8"))


def read_json(path: Path, row_type: type[Row], what: str) -> Row | None:
    """Read a JSON file, None if it is missing.

    Raises BundleError where it is damaged. Its message says "not `what`"; `what` also says what to
    do.
    """
    if not path.is_file():
        return None
    try:
        return row_type.model_validate_json(read_bytes(path))
    except (ValidationError, OSError) as error:
        raise BundleError(f"{path}: not {what}") from error


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows, at least one, under a line of the last row's keys; earlier rows may lack some."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[-1], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_csv(path: Path, row_type: type[Row], error_type: type[AsrError]) -> list[Row]:
    """Read the rows of a CSV file with the columns of `row_type`, empty cells and nan as None.

    Columns of fields with a default may be missing. A missing file has no rows. Raises
    `error_type` that names the file, or the line that is wrong.
    """
    if not path.is_file():
        return []
    rows, columns = [], row_type.model_fields
    try:
        text = read_bytes(path).decode("utf-8")
        lines = list(csv.DictReader(io.StringIO(text, newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise error_type(f"{path}: not a CSV file ({error}): move it away") from error
    for number, line in enumerate(lines, 2):
        try:
            known = [key for key in columns if key in line or columns[key].is_required()]
            cells = {key: None if line[key] in ("", "nan") else line[key] for key in known}
            rows.append(row_type.model_validate(cells))
        except (ValidationError, KeyError) as error:
            raise error_type(
                f"{path}, line {number}: not a row of {','.join(columns)}: correct or delete it"
            ) from error
    return rows
