"""Read transcripts from the tables that people have: csv, tsv, jsonl, Kaldi and audio folders."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asr.errors import DataError

# The names of columns by what they hold, in the order of preference. They are those of Common
# Voice, LJSpeech, NeMo, Hugging Face's audiofolder and of tables that people write themselves.
NAMES = {
    "audio": ("audio_filepath", "audio_file", "file_name", "filename", "audio", "path", "file",
              "wav", "recording", "clip", "id"),
    "text": ("text", "sentence", "transcript", "transcription", "normalized_text", "label", "words",
             "word"),
    "speaker": ("speaker", "speaker_id", "client_id", "spk", "spk_id", "reader"),
    "split": ("split", "subset", "set", "partition"),
    "start": ("offset", "start"),
    "seconds": ("duration", "seconds"),
}  # fmt: skip
_KALDI = ("wav.scp", "text")
_METADATA = ("metadata.csv", "metadata.tsv", "metadata.jsonl")
_MOST_CELL = 1 << 20

Cells = Mapping[str, str]


@dataclass(frozen=True)
class Line:
    """What a table says about one recording; `number` is its line, from 1.

    `audio` is a path or a name, as written. `start` and `seconds` are its part of a longer file.
    """

    number: int
    audio: str
    text: str
    speaker: str | None = None
    split: str | None = None
    start: float = 0.0
    seconds: float | None = None


@dataclass
class Transcripts:
    """The lines of a table, the sentences about those that cannot be used, and its columns."""

    path: Path
    lines: list[Line] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"


def read_transcripts(path: Path, columns: Mapping[str, str] | None = None) -> Transcripts:
    """Read a table of recordings and texts; `columns` names those whose names are not known.

    It is a csv or tsv file (with a header, or without one an audio and a text column), a jsonl
    file, or a folder with metadata.csv, metadata.jsonl or Kaldi's wav.scp and text. Raises
    DataError where it cannot be read, or where a column is missing.
    """
    if path.is_dir():
        if all((path / name).is_file() for name in _KALDI):
            return _read_kaldi(path)
        found = [path / name for name in _METADATA if (path / name).is_file()]
        if not found:
            names = ", ".join((*_METADATA, "wav.scp with text"))
            raise DataError(f"{path}: has none of {names}: give the file with the transcripts")
        path = found[0]
    table = Transcripts(path)
    rows = _json_rows if path.suffix.lower() in (".jsonl", ".ndjson", ".json") else _cell_rows
    wanted = dict(columns or {})
    for number, cells in rows(_decoded(table), table, wanted):
        table.columns = table.columns or _find_columns(path, list(cells), wanted)
        _add(table, number, {key: cells.get(name, "") for key, name in table.columns.items()})
    if not table.lines:
        raise DataError(f"{path}: has no line with a recording and a text: give a table of both")
    return table


def _add(table: Transcripts, number: int, cells: Cells) -> None:
    """Add a line, or what is wrong with it."""
    audio, text = cells["audio"].strip(), cells["text"].strip()
    try:
        start = float(cells.get("start") or 0)
        # NeMo's duration without an offset is the whole file's, often rounded.
        seconds = float(cells["seconds"]) if cells.get("seconds") and "start" in cells else None
    except ValueError:
        table.faults[number] = "its start or length is not a number of seconds"
        return
    if not audio or not text:
        table.faults[number] = "it has no recording" if not audio else "it has no text"
        return
    speaker, split = cells.get("speaker") or None, cells.get("split") or None
    table.lines.append(Line(number, audio, text, speaker, split, start, seconds))


def _decoded(table: Transcripts) -> str:
    """Return a file's text in UTF-8, UTF-16 (by its mark) or GB18030, whichever it is wholly in."""
    try:
        data = table.path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{table.path}: cannot be read ({error.strerror}): check the path"
        ) from error
    marked = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    for encoding in ("utf-16",) if marked else ("utf-8-sig", "gb18030"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            continue
        table.encoding = encoding.removesuffix("-sig")
        return text
    raise DataError(
        f"{table.path}, line {line}: neither UTF-8 nor GB18030, or a mixture of encodings: save the "
        "whole file as UTF-8"
    )


def _json_rows(text: str, table: Transcripts, _: Mapping[str, str]) -> Iterator[tuple[int, Cells]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            cells = {str(k): "" if v is None else str(v) for k, v in values.items()}
        except (ValueError, AttributeError, RecursionError):
            table.faults[number] = "it is not a JSON object"
            continue
        yield number, cells


def _cell_rows(
    text: str, table: Transcripts, wanted: Mapping[str, str]
) -> Iterator[tuple[int, Cells]]:
    """Yield the rows of a delimited file by the names in its header."""
    first = text.partition("\n")[0]
    delimiter = max("\t|;,", key=first.count)
    quoting = csv.QUOTE_NONE if delimiter in "\t|" else csv.QUOTE_MINIMAL
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting)
    header: list[str] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                if _is_header(header, wanted):
                    continue
                header = _usual_header(table.path, cells)
            if len(cells) != len(header):
                what = f"it has {len(cells)} cells, the first line has {len(header)}"
                table.faults[reader.line_num] = what
                continue
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise DataError(
            f"{table.path}, line {reader.line_num}: not a table ({error}): save it as csv again"
        ) from error


def _is_header(cells: list[str], wanted: Mapping[str, str]) -> bool:
    known = {name for names in NAMES.values() for name in names} | set(wanted.values())
    return any(cell in known or cell.lower() in known for cell in cells)


def _usual_header(path: Path, cells: list[str]) -> list[str]:
    """Return names for a table without a header: audio first, text last (LJSpeech, Kaldi)."""
    if len(cells) < 2:
        raise DataError(
            f"{path}: has one column: give each line a recording and a text, under a header"
        )
    return ["audio", *(f"column {i}" for i in range(2, len(cells))), "text"]


def _find_columns(path: Path, header: list[str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each kind. Raises DataError where a needed or named one is missing."""
    lower = {name.lower(): name for name in reversed(header)}
    found = {}
    for kind, names in NAMES.items():
        given = wanted.get(kind)
        name = given if given in header else next((lower[n] for n in names if n in lower), None)
        if given and given not in header:
            name = None
        if name is None and (given or kind in ("audio", "text")):
            what = f"no column {given}" if given else f"no column that is known to hold the {kind}"
            raise DataError(
                f"{path}: has {what}, only {', '.join(header)}: name it with --{kind}-column"
            )
        if name is not None and name not in found.values():
            found[kind] = name
    return found


def _read_kaldi(folder: Path) -> Transcripts:
    """Read a Kaldi data folder; commands in wav.scp are not run."""
    table = Transcripts(folder / "text")
    texts = _pairs(folder / "text")
    wavs, speakers = _pairs(folder / "wav.scp"), _pairs(folder / "utt2spk")
    segments = {id: value.split() for id, value in _pairs(folder / "segments").items()}
    for number, (id, text) in enumerate(texts.items(), 1):
        recording, *times = segments.get(id, [id])
        wav = wavs.get(recording, "")
        if wav.endswith("|"):
            table.faults[number] = f"{recording} is made by a command, which is not run"
            continue
        cells = {"audio": wav, "text": text, "speaker": speakers.get(id, "")}
        if len(times) == 2:
            try:
                cells |= {"start": times[0], "seconds": str(float(times[1]) - float(times[0]))}
            except ValueError:
                table.faults[number] = "its segment is not two times"
                continue
        _add(table, number, cells)
    return table


def _pairs(path: Path) -> dict[str, str]:
    """Return the values of a Kaldi table by its keys; a missing file has none."""
    if not path.is_file():
        return {}
    lines = [line.strip() for line in _decoded(Transcripts(path)).splitlines()]
    return {key: value.strip() for key, _, value in (line.partition(" ") for line in lines if line)}
