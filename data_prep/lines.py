"""What tables say about recordings, line by line, and what is wrong with a line."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asr.data.people import ERRORS, people_of

_LEAST_ROUNDING = 0.05  # seconds

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

    `unused` are the names of columns of no known kind. `places` tells by number where the lines are
    that are not in the file `path`. `foreign` is the number of a line that was read in `encoding`,
    or 0.
    """

    path: Path
    lines: list[Line] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    encoding: str = "utf-8"
    foreign: int = 0
    places: dict[int, str] = field(default_factory=dict)
    unit: str = "line"  # what numbers count

    @property
    def folder(self) -> Path:
        """Return the folder that names of recordings may be relative to."""
        return self.path if self.path.is_dir() else self.path.parent

    def add_fault(self, place: str, reason: str, what: str) -> None:
        """Add a fault: why the text at a place outside of the file `path` cannot be used."""
        number = len(self.places) + 1
        self.places[number], self.faults[number] = place, Fault(reason, what)

    def note_encoding(self, encoding: str, number: int) -> None:
        """Keep the encoding of the line added last, if it is the first that is not in UTF-8.

        A later line in a guessed encoding replaces one in UTF-16, which is certain.
        """
        is_first = not self.foreign or encoding[:6] != self.encoding[:6] == "utf-16"
        if encoding == "utf-8" or not is_first or not self.lines:
            return
        last = self.lines[-1]
        if last.number == number and not last.text.isascii():
            self.encoding, self.foreign = encoding, number

    def place(self, number: int) -> str:
        """Return where people find a line: the file, or the file and the line's number in it."""
        return self.places.get(number) or f"{self.path}, {self.unit} {number}"

    def short_place(self, number: int) -> str:
        """Return where people find a line, without the name of the table."""
        return self.places.get(number) or f"{self.unit} {number}"


def add_line(table: Transcripts, number: int, cells: Cells) -> None:
    """Add a line to a table, or the fault for which it cannot be used."""
    audio, text = cells["audio"].strip(), cells["text"].strip()
    try:
        start, seconds = _part(cells)
    except ValueError:
        start, seconds = math.nan, None
    if not (0 <= start < math.inf and (seconds is None or 0 < seconds < math.inf)):
        what = "its start or length is not a number of seconds, or its length is not above 0"
        table.faults[number] = Fault("bad_times", what)
    elif not audio:
        table.faults[number] = Fault("no_recording", "it names no recording")
    elif not text:
        table.faults[number] = Fault("no_text", f"it has no text for {audio}")
    elif text in ERRORS:
        what = f"it has no text for {audio}, but the error {text} of a spreadsheet"
        table.faults[number] = Fault("no_text", what)
    elif any("\ud800" <= c <= "\udfff" for value in cells.values() for c in value):
        what = "it has half of a character (\\uD800 to \\uDFFF)"
        if any("\ud800" <= c <= "\udfff" for c in audio):
            what = "its name is not in UTF-8: rename it, and the recording"
        table.faults[number] = Fault("bad_text", what)
    else:
        speaker, split = cells.get("speaker", "").strip(), cells.get("split", "").strip()
        speaker = speaker if people_of(speaker) else ""
        channel = int(cells["channel"]) if cells.get("channel") else None
        line = Line(number, audio, text, speaker or None, split or None, start, seconds, channel)
        table.lines.append(line)


def _part(cells: Cells) -> tuple[float, float | None]:
    """Return the start of a line's part of its recording, and its length where it has one."""
    if "start" not in cells:  # NeMo's duration is the file's, often rounded
        return 0.0, None
    start = float(cells["start"] or "0")
    end, seconds = (cells.get(kind, "").strip() for kind in ("end", "seconds"))
    length = float(seconds) if seconds else None
    if end and (length is None or is_number(end)):
        until = float(end) - start
        # A length beside an end may be the whole file's, and an end may be rounded, or none.
        if length is None or 0 < until < length - _rounding(end, start, length):
            length = until
    return start, length


def _rounding(end: str, start: float, length: float) -> float:
    """Return by how many seconds an end may be too early because it is rounded."""
    decimals = end.partition(".")[2]
    if decimals.strip("0"):
        return max(_LEAST_ROUNDING, 10.0 ** -len(decimals))
    if decimals:  # 2.0 may be rounded to whole seconds, or exact
        return min(1.0, 0.1 * length)
    return 0.0 if start.is_integer() and length.is_integer() else 1.0


def is_number(cell: str) -> bool:
    """Tell whether a cell is a number."""
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
