"""Read the rows of delimited text, such as csv: find its delimiter, and what its quotes mean."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from asr.errors import DataError

_MOST_LINES = 20  # of a row: where there are more, a quote is not closed
_OPEN_QUOTE = "a quote opens there and is not closed"
_EXCEL = re.compile(r'"?sep=([;,|\t])"?(?=\r?\n)')  # the first line of a table for Excel
# A whole table of tabs in which each quote begins or ends a cell, or is doubled in a quoted cell. A
# quoted cell holds tabs or line breaks, not both: otherwise two lone quotes in different lines
# could enclose a cell.
_QUOTED = re.compile(
    r'(?:(?:"(?:[^"\r\n]|"")*+"|"(?:[^"\t]|"")*+"|[^"\t\r\n]*+)(?:\t|\r?\n|\r|\Z))*+', re.ASCII
)


Row = tuple[range, list[str]]  # the numbers of its lines, from 1, and its cells


def read_cells(path: Path, text: str, encoding: str) -> tuple[str, Iterator[Row]]:
    """Return the delimiter of a table, and an iterator over its rows.

    The iterator raises DataError at what cannot be a row of a table.
    """
    lines = [line for line in text.split("\n") if line.strip()][:_MOST_LINES] or [""]
    first, n_lines = lines[0], {one: sum(one in line for line in lines) for one in ";,"}
    usual = max(";,", key=lambda one: (one in first, n_lines[one], first.count(one)))
    delimiter = next((one for one in "\t|" if one in first), usual)
    has_quotes = delimiter in ";,"
    if excel := _EXCEL.match(text):
        delimiter, text, has_quotes = excel[1], text[excel.end() :], True
    elif delimiter == "\t":
        # Common Voice's quotes are text. Quotes enclose cells in what a spreadsheet saves as
        # "Unicode text" (UTF-16), and in a table in which each quote is in its place.
        has_quotes = encoding.startswith("utf-16") or _QUOTED.fullmatch(text) is not None
    return delimiter, _rows(path, text, delimiter, has_quotes)


def _rows(path: Path, text: str, delimiter: str, has_quotes: bool) -> Iterator[Row]:
    file = io.StringIO(text, newline="")
    if has_quotes:
        reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
    else:
        reader = csv.reader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    start = 1
    try:
        for cells in reader:
            number, start = start, reader.line_num + 1
            if start - number > _MOST_LINES:
                start = number
                raise csv.Error(_OPEN_QUOTE)
            if any(cell.strip() for cell in cells):
                yield range(number, start), cells
    except csv.Error as error:
        # The csv module raises at a cell of 128 KiB, before the lines of the row can be counted.
        is_open = has_quotes and reader.line_num - start >= _MOST_LINES
        what = _OPEN_QUOTE if is_open else str(error)
        raise DataError(
            f"{path}, line {start}: not a row of a table ({what}): correct it, or save the table "
            "as csv again"
        ) from error
