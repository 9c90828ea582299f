"""Read what a text file with the name of a recording says of its parts, by the kind of file."""

import re
from contextlib import suppress
from pathlib import Path

from asr.errors import DataError
from asr.runtime.files import open_regular
from data_prep.elan import read_elan
from data_prep.lines import Fault
from data_prep.subtitles import Part, read_labels, read_subtitles
from data_prep.textgrid import read_textgrid
from data_prep.tiers import parts_of

SUBTITLES = (".srt", ".vtt")
WITH_TIERS = (".textgrid", ".eaf")
# The first line of a TextGrid, whatever the name of the file.
_TEXTGRID = re.compile(r'\s*(File type = )?"ooTextFile')
_HEAD = 128  # bytes, in UTF-8 or UTF-16
# Two times in seconds; or in samples (TIMIT) or units of 100 ns (HTK), before a word.
_TIMES = re.compile(r"\s*-?\d+[.,]\d+\s+-?\d+[.,]\d+(\s|$)|\s*\d+\s+\d{4,}\s+[^\W\d_]")
# A clock's time, which programs and sites put before each text; and the two times of a subtitle.
_CLOCK = re.compile(r"\s*[\[(]?\d{1,4}:\d{2}(:\d{2})?([.,]\d+)?[\])]?(\s|$)")
_CUE = re.compile(r"\s*[\[(]?\d{1,4}:\d{2}\S*\s*((--?|[–—])>\s*\d|(?<=\t)\d{1,4}:\d{2})")


def has_tiers(path: Path) -> bool:
    """Tell whether a text file may have several tiers, of which one has the transcript."""
    if path.suffix.lower() in WITH_TIERS:
        return True
    with suppress(OSError):
        with open_regular(path) as file:
            head = file.read(_HEAD).replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe")
        return bool(_TEXTGRID.match(head.decode("ascii", "replace")))
    return False


def read_parts(path: Path, text: str, tier: str | None) -> list[Part] | Fault | None:
    """Return the parts of a file with this text, the fault for which there are none, or None.

    None means that the text is one whole. `tier` names the tier with the transcript, in files that
    have tiers.
    """
    suffix = path.suffix.lower()
    if suffix in WITH_TIERS or _TEXTGRID.match(text):
        try:
            tiers = read_elan(text, path.stem) if suffix == ".eaf" else read_textgrid(text)
        except DataError as error:
            return Fault("bad_text", str(error))
        try:
            return parts_of(tiers, tier) or Fault("no_text", "it has no text with times")
        except DataError as error:
            return Fault("no_tier", str(error))
    if suffix in SUBTITLES:
        is_numbered = suffix == ".srt" and not text.startswith("WEBVTT")
        return read_subtitles(text, is_numbered) or Fault("no_text", "it has no subtitle")
    parts = read_labels(text)
    if not parts and _has_times(text):
        what = "it has times, but not as the labels of Audacity: start, tab, end, tab, text"
        return Fault("bad_times", what)
    return parts or None


def _has_times(text: str) -> bool:
    """Tell whether there is a line of a subtitle, or whether half of the lines begin with times.

    A single clock's time may be spoken, so two are needed.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    n_clocks = sum(bool(_CLOCK.match(line)) for line in lines)
    is_of_most = 2 * sum(bool(_TIMES.match(line)) for line in lines) > len(lines)
    return any(map(_CUE.match, lines)) or is_of_most or 2 * n_clocks >= max(len(lines), 4)
