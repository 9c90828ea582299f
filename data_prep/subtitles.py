"""Read the texts of a recording's parts: subtitles (SubRip, WebVTT) and the labels of Audacity."""

import html
import re
from collections.abc import Iterator
from typing import NamedTuple

_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{2}[.,]\d{1,3})"
_CUE = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?")
_LABEL = re.compile(r"\s*(\d+(?:[.,]\d+)?)\t\s*(\d+(?:[.,]\d+)?)(?:\t(.*))?")
_MARKUP = re.compile(r"<[^>]*>|\{\\[^}]*\}")  # <i>, <v Anna> and {\an8}


class Part(NamedTuple):
    """A text that is said from `start` to `end`, in seconds, and its line in the file, from 1."""

    line: int
    start: str
    end: str
    text: str


def read_subtitles(text: str) -> list[Part]:
    """Return the cues of subtitles: times in a line, and text in those below until an empty one."""
    parts, is_within = list[Part](), False
    for number, line in enumerate(text.splitlines(), 1):
        if match := _CUE.fullmatch(line):
            times = match.groups(default="0")
            parts.append(Part(number, _seconds(*times[:3]), _seconds(*times[3:]), ""))
        elif is_within and line.strip():
            said = html.unescape(_MARKUP.sub("", line)).strip()
            parts[-1] = parts[-1]._replace(text=f"{parts[-1].text} {said}".strip())
        is_within = bool(match) or (is_within and bool(line.strip()))
    return parts


def _seconds(hours: str, minutes: str, seconds: str) -> str:
    whole = 3600 * int(hours) + 60 * int(minutes) + float(seconds.replace(",", "."))
    return f"{whole:.3f}"


def read_labels(text: str) -> list[Part] | None:
    r"""Return the labels that Audacity exports, `start<TAB>end<TAB>text`; None for other text.

    Lines that begin with a backslash are of the label before: its frequencies.
    """
    parts = list(_labels(text))
    return [part for part in parts if part] if parts and all(parts) else None


def _labels(text: str) -> Iterator[Part | None]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("\\"):
            continue
        match = _LABEL.fullmatch(line)
        if not match:
            yield None
            return
        start, end, said = match.groups(default="")
        yield Part(number, start.replace(",", "."), end.replace(",", "."), said)
