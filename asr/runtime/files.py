"""Files: written whole or not at all, and read with their types."""

import csv
import errno
import io
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from asr.errors import AsrError, BundleError

Row = TypeVar("Row", bound=BaseModel)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then move it to `path`. Raises AsrError if that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
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


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: temporary.write_text(text, "utf-8"))


def read_json(path: Path, row_type: type[Row], what: str) -> Row | None:
    """Read a JSON file, None if it is missing.

    Raises BundleError where it is damaged: that it is not `what`, which says what to do too.
    """
    if not path.is_file():
        return None
    try:
        return row_type.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BundleError(f"{path}: not {what}") from error


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows, at least one, under a line of the first one's keys."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_csv(path: Path, row_type: type[Row], error_type: type[AsrError]) -> list[Row]:
    """Read the rows of a CSV file with the columns of `row_type`, empty cells and nan as None.

    A missing file has no rows. Raises `error_type` that names the file, or the line that is wrong.
    """
    if not path.is_file():
        return []
    rows, columns = [], list(row_type.model_fields)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise error_type(f"{path}: not a CSV file ({error}): move it away") from error
    for number, line in enumerate(lines, 2):
        try:
            cells = {key: None if line[key] in ("", "nan") else line[key] for key in columns}
            rows.append(row_type.model_validate(cells))
        except (ValidationError, KeyError) as error:
            raise error_type(
                f"{path}, line {number}: not a row of {','.join(columns)}: correct or delete it"
            ) from error
    return rows
