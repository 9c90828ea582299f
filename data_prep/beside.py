"""Read transcripts from text files that have the names of their recordings.

They are beside the recordings, or in a folder of the same subfolders.
"""

import logging
import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

from asr.errors import DataError
from asr.transcription.jobs import is_content
from data_prep.folders import read_folders
from data_prep.lines import Fault, Transcripts, add_line
from data_prep.recordings import Recordings, files_below
from data_prep.subtitles import read_labels, read_subtitles
from data_prep.text_file import read_texts

log = logging.getLogger(__name__)

_SUBTITLES = (".srt", ".vtt")
_SUFFIXES = (*_SUBTITLES, ".txt", ".lab")  # in the order of preference
_OF_A_FOLDER = ".trans.txt"  # LibriSpeech: in each line the name of a recording, and its text
_TABLES = (".csv", ".tsv", ".jsonl", ".json")
# Of seconds; or of samples (TIMIT) or 100 ns (HTK) before a word.
_TIMES = re.compile(r"\s*-?\d+[.,]\d+\s+-?\d+[.,]\d+(\s|$)|\s*\d+\s+\d{4,}\s+[^\W\d_]")

Cells = dict[str, str]


class _Text(NamedTuple):
    """What a file says: cells by its lines, or of line 0 where they are of the whole file."""

    path: Path
    lines: list[tuple[int, Cells]]
    encoding: str

    @property
    def worth(self) -> tuple[bool, bool]:
        """Tell whether it has times and whether it has text: the best of a recording is used."""
        used = [cells for _, cells in self.lines if cells["text"] and _has_length(cells)]
        return any("start" in cells for cells in used), bool(used)


def _has_length(cells: Cells) -> bool:
    return float(cells.get("start", 0)) < float(cells.get("end", math.inf))


def texts_below(folder: Path) -> list[Path]:
    """Return the text files below a folder, but hidden ones."""
    return [path for path in files_below(folder) if _is_text(path.relative_to(folder))]


def _is_text(within: PurePath) -> bool:
    is_hidden = any(part.startswith(".") for part in within.parts)
    return within.suffix.lower() in _SUFFIXES and is_content(within) and not is_hidden


def read_beside(table: Transcripts, recordings: Recordings) -> None:
    """Read the text files below the folder `table.path` that have the names of recordings.

    A file has the text of one recording, or those of its parts. `read_folders` tells splits and
    speakers. Raises DataError where no file has such a name.
    """
    groups = _by_recording(table, recordings)
    contents = read_texts([path for group in groups for path in group])
    used, others = list[_Text](), list[tuple[Path, Path]]()
    for group in groups:
        read = [text for path in group if (text := _read(table, path, contents[path]))]
        if read:
            best = max(read, key=lambda text: text.worth)
            used.append(best)
            others += [(best.path, text.path) for text in read if text is not best]
    if others:
        log.warning("%d texts are not used, for another of the same recording is, such as %s in "
                    "place of %s", len(others), *others[0])  # fmt: skip
    folders = read_folders(text.path.parent.relative_to(table.path) for text in used)
    for text in sorted(used):
        of_folder = folders[text.path.parent.relative_to(table.path)]
        for line, cells in text.lines:
            number = len(table.places) + 1
            table.places[number] = f"{text.path}, line {line}" if line else str(text.path)
            add_line(table, number, of_folder | cells)
            table.note_encoding(text.encoding, number)


def _by_recording(table: Transcripts, recordings: Recordings) -> list[list[Path]]:
    """Return the texts of each recording, the preferred kind first; the others are faults."""
    texts, found = texts_below(table.path), defaultdict[Hashable, list[Path]](list)
    for path in sorted(texts, key=lambda path: (_SUFFIXES.index(path.suffix.lower()), path)):
        within = path.relative_to(table.path)
        if path.name.lower().endswith(_OF_A_FOLDER):
            found[path].append(path)
            continue
        try:
            found[recordings.find(str(within.with_suffix("")), table.path)].append(path)
        except DataError as error:
            _add_fault(table, path, "missing", str(error))
    if not found:
        tables = [path for path in sorted(table.path.iterdir()) if path.suffix.lower() in _TABLES]
        raise DataError(
            f"{table.path}: none of its {len(texts)} text files, such as {texts[0].name}, has the "
            f"name of a recording in {recordings.root}: the text of a.wav is to be in a.txt (or "
            f".lab, .srt, .vtt), or give a table{f', such as {tables[0]}' if tables else ''}"
        )
    return list(found.values())


def _add_fault(table: Transcripts, path: Path, reason: str, what: str) -> None:
    number = len(table.places) + 1
    table.places[number], table.faults[number] = str(path), Fault(reason, what)


def _read(table: Transcripts, path: Path, content: tuple[str, str] | DataError) -> _Text | None:
    """Return what a file says; None, and a fault, where it is not known."""
    if isinstance(content, DataError):
        what = str(content).removeprefix(str(path)).lstrip(":, ")
        _add_fault(table, path, "bad_text", what)
        return None
    text, encoding = content
    within = path.relative_to(table.path)
    if path.name.lower().endswith(_OF_A_FOLDER):
        return _Text(path, list(_of_a_folder(within.parent, text)), encoding)
    audio = str(within.with_suffix(""))
    is_subtitles = path.suffix.lower() in _SUBTITLES
    parts = (
        read_subtitles(text, path.suffix.lower() == ".srt") if is_subtitles else read_labels(text)
    )
    if not parts and _has_times(text):
        what = "it has times, but not as the labels of Audacity: start, tab, end, tab, text"
        _add_fault(table, path, "bad_times", what)
        return None
    lines: list[tuple[int, Cells]] = [
        (one.line, {"audio": audio, "text": one.text, "start": one.start, "end": one.end})
        for one in parts or []
    ]
    # Subtitles without a cue have no text.
    whole = {"audio": audio, "text": "" if is_subtitles else " ".join(text.split())}
    return _Text(path, lines or [(0, whole)], encoding)


def _of_a_folder(folder: PurePath, text: str) -> Iterator[tuple[int, Cells]]:
    for number, line in enumerate(text.split("\n"), 1):
        if pair := line.split(None, 1):
            said = pair[1].strip() if len(pair) > 1 else ""
            yield number, {"audio": str(folder / pair[0]), "text": said}


def _has_times(text: str) -> bool:
    """Tell whether most lines begin with two times."""
    lines = [line for line in text.split("\n") if line.strip()]
    return sum(bool(_TIMES.match(line)) for line in lines) > len(lines) / 2
