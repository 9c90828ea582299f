"""Read transcripts from text files that have the names of their recordings.

The text files are beside the recordings, or in another folder with the same subfolders.
"""

import logging
import math
import os
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path, PurePath
from typing import NamedTuple

from asr.data.people import key_of_person, person
from asr.errors import DataError
from asr.runtime.storage import RemoteFile
from asr.transcription.jobs import is_content
from data_prep.folders import read_folders
from data_prep.lines import Fault, Transcripts, add_line
from data_prep.parts import SUBTITLES, WITH_TIERS, read_parts
from data_prep.recordings import Recordings, files_below
from data_prep.subtitles import Part
from data_prep.text_file import read_texts

log = logging.getLogger(__name__)

_SUFFIXES = (*WITH_TIERS, *SUBTITLES, ".txt", ".lab")  # in the order of preference
_OF_A_FOLDER = ".trans.txt"  # LibriSpeech: in each line the name of a recording, and its text
_TABLES = (".csv", ".tsv", ".jsonl", ".json")

Cells = dict[str, str]


class _Text(NamedTuple):
    """What a text file says: the cells of each line, or of line 0 if the file is one text.

    `folder` is the folder of its recordings. If there are no lines, `fault` is the reason.
    """

    path: Path
    folder: PurePath
    lines: list[tuple[int, Cells]]
    encoding: str
    fault: Fault | None = None

    @property
    def has_text(self) -> bool:
        """Tell whether at least one line can be used."""
        return self.worth[1]

    @property
    def speakers(self) -> set[str]:
        """Return the speakers that the lines name, and "" for lines that name none."""
        return {person(cells.get("speaker", "")) for _, cells in self.lines}

    @property
    def worth(self) -> tuple[bool, bool]:
        """Return (has times, has text); of several texts a recording uses the one of most worth."""
        used = [cells for _, cells in self.lines if cells["text"] and _has_length(cells)]
        return any("start" in cells for cells in used), bool(used)


def _has_length(cells: Cells) -> bool:
    return float(cells.get("start", 0)) < float(cells.get("end", math.inf))


def texts_below(folder: Path) -> list[Path]:
    """Return the text files below a folder, except hidden ones."""
    return [path for path in files_below(folder) if _is_text(path.relative_to(folder))]


def _is_text(within: PurePath) -> bool:
    is_hidden = any(part.startswith(".") for part in within.parts)
    return within.suffix.lower() in _SUFFIXES and is_content(within) and not is_hidden


class _Texts(NamedTuple):
    """The text files of a recording, preferred kinds first: those at its path, and others."""

    near: list[Path]
    far: list[Path]


def read_beside(table: Transcripts, recordings: Recordings, tier: str | None = None) -> None:
    """Read the text files below the folder `table.path` that have the names of recordings.

    A file has the text of one recording, the texts of its parts, or the texts of a folder's
    recordings. `tier` names the tier of the text. `read_folders` finds splits and speakers in the
    names of folders. Lines and faults are added to `table`. Raises DataError where no file has the
    name of a recording.
    """
    of_folders = [path for path in texts_below(table.path) if _is_of_a_folder(path)]
    groups = _by_recording(table, recordings)
    if not (groups or of_folders):
        raise _no_text(table)
    files = chain(of_folders, *(chain(*group) for group in groups.values()))
    contents = _Contents(table, recordings, read_texts(list(files)), tier)
    used, others = list[_Text](), list[tuple[Path, Path]]()
    owners = dict[Path | RemoteFile, Path]()
    for recording, group in groups.items():
        if not (read := contents.of_recording(recording, group)):
            continue
        best = max(read, key=lambda text: text.worth)
        used.append(best)
        for text in read:
            if text.fault and (text is best or text.fault.reason in ("bad_text", "bad_times")):
                table.add_fault(str(text.path), text.fault.reason, text.fault.what)
            elif text is not best:
                others.append((best.path, text.path))
        if best.has_text:
            owners[recording] = best.path
    for path in of_folders:
        used += contents.of_folder(path, owners, others)
    if others:
        log.warning("%d texts are not used, for another of the same recording is, such as %s in "
                    "place of %s", len(others), *others[0])  # fmt: skip
    # A text in no folder that cannot be used does not count against folders that are splits.
    whole = [text for text in used if not text.fault or text.fault.reason == "no_text"]
    folders = read_folders(
        (text.folder for text in whole if text.has_text or text.folder.parts),
        is_speaker_known=all("" not in text.speakers for text in used if text.has_text),
    )
    _forget_second_names(folders, used)
    for text in sorted(used):
        for line, cells in text.lines:
            number = len(table.places) + 1
            table.places[number] = f"{text.path}, line {line}" if line else str(text.path)
            add_line(table, number, folders.get(text.folder, {}) | cells)
            table.note_encoding(text.encoding, number)


def _forget_second_names(folders: Mapping[PurePath, Cells], texts: Sequence[_Text]) -> None:
    """Remove a folder's speaker where its texts name only others: they may be the same person."""
    named = defaultdict[str, set[str]](set)
    for text in texts:
        folder = folders.get(text.folder, {}).get("speaker", "")
        named[folder] |= {key_of_person(name) for name in text.speakers if name}
    for cells in folders.values():
        names = named[cells["speaker"]]
        if names and key_of_person(cells["speaker"]) not in names:
            cells["speaker"] = ""


def _is_of_a_folder(path: Path) -> bool:
    return path.name.lower().endswith(_OF_A_FOLDER)


def _by_recording(table: Transcripts, recordings: Recordings) -> dict[Path | RemoteFile, _Texts]:
    """Return the texts of each recording; add a fault for a text without a recording.

    A text is near if it has the path of a recording, in the same folder or in the corresponding
    subfolder. Any other text may have the name of a recording in any folder.
    """
    found = defaultdict[Path | RemoteFile, _Texts](lambda: _Texts([], []))
    texts = [path for path in texts_below(table.path) if not _is_of_a_folder(path)]
    for path in sorted(texts, key=lambda path: (_SUFFIXES.index(path.suffix.lower()), path)):
        whole = path.with_suffix("")
        try:
            if near := recording_of(whole, table.path, recordings):
                found[near].near.append(path)
            else:
                name = str(whole.relative_to(table.path))
                found[recordings.find(name, table.path)].far.append(path)
        except DataError as error:
            table.add_fault(str(path), "missing", str(error))
    return dict(found)


def recording_of(whole: Path, folder: Path, recordings: Recordings) -> Path | RemoteFile | None:
    """Return the recording beside a text, or else in the corresponding subfolder, or None.

    `whole` is the path of the text without its suffix, `folder` the folder of all texts. Raises
    DataError where there are several recordings.
    """
    if isinstance(recordings.root, Path):
        place = os.path.relpath(whole.absolute(), recordings.root.absolute())
        if found := recordings.at(place):
            return found
    is_within = whole.is_relative_to(folder)
    return recordings.at(whole.relative_to(folder).as_posix()) if is_within else None


def list_unread(table: Transcripts, folders: Container[Path], recordings: Recordings) -> None:
    """Add a fault for each text in a folder without a table whose recording no table names.

    `folders` are those with a table.
    """
    outer = {path: path.relative_to(table.path).parts[:-1][:1] for path in texts_below(table.path)}
    others = [path for path, names in outer.items() if Path(*names) not in folders]
    used = set[Path | RemoteFile]()
    for line in table.lines if others else ():
        with suppress(DataError):
            used.add(recordings.find(line.audio, table.path))
    for path in others:
        with suppress(DataError):  # the name of several
            found = recording_of(path.with_suffix(""), table.path, recordings)
            if _is_of_a_folder(path) or (found and found not in used):
                what = "it is not read, for other folders have tables: write its text into one"
                table.add_fault(str(path), "no_table", what)


def _no_text(table: Transcripts) -> DataError:
    """Return the error for a folder in which no text has the name of a recording."""
    tables = [path for path in sorted(table.path.iterdir()) if path.suffix.lower() in _TABLES]
    number, fault = next(iter(table.faults.items()))
    first = Path(table.place(number)).relative_to(table.path)
    others = ", ".join(suffix for suffix in reversed(_SUFFIXES) if suffix != ".txt")
    return DataError(
        f"{table.path}: none of its {len(table.faults)} text files has the name of a recording "
        f"({first}: {fault.what}): the text of a.wav is to be in a.txt (or {others}), or "
        f"give a table{f', such as {tables[0]}' if tables else ''}"
    )


class _Contents:
    """What the text files of a folder say of recordings; what cannot be used is a fault."""

    def __init__(
        self, table: Transcripts, recordings: Recordings,
        contents: Mapping[Path, tuple[str, str] | DataError], tier: str | None,
    ) -> None:  # fmt: skip
        self.table, self.recordings, self.contents, self.tier = table, recordings, contents, tier

    def of_recording(self, recording: Path | RemoteFile, texts: _Texts) -> list[_Text]:
        """Return what the texts of a recording say; read far ones only if no near one has text."""
        near = [text for path in texts.near if (text := self._read(path, recording))]
        if not any(text.has_text for text in near):
            return near + [text for path in texts.far if (text := self._read(path, recording))]
        for path in texts.far:
            other = next(text.path for text in near if text.has_text)
            what = f"no recording is beside it, and {recording} has another text, {other}"
            self.table.add_fault(str(path), "missing", what)
        return near

    def of_folder(
        self, path: Path, owners: Mapping[Path | RemoteFile, Path],
        others: list[tuple[Path, Path]],
    ) -> list[_Text]:  # fmt: skip
        """Return the lines of a folder's file, by folder of recordings.

        Recordings that have a text file of their own are left out; that file and `path` are then
        added to `others`.
        """
        lines = defaultdict[PurePath, list[tuple[int, Cells]]](list)
        text, encoding = self._content(path) or ("", "")
        for number, line in enumerate(text.split("\n"), 1):
            name, said = [*line.split(None, 1), "", ""][:2]
            if not name:
                continue
            place = f"{path}, line {number}"
            try:
                found = recording_of(path.parent / name, self.table.path, self.recordings)
                if not found:
                    written = path.parent.relative_to(self.table.path) / name
                    found = self.recordings.find(str(written), self.table.path)
            except DataError as error:
                self.table.add_fault(place, "missing", str(error))
                continue
            if owner := owners.get(found):
                others.append((owner, path))
            elif said:
                cells = {"audio": self.recordings.within[found].as_posix(), "text": said.strip()}
                lines[self._folder(found)].append((number, cells))
            else:
                self.table.add_fault(place, "no_text", f"it has no text for {name}")
        return [_Text(path, folder, its, encoding) for folder, its in lines.items()]

    def _read(self, path: Path, recording: Path | RemoteFile) -> _Text | None:
        """Return what a file says of a recording."""
        if not (content := self._content(path)):
            return None
        text, encoding = content
        folder, audio = self._folder(recording), self.recordings.within[recording].as_posix()
        parts = read_parts(path, text, self.tier)
        if isinstance(parts, Fault):
            return _Text(path, folder, [], encoding, parts)
        if parts is None:
            whole = {"audio": audio, "text": " ".join(text.split())}
            return _Text(path, folder, [(0, whole)], encoding)
        return _Text(path, folder, [(part.line, _cells(audio, part)) for part in parts], encoding)

    def _content(self, path: Path) -> tuple[str, str] | None:
        """Return a file's text, with line feeds alone between lines, and its encoding."""
        content = self.contents[path]
        if isinstance(content, DataError):
            what = str(content).removeprefix(str(path)).lstrip(":, ")
            self.table.add_fault(str(path), "bad_text", what)
            return None
        text, encoding = content
        for end in ("\r\r\n", "\r\n", "\r"):
            text = text.replace(end, "\n")
        return text, encoding

    def _folder(self, recording: Path | RemoteFile) -> PurePath:
        """Return the folder of a recording, relative to the folder of all recordings.

        If the folder of all texts is inside and holds the recording, the result is relative to it.
        """
        texts, root = self.table.path.absolute(), self.recordings.root
        if isinstance(recording, Path) and isinstance(root, Path):
            place = recording.parent.absolute()
            if texts.is_relative_to(root.absolute()) and place.is_relative_to(texts):
                return place.relative_to(texts)
        return self.recordings.within[recording].parent


def _cells(audio: str, part: Part) -> Cells:
    cells = {"audio": audio, "text": part.text, "start": part.start, "end": part.end}
    return cells | ({"speaker": part.speaker} if part.speaker else {})
