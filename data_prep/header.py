"""Tell which columns a delimited table has: by its first row, or by what its rows look like."""

from collections.abc import Mapping
from difflib import SequenceMatcher
from pathlib import Path
from statistics import median

from asr.errors import DataError
from asr.transcription.jobs import SUFFIXES
from data_prep.columns import NAMES, plain
from data_prep.parts import SUBTITLES, WITH_TIERS

_OF_ONE_RECORDING = (*WITH_TIERS, *SUBTITLES)
_COMPARED, _ALIKE = 200, 0.6  # rows to compare, and the ratio of letters that two texts share


def is_header(cells: list[str], named: Mapping[str, str]) -> bool:
    """Tell whether a first row is a header: it has a known name, or the user names columns."""
    # "start" and "stop" may be words that are said, and alone they make no header.
    kinds = NAMES.keys() - {"start", "end"}
    known = {name for kind in kinds for name in NAMES[kind]}
    return bool(named) or (
        not any(map(_is_file, cells)) and any(plain(cell) in known for cell in cells)
    )


def usual_header(path: Path, rows: list[list[str]], delimiter: str) -> list[str]:
    """Return names for a table without a header: audio first, text last (LJSpeech, Kaldi).

    Of two columns the text may be the first, if the other one has files. Raises DataError where the
    columns cannot be told: the last of three may hold the speakers.
    """
    cells = rows[0]
    if path.suffix.lower() in _OF_ONE_RECORDING:
        raise DataError(
            f"{path}: has the text of one recording, and a table of all was expected: give the "
            "folder that holds it and its recording"
        )
    if len(cells) < 2:
        raise DataError(
            f"{path}: has one column: give each line a recording and a text, under a header"
        )
    if len(cells) > 2 and not (delimiter == "|" and _is_ljspeech(rows)):
        example = delimiter.join(("audio", "text", "speaker"))
        raise DataError(
            f"{path}: its first line ({', '.join(cells):.80}) has no name that is known to be a "
            f"column's: give it a header such as {example}, in the order of its columns, or name "
            "them with --audio-column and --text-column"
        )
    names = ["audio", *[""] * (len(cells) - 2), "text"]
    return names[::-1] if not _is_file(cells[0]) and _is_file(cells[-1]) else names


def _is_file(cell: str) -> bool:
    return Path(cell.strip()).suffix.lower() in SUFFIXES


def _is_ljspeech(rows: list[list[str]]) -> bool:
    """Tell whether rows are a name, a text and mostly the same text with numbers in words."""
    some = rows[:_COMPARED]
    texts = [(cells[1], cells[2]) for cells in some if len(cells) == 3]
    alike = [SequenceMatcher(None, a.lower(), b.lower()).quick_ratio() for a, b in texts]
    return 2 * len(alike) > len(some) and median(alike) >= _ALIKE
