"""Read transcripts as people have them: csv, tsv, jsonl, Kaldi's and audio folders, and texts."""

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr.errors import DataError
from data_prep.beside import list_unread, read_beside, texts_below
from data_prep.cells import read_cells
from data_prep.columns import NAMES, TIMES, find_columns, plain
from data_prep.folders import read_folders
from data_prep.header import is_header, usual_header
from data_prep.kaldi import read_kaldi
from data_prep.lines import Cells, Fault, Transcripts, add_line, is_number
from data_prep.parts import has_tiers
from data_prep.recordings import Recordings
from data_prep.splits import split_of
from data_prep.text_file import read_text

log = logging.getLogger(__name__)

_KALDI = ("wav.scp", "text")
_METADATA = ("metadata.csv", "metadata.tsv", "metadata.jsonl")
_JSON = (".jsonl", ".ndjson", ".json")
_OF_TIMES = {"start", "begin", "onset", "offset", "end", "stop"}  # words in names of columns
_CLOCKS = {"start_time", "begin", "end_time"}  # which may hold the time of day
_COMMA = re.compile(r"(?<=\d),(?=\d+$)")


def read_transcripts(
    path: Path, columns: Mapping[str, str] | None = None, recordings: Recordings | None = None
) -> Transcripts:
    """Read a table of recordings and texts; `columns` maps kinds to names that are not known here.

    `path` is a csv or tsv file (with a header, or without one an audio and a text column), a jsonl
    file, or one of these folders:

    - with metadata.csv, metadata.tsv or metadata.jsonl, or with folders that have one;
    - Kaldi's, with wav.scp and text;
    - with text files that have the names of the `recordings` (by default those in the folder);
      `columns["text"]` then names a tier.

    Raises DataError if it cannot be read, or if a column is missing.
    """
    table, named = Transcripts(path), dict(columns or {})
    if path.is_dir():
        _read_folder(table, named, recordings)
    else:
        _read_rows(table, named)
    if not table.lines:
        number, fault = next(iter(table.faults.items()), (0, Fault("", "")))
        first = f" ({table.short_place(number)}: {fault.what})" if number else ""
        is_of_files = table.places and not table.columns
        advice = "correct the files" if is_of_files else "give a table of both"
        raise DataError(f"{table.path}: has no line with a recording and a text{first}: {advice}")
    if table.encoding != "utf-8" and not table.foreign:
        foreign = (line.number for line in table.lines if not line.text.isascii())
        table.foreign = next(foreign, table.lines[0].number)
    return table


def _read_folder(table: Transcripts, named: dict[str, str], recordings: Recordings | None) -> None:
    """Read what a folder has: Kaldi's files, tables, or texts."""
    folder = table.path
    if all((folder / name).is_file() for name in _KALDI):
        _check_no_columns(folder, "is a Kaldi folder", named)
        read_kaldi(table)
    elif found := _metadata(folder):
        table.path = found
        _read_rows(table, named)
    elif parts := list(filter(None, map(_metadata, _visible(folder)))):
        _join(table, parts, named, recordings or Recordings(folder, folder))
    elif texts := texts_below(folder):
        tier = named.pop("text") if "text" in named and any(map(has_tiers, texts)) else None
        _check_no_columns(folder, "has a text for each recording", named)
        read_beside(table, recordings or Recordings(folder, folder), tier)
    else:
        names = ", ".join((*_METADATA, "wav.scp with text"))
        tables = sorted(p for p in folder.iterdir() if p.suffix.lower() in (*_JSON, ".csv", ".tsv"))
        raise DataError(
            f"{folder}: has none of {names}, nor a text such as a.txt for a.wav: give the file "
            f"with the transcripts{f', such as {tables[0]}' if tables else ''}"
        )


def _metadata(folder: Path) -> Path | None:
    """Return the table of a folder, if it has one."""
    found = (folder / name for name in _METADATA)
    return next(filter(os.path.isfile, found), None)  # isfile: False in a closed folder


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _check_no_columns(folder: Path, what: str, named: Mapping[str, str]) -> None:
    if named:
        option = f"--{next(iter(named))}-column"
        raise DataError(f"{folder}: {what}, which has no columns: omit {option}")


def _join(
    table: Transcripts, paths: Sequence[Path], named: Mapping[str, str], recordings: Recordings
) -> None:
    """Read the tables of several folders; recordings may be named relative to a table's folder."""
    parts = {path.parent.relative_to(table.path): Transcripts(path) for path in paths}
    for part in parts.values():
        _read_rows(part, named)
    by_line = {folder for folder, part in parts.items() if any(one.speaker for one in part.lines)}
    has_splits = any(split_of(line.split) for part in parts.values() for line in part.lines)
    folders = read_folders(parts, is_speaker_known=len(by_line) == len(parts))
    with_recordings = {Path(*one.parts[:1]) for one in recordings.within.values()}
    for folder, part in parts.items():
        # If the folder has no recordings, the names in its table are those of recordings elsewhere.
        own = folder if folder in with_recordings else Path()
        numbers = sorted([*part.faults, *(line.number for line in part.lines)])
        new = {number: i for i, number in enumerate(numbers, len(table.places) + 1)}
        table.places |= {new[number]: part.place(number) for number in numbers}
        table.faults |= {new[number]: fault for number, fault in part.faults.items()}
        for line in part.lines:
            number = new[line.number]
            audio = _named(line.audio, folder, own, table.path, recordings)
            by_folder = folders[folder]["split"] or None
            split = line.split or by_folder if has_splits else by_folder or line.split
            speaker = line.speaker if folder in by_line else folders[folder]["speaker"] or None
            moved = replace(line, number=number, audio=audio, split=split, speaker=speaker)
            table.lines.append(moved)
            table.note_encoding(part.encoding, number)
        table.columns |= part.columns
        table.unused += [name for name in part.unused if name not in table.unused]
    list_unread(table, parts, recordings)


def _named(audio: str, folder: Path, own: Path, base: Path, recordings: Recordings) -> str:
    """Return the name, relative to `base`, of a recording below `own` in the table of `folder`."""
    for name in (str(folder / audio), audio):
        with suppress(DataError):
            if recordings.within[recordings.find(name, base)].is_relative_to(own):
                return name
    return str(folder / audio)


def _read_rows(table: Transcripts, named: Mapping[str, str]) -> None:
    """Read a file of rows, each a line or a JSON object."""
    text, table.encoding = read_text(table.path)
    is_json = table.path.suffix.lower() in _JSON
    rows = list(_json_rows(text, table) if is_json else _cell_rows(text, table, named))
    # JSON objects may lack a key that others have.
    names = dict.fromkeys(name for _, cells in rows for name in cells)
    if names:
        table.columns = find_columns(table.path, list(names), named)
        table.unused = [n for n in names if n and n not in table.columns.values()]
    found = [{key: cells.get(name, "") for key, name in table.columns.items()} for _, cells in rows]
    if not any("." in cells.get(kind, "") for cells in found for kind in TIMES):
        for one in found:  # a spreadsheet's decimal commas
            one |= {k: _COMMA.sub(".", one[k]) for k in TIMES if k in one}
    for kind in TIMES:
        name = table.columns.get(kind)
        times = [one[kind] for one in found if one.get(kind, "").strip()]
        if name and plain(name) in _CLOCKS and 2 * sum(map(is_number, times)) < len(times):
            table.columns.pop(kind)
            table.unused.append(name)
            found = [{k: v for k, v in one.items() if k != kind} for one in found]
    _say_times(table)
    for (number, _), cells in zip(rows, found, strict=True):
        add_line(table, number, cells)


def _say_times(table: Transcripts) -> None:
    """Warn which columns may hold times, where no start or no end is known."""
    times = [name for name in table.unused if _OF_TIMES & set(plain(name).split("_"))]
    has_start, has_end = "start" in table.columns, bool({"end", "seconds"} & table.columns.keys())
    if not times or (has_start and has_end):
        return
    taken = "from their start to the end" if has_start else "whole"
    log.warning("%s: recordings are taken %s: if %s tell which part has the text, give seconds in "
                "columns start and end", table.path, taken, ", ".join(times))  # fmt: skip


def _json_rows(text: str, table: Transcripts) -> Iterator[tuple[int, Cells]]:
    """Yield the objects of a file that has one in each line, or an array of them."""
    for number, values in _json_values(text, table):
        if not isinstance(values, dict) or not values:
            table.faults[number] = Fault("bad_row", "it is not a JSON object with values")
            continue
        yield number, {key: _json_cell(key, value) for key, value in values.items()}


def _json_values(text: str, table: Transcripts) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each line, or of each item of an array; None for what is no JSON.

    Raises DataError for an array that is not whole.
    """
    if text.lstrip().startswith("["):
        table.unit = "object"
        try:
            yield from enumerate(json.loads(text), 1)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{table.path}: begins as a JSON array and is none ({error}): write one object in "
                "each line"
            ) from error
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, None


def _json_cell(name: str, value: Any) -> str:
    """Return a string or number as text, and "" for other values.

    NaN is "" too, except as a time. Hugging Face's object for a recording is its path.
    """
    if isinstance(value, dict):
        value = value.get("path")
    is_text = isinstance(value, str | int | float) and not isinstance(value, bool)
    is_time = any(name.lower() in NAMES[kind] for kind in TIMES)
    is_none = isinstance(value, float) and math.isnan(value)  # as pandas writes an empty cell
    return str(value) if is_text and (is_time or not is_none) else ""


def _cell_rows(
    text: str, table: Transcripts, named: Mapping[str, str]
) -> Iterator[tuple[int, Cells]]:
    """Yield the rows of a delimited file by the names in its header."""
    delimiter, read = read_cells(table.path, text, table.encoding)
    rows, header, short = list(read), list[str](), list[int]()
    for numbers, cells in rows:
        if not header:
            header = [cell.strip() for cell in cells]
            if is_header(header, named):
                continue
            header = usual_header(table.path, [cells for _, cells in rows], delimiter)
        if any(delimiter in cell.partition("\n")[2] for cell in cells):
            what = "a quote opens there and takes in further lines: close it, or write one line"
        elif any(cell.strip() for cell in cells[len(header) :]):
            what = f"it has {len(cells)} cells, the first line has {len(header)}"
        else:  # Excel leaves out empty cells at the end, or adds some
            short += numbers[:1] if len(cells) < len(header) else []
            whole = [*cells, *[""] * (len(header) - len(cells))]
            yield numbers[0], {name: whole[header.index(name)] for name in header}
            continue
        table.faults[numbers[0]] = Fault("bad_row", what)
        for number in numbers[1:]:
            what = f"it is within a quote that opens in line {numbers[0]}"
            table.faults[number] = Fault("bad_row", what)
    if short:
        log.warning("%s: %d rows, the first in line %d, have fewer cells than the first line: the "
                    "others are taken to be empty", table.path, len(short), short[0])  # fmt: skip
