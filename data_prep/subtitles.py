"""Read the texts of a recording's parts: subtitles (SubRip, WebVTT) and the labels of Audacity."""

import html
import itertools
import re
from typing import NamedTuple

_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})(?:[.,:](\d{1,3}))?"
_ARROW = "(?:--?|[–—])>"
_CUE = re.compile(rf"\s*{_TIME}\s*{_ARROW}\s*{_TIME}(?:\s.*)?")
_LIKE_A_CUE = re.compile(rf"\s*\d.*?-->|\s*\d+:\d.*?{_ARROW}")
_LABEL = re.compile(r"\s*(\d+(?:[.,]\d+)?)\t\s*(\d+(?:[.,]\d+)?)(?:\t(.*))?")
_MARKUP = re.compile(r"<(?:/?[A-Za-z]|\d+:)[^<>]*>|\{\\[^{}]*\}")  # <i>, <v Ann>, {\an8}
_REFERENCE = re.compile(r"&#?\w{1,10};")  # &amp;
UNKNOWN = "nan"
_FEWEST_PAIRS = 2


class Part(NamedTuple):
    """A text that is said from `start` to `end`, in seconds, and its line in the file, from 1.

    Unknown times are "nan", and an unknown speaker is "".
    """

    line: int
    start: str
    end: str
    text: str
    speaker: str = ""


def read_subtitles(text: str, is_numbered: bool) -> list[Part]:
    """Return the cues of subtitles: a line with times, and the text in the lines below it.

    An empty line ends a cue. Where cues have numbers (SubRip), the number of the next cue ends it
    instead; numbers are no text.
    """
    cues, said = list[tuple[int, str, str]](), list[list[str]]()
    is_within = False
    for number, line in enumerate(text.split("\n"), 1):
        if _LIKE_A_CUE.match(line):
            if is_numbered and is_within:
                said[-1] = _without_number(said[-1], str(len(cues) + 1))
            match = _CUE.fullmatch(line.rstrip())
            times = match.groups(default="0") if match else None
            start, end = (_seconds(*times[:4]), _seconds(*times[4:])) if times else [UNKNOWN] * 2
            cues.append((number, start, end))
            said.append([])
            is_within = True
        elif is_within and (line.strip() or is_numbered or (line and not any(said[-1]))):
            said[-1].append(_REFERENCE.sub(_unescaped, _MARKUP.sub("", line)).strip())
        else:
            is_within = False
    texts = [[line for line in lines if line] for lines in said]
    kept = _without_repeats(texts)
    return [
        Part(*cue, " ".join(lines))
        for cue, lines, whole in zip(cues, kept, texts, strict=True)
        if lines or not whole
    ]


def _without_repeats(cues: list[list[str]]) -> list[list[str]]:
    """Return the lines of cues; in scrolling captions drop lines that repeat the cue before.

    Automatic captions show each line once more above the next line, and alone between the two.
    """
    pairs = [(before, cue) for before, cue in itertools.pairwise(cues) if before and cue]
    repeats = [len(cue) > 1 for before, cue in pairs if before[-1] == cue[0]]
    # People repeat themselves too, but no new line is below it then.
    if (
        len(pairs) < _FEWEST_PAIRS
        or 2 * len(repeats) <= len(pairs)
        or 4 * sum(repeats) < len(pairs)
    ):
        return cues
    kept, last = list[list[str]](), ""
    for cue in cues:
        kept.append(cue[1:] if cue and cue[0] == last else cue)
        last = cue[-1] if cue else last
    return kept


def _without_number(lines: list[str], expected: str) -> list[str]:
    """Return the lines of a cue without the number of the next cue, the last line with text.

    If an empty line follows the number, an empty line must be before it too. If the number is the
    only line, it must be the expected one.
    """
    whole = list(lines)
    while whole and not whole[-1]:
        whole.pop()
    number = whole[-1].removeprefix("\ufeff").removesuffix(".") if whole else ""
    is_last, has_break = len(whole) == len(lines), len(whole) < 2 or not whole[-2]
    is_next = number.isdecimal() and (is_last or has_break)
    if is_next and (number == expected or len(whole) > 1):
        whole.pop()
    return whole


def _unescaped(reference: re.Match[str]) -> str:
    return html.unescape(reference[0])


def _seconds(hours: str, minutes: str, seconds: str, fraction: str) -> str:
    whole = 3600 * int(hours) + 60 * int(minutes) + int(seconds) + float(f"0.{fraction}")
    return f"{whole:.3f}"


def read_labels(text: str) -> list[Part] | None:
    r"""Return the labels that Audacity exports, `start<TAB>end<TAB>text`; None for other text.

    Lines that begin with a backslash have the frequencies of the label before, and are skipped.
    """
    parts = list[Part]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("\\"):
            continue
        match = _LABEL.fullmatch(line)
        if not match:
            return None
        start, end, said = match.groups(default="")
        parts.append(Part(number, start.replace(",", "."), end.replace(",", "."), said))
    return parts
