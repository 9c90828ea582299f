"""Read the texts of a recording's parts: subtitles (SubRip, WebVTT) and the labels of Audacity."""

import html
import re
from typing import NamedTuple

_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})(?:[.,:](\d{1,3}))?"
_CUE = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?")
_LABEL = re.compile(r"\s*(\d+(?:[.,]\d+)?)\t\s*(\d+(?:[.,]\d+)?)(?:\t(.*))?")
_MARKUP = re.compile(r"<(?:/?[A-Za-z]|\d+:)[^<>]*>|\{\\[^{}]*\}")  # <i>, <v Ann>, {\an8}
_UNKNOWN = "nan"


class Part(NamedTuple):
    """A text that is said from `start` to `end`, in seconds, and its line in the file, from 1.

    Times that are not known are nan.
    """

    line: int
    start: str
    end: str
    text: str


def read_subtitles(text: str) -> list[Part]:
    """Return the cues of subtitles: times in a line, and text in those below until an empty one.

    A number in front of the next cue is no text, where the empty line is missing.
    """
    cues, said = list[tuple[int, str, str]](), list[list[str]]()
    is_within = False
    for number, line in enumerate(text.split("\n"), 1):
        if "-->" in line:
            if is_within and said[-1] and said[-1][-1].isdecimal():
                said[-1].pop()
            match = _CUE.fullmatch(line.rstrip())
            times = match.groups(default="0") if match else None
            start, end = (_seconds(*times[:4]), _seconds(*times[4:])) if times else [_UNKNOWN] * 2
            cues.append((number, start, end))
            said.append([])
            is_within = True
        elif is_within and line.strip():
            said[-1].append(html.unescape(_MARKUP.sub("", line)).strip())
        else:
            is_within = False
    return [
        Part(*cue, " ".join(filter(None, lines))) for cue, lines in zip(cues, said, strict=True)
    ]


def _seconds(hours: str, minutes: str, seconds: str, fraction: str) -> str:
    whole = 3600 * int(hours) + 60 * int(minutes) + int(seconds) + float(f"0.{fraction}")
    return f"{whole:.3f}"


def read_labels(text: str) -> list[Part] | None:
    r"""Return the labels that Audacity exports, `start<TAB>end<TAB>text`; None for other text.

    Lines that begin with a backslash are of the label before: its frequencies.
    """
    parts = list[Part]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("\\"):
            continue
        match = _LABEL.fullmatch(line.rstrip("\r"))
        if not match:
            return None
        start, end, said = match.groups(default="")
        parts.append(Part(number, start.replace(",", "."), end.replace(",", "."), said))
    return parts
