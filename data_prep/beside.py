"""Read transcripts from text files that have the names of their recordings.

They are beside the recordings, or in a folder of the same subfolders.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

from asr.errors import DataError
from asr.transcription.jobs import is_content
from data_prep.folders import read_folders
from data_prep.lines import Fault, Transcripts, add_line
from data_prep.recordings import files_below
from data_prep.subtitles import read_labels, read_subtitles
from data_prep.text_file import read_text

log = logging.getLogger(__name__)

_SUBTITLES, _PLAIN = (".srt", ".vtt"), (".txt", ".lab")  # in the order of preference
_OF_A_FOLDER = ".trans.txt"  # LibriSpeech: in each line the name of a recording, and its text

Cell = dict[str, str]


def has_texts(folder: Path) -> bool:
    """Tell whether there are text files below a folder."""
    return any(_is_text(path) for path in files_below(folder))


def _is_text(path: Path) -> bool:
    suffix = path.suffix.lower()
    return suffix in (*_SUBTITLES, *_PLAIN) and is_content(path) and not path.name.startswith(".")


def read_beside(table: Transcripts) -> None:
    """Read the text files below the folder `table.path`.

    A file has the text of one recording, or those of its parts. `read_folders` tells splits and
    speakers.
    """
    texts = sorted(path for path in files_below(table.path) if _is_text(path))
    within = {path: path.relative_to(table.path) for path in texts}
    used = _preferred(within)
    folders = read_folders(within[path].parent for path in used)
    encodings = dict[str, Path]()
    for path in used:
        try:
            text, encoding = read_text(path)
        except DataError as error:
            _add_fault(table, path, Fault("bad_text", str(error).removeprefix(f"{path}: ")))
            continue
        encodings.setdefault(encoding, path)
        for line, cells in _texts(within[path], text):
            number = len(table.places) + 1
            table.places[number] = f"{path}, line {line}" if line else str(path)
            add_line(table, number, folders[within[path].parent] | cells)
    for encoding, path in encodings.items():
        if encoding != "utf-8":
            log.warning("%s, and maybe others, is read as %s: save it as UTF-8 if its text is read "
                        "wrong", path, encoding)  # fmt: skip


def _add_fault(table: Transcripts, path: Path, fault: Fault) -> None:
    number = len(table.places) + 1
    table.places[number], table.faults[number] = str(path), fault


def _preferred(within: Mapping[Path, PurePath]) -> list[Path]:
    """Return one text of each recording: that with times, where there are several."""
    order = (*_SUBTITLES, *_PLAIN)
    best = dict[PurePath, Path]()
    for path in sorted(within, key=lambda path: order.index(path.suffix.lower())):
        best.setdefault(within[path].with_suffix(""), path)
    used = set(best.values())
    if others := [path for path in within if path not in used]:
        of = best[within[others[0]].with_suffix("")]
        log.warning("%d of %d texts are not used, for another of the same name is, such as %s in "
                    "place of %s", len(others), len(within), of, others[0])  # fmt: skip
    return [path for path in within if path in used]


def _texts(within: PurePath, text: str) -> Iterator[tuple[int, Cell]]:
    """Yield the texts of a file, each with its line, 0 where it is the whole file."""
    audio = str(within.with_suffix(""))
    if within.name.lower().endswith(_OF_A_FOLDER):
        for number, line in enumerate(text.splitlines(), 1):
            if pair := line.split(None, 1):
                name, said = pair[0], pair[1] if len(pair) > 1 else ""
                yield number, {"audio": str(within.parent / name), "text": said}
        return
    is_cues = within.suffix.lower() in _SUBTITLES
    parts = read_subtitles(text) if is_cues else read_labels(text)
    if not parts:  # subtitles without a cue have no text
        yield 0, {"audio": audio, "text": "" if is_cues else " ".join(text.split())}
        return
    for part in parts:
        yield part.line, {"audio": audio, "text": part.text, "start": part.start, "end": part.end}
