"""Read transcripts from the tables that people have: csv, tsv, jsonl, Kaldi and audio folders."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asr.errors import DataError
from asr.transcription.jobs import SUFFIXES
from data_prep.cells import read_cells
from data_prep.text_file import read_text

# The names of columns by what they hold, in the order of preference. They are those of Common
# Voice, LJSpeech, NeMo, Hugging Face's audiofolder and of tables that people write themselves.
NAMES = {
    "audio": ("audio_filepath", "audio_file", "audio_path", "file_name", "filename", "audio",
              "path", "file", "wav", "recording", "clip", "id"),
    "text": ("text", "sentence", "transcript", "transcription", "normalized_text", "label", "words",
             "word"),
    "speaker": ("speaker", "speaker_id", "speaker_name", "client_id", "user_id", "spk", "spk_id",
                "reader"),
    "split": ("split", "subset", "set", "partition"),
    "start": ("offset", "start"),
    "end": ("end", "stop"),
    "seconds": ("duration", "seconds"),
}  # fmt: skip
_UNNAMED = {"?", "-", "unknown", "none", "null", "n/a", "anonymous"}  # in place of a name
_KALDI = ("wav.scp", "text")
_METADATA = ("metadata.csv", "metadata.tsv", "metadata.jsonl")
_JSON = (".jsonl", ".ndjson", ".json")

Cells = Mapping[str, str]


@dataclass(frozen=True)
class Line:
    """What a table says about one recording; `number` is its line, from 1.

    `audio` is a path or a name, as written. `start` and `seconds` are its part of a longer file,
    `channel` (from 0) is one of several.
    """

    number: int
    audio: str
    text: str
    speaker: str | None = None
    split: str | None = None
    start: float = 0.0
    seconds: float | None = None
    channel: int | None = None

    @property
    def is_part(self) -> bool:
        """Tell whether it is a part of its recording."""
        return self.start > 0 or self.seconds is not None


@dataclass(frozen=True)
class Fault:
    """Why a line cannot be used: a stable word for programs, and a sentence for people."""

    reason: str
    what: str


@dataclass
class Transcripts:
    """The lines of a table, the faults of those that cannot be used, and its columns by kind.

    `unused` are the names of columns of no known kind.
    """

    path: Path
    lines: list[Line] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    encoding: str = "utf-8"


def read_transcripts(path: Path, columns: Mapping[str, str] | None = None) -> Transcripts:
    """Read a table of recordings and texts; `columns` names those whose names are not known.

    It is a csv or tsv file (with a header, or without one an audio and a text column), a jsonl
    file, or a folder with metadata.csv, metadata.jsonl or Kaldi's wav.scp and text. Raises
    DataError where it cannot be read, or where a column is missing.
    """
    named = dict(columns or {})
    if path.is_dir():
        path = _file_of(path, named)
    table = Transcripts(path)
    if path.is_dir():
        _read_kaldi(table)
    else:
        _read_rows(table, named)
    if not table.lines:
        number, fault = next(iter(table.faults.items()), (0, Fault("", "")))
        first = f" (line {number}: {fault.what})" if number else ""
        raise DataError(
            f"{path}: has no line with a recording and a text{first}: give a table of both"
        )
    return table


def _file_of(folder: Path, named: Mapping[str, str]) -> Path:
    """Return the table of a folder; Kaldi's is the folder itself."""
    if all((folder / name).is_file() for name in _KALDI):
        if named:
            option = f"--{next(iter(named))}-column"
            raise DataError(f"{folder}: is a Kaldi folder, which has no columns: omit {option}")
        return folder
    found = [folder / name for name in _METADATA if (folder / name).is_file()]
    if not found:
        names = ", ".join((*_METADATA, "wav.scp with text"))
        raise DataError(f"{folder}: has none of {names}: give the file with the transcripts")
    return found[0]


def _read_rows(table: Transcripts, named: Mapping[str, str]) -> None:
    """Read a file of rows, each a line or a JSON object."""
    text, table.encoding = read_text(table.path)
    is_json = table.path.suffix.lower() in _JSON
    rows = list(_json_rows(text, table) if is_json else _cell_rows(text, table, named))
    # JSON objects may lack a key that others have.
    names = dict.fromkeys(name for _, cells in rows for name in cells)
    if names:
        table.columns = _find_columns(table.path, list(names), named)
        table.unused = [n for n in names if n and n not in table.columns.values()]
    for number, cells in rows:
        _add(table, number, {key: cells.get(name, "") for key, name in table.columns.items()})


def _add(table: Transcripts, number: int, cells: Cells) -> None:
    """Add a line, or what is wrong with it."""
    audio, text = cells["audio"].strip(), cells["text"].strip()
    try:
        start, seconds = _part(cells)
    except ValueError:
        start, seconds = math.nan, None
    if not (0 <= start < math.inf and (seconds is None or 0 < seconds < math.inf)):
        what = "its start or length is not a number of seconds"
        table.faults[number] = Fault("bad_times", what)
    elif not audio:
        table.faults[number] = Fault("no_recording", "it names no recording")
    elif not text:
        table.faults[number] = Fault("no_text", f"it has no text for {audio}")
    elif any("\ud800" <= c <= "\udfff" for value in cells.values() for c in value):
        table.faults[number] = Fault("bad_text", "it has half of a character (\\uD800 to \\uDFFF)")
    else:
        speaker, split = cells.get("speaker", "").strip(), cells.get("split", "").strip()
        speaker = "" if speaker.casefold() in _UNNAMED else speaker
        channel = int(cells["channel"]) if cells.get("channel") else None
        line = Line(number, audio, text, speaker or None, split or None, start, seconds, channel)
        table.lines.append(line)


def _part(cells: Cells) -> tuple[float, float | None]:
    """Return the start of a line's part of its recording, and its length where it has one."""
    if "start" not in cells:  # NeMo's duration is the whole file's then, often rounded
        return 0.0, None
    start = float(cells["start"] or 0)
    if seconds := cells.get("seconds", "").strip():
        return start, float(seconds)
    end = cells.get("end", "").strip()
    return start, float(end) - start if end else None


def _json_rows(text: str, table: Transcripts) -> Iterator[tuple[int, Cells]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            cells = {str(k): _json_cell(str(k), v) for k, v in values.items()}
        except (ValueError, AttributeError, RecursionError):
            table.faults[number] = Fault("bad_row", "it is not a JSON object")
            continue
        yield number, cells


def _json_cell(name: str, value: Any) -> str:
    """Return a string or number as text; what is neither is empty, but a time that is none."""
    is_text = isinstance(value, str | int | float) and not isinstance(value, bool)
    is_time = any(name.lower() in NAMES[kind] for kind in ("start", "end", "seconds"))
    is_none = isinstance(value, float) and math.isnan(value)  # as pandas writes an empty cell
    return str(value) if is_text and (is_time or not is_none) else ""


def _cell_rows(
    text: str, table: Transcripts, named: Mapping[str, str]
) -> Iterator[tuple[int, Cells]]:
    """Yield the rows of a delimited file by the names in its header."""
    delimiter, rows = read_cells(table.path, text, table.encoding)
    header: list[str] = []
    for numbers, cells in rows:
        if not header:
            header = [cell.strip() for cell in cells]
            if _is_header(header, named):
                continue
            header = _usual_header(table.path, header, delimiter)
        if any(delimiter in cell.partition("\n")[2] for cell in cells):
            what = "a quote opens there and takes in further lines: close it, or write one line"
        elif len(cells) != len(header):
            what = f"it has {len(cells)} cells, the first line has {len(header)}"
        else:
            yield numbers[0], {name: cells[header.index(name)] for name in header}
            continue
        table.faults[numbers[0]] = Fault("bad_row", what)
        for number in numbers[1:]:
            what = f"it is within a quote that opens in line {numbers[0]}"
            table.faults[number] = Fault("bad_row", what)


def _is_header(cells: list[str], named: Mapping[str, str]) -> bool:
    """Tell whether a first row has names: known ones, or any if some are given."""
    # "start" and "stop" may be words that are said, and alone they make no header.
    kinds = NAMES.keys() - {"start", "end"}
    known = {name for kind in kinds for name in NAMES[kind]}
    has_file = any(Path(cell).suffix.lower() in SUFFIXES for cell in cells)
    return bool(named) or (not has_file and any(_plain(cell) in known for cell in cells))


def _plain(name: str) -> str:
    """Return the name of a column as it is compared: `Speaker ID` is `speaker_id`."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _usual_header(path: Path, cells: list[str], delimiter: str) -> list[str]:
    """Return names for a table without a header: audio first, text last (LJSpeech, Kaldi).

    Raises DataError where this is not known: of three columns the last may be of speakers.
    """
    if len(cells) < 2:
        raise DataError(
            f"{path}: has one column: give each line a recording and a text, under a header"
        )
    if len(cells) > 2 and delimiter != "|":
        raise DataError(
            f"{path}: its first line ({', '.join(cells):.80}) has no name that is known to be a "
            "column's: give it a header such as audio,text,speaker, or name its columns with "
            "--audio-column and --text-column"
        )
    return ["audio", *[""] * (len(cells) - 2), "text"]


def _find_columns(path: Path, header: list[str], named: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each kind. Raises DataError where a needed or named one is missing."""
    lower = {_plain(name): name for name in reversed(header)}
    found: dict[str, str] = {}
    for kind, names in NAMES.items():
        given, taken = named.get(kind), {*named.values(), *found.values()}
        name = next((lower[n] for n in names if n in lower and lower[n] not in taken), None)
        if given:
            name = given if given in header else None
        if name is None and (given or kind in ("audio", "text")):
            what = f"no column {given}" if given else f"no column that is known to hold the {kind}"
            raise DataError(
                f"{path}: has {what}, only {', '.join(header)}: name it with --{kind}-column"
            )
        if name is not None:
            found[kind] = name
    return found


def _read_kaldi(table: Transcripts) -> None:
    """Read a Kaldi data folder; commands in wav.scp are not run."""
    folder = table.path
    wavs, speakers = dict(_pairs(folder / "wav.scp")), dict(_pairs(folder / "utt2spk"))
    segments = {id: value.split() for id, value in _pairs(folder / "segments")}
    files = {id: value.split() for id, value in _pairs(folder / "reco2file_and_channel")}
    table.path = folder / "text"
    _, table.encoding = read_text(table.path)
    for number, (id, text) in enumerate(_pairs(table.path), 1):
        recording, *times = segments.get(id, [id]) or [""]
        wav, of_file = wavs.get(recording, ""), files.get(recording, [])[1:2]
        if wav.endswith("|"):
            what = f"{recording} is made by a command in wav.scp, which is not run"
            table.faults[number] = Fault("command", what)
            continue
        try:
            channel = _channel(times[2:], of_file)
        except KeyError as error:
            what = f"{recording} names the channel {error.args[0]}, neither A (the first) nor B"
            table.faults[number] = Fault("bad_channel", what)
            continue
        speaker = speakers.get(id, "")  # the utterance itself where no speaker is known
        cells = {"audio": wav, "text": text, "speaker": "" if speaker == id else speaker}
        if id in segments:
            start, end = (*times, "none", "none")[:2]
            # extract-segments takes an end of -1 for that of the recording.
            cells |= {"start": start, "end": "" if re.fullmatch(r"-1(\.0*)?", end) else end}
        _add(table, number, cells | {"channel": channel})


def _channel(of_segment: list[str], of_file: list[str]) -> str:
    """Return the channel of an utterance, from 0, if it has one. Raises KeyError for others.

    Kaldi counts those of segments from 0 (extract-segments), of reco2file_and_channel from 1.
    """
    if of_segment:
        return {"A": "0", "B": "1", "0": "0", "1": "1"}[of_segment[0].upper()]
    return {"A": "0", "B": "1", "1": "0", "2": "1"}[of_file[0].upper()] if of_file else ""


def _pairs(path: Path) -> list[tuple[str, str]]:
    """Return the keys of a Kaldi table with their values; a missing file has none."""
    if not path.is_file():
        return []
    lines = (line.split(None, 1) for line in read_text(path)[0].split("\n"))
    return [(line[0], line[1].strip() if len(line) > 1 else "") for line in lines if line]
