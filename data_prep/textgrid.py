"""Read the annotations that Praat writes: TextGrid."""

import re

from asr.errors import DataError
from data_prep.subtitles import Part
from data_prep.tiers import Tier

# All that counts in Praat's files is texts in quotes and numbers that stand alone (its manual,
# "TextGrid file formats"); what follows an exclamation mark is a comment.
_VALUE = re.compile(
    r'(?<!\S)(?:!.*|"(?P<text>(?:[^"]|"")*+)"(?P<more>\S)?'
    r"|(?P<number>[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?!\S))"
)


def read_textgrid(text: str) -> list[Tier]:
    """Return the tiers of a TextGrid, long or short; those of points in time have no parts.

    Raises DataError for another file.
    """
    values = _Values(text)
    if not values.text().startswith("ooTextFile") or values.text() != "TextGrid":
        raise DataError("it is no TextGrid that Praat saved as a (short) text file")
    values.numbers(2)  # its start and end
    tiers = [_tier(values) for _ in range(values.count())]
    values.check_end()
    return tiers


def _tier(values: "_Values") -> Tier:
    kind, name = values.text(), values.text()
    if kind not in ("IntervalTier", "TextTier"):
        raise DataError(f"line {values.line} has no tier of intervals or of points")
    values.numbers(2)
    parts = []
    for _ in range(values.count()):
        times = values.numbers(2 if kind == "IntervalTier" else 1)
        said = " ".join(values.text().split())
        if said and kind == "IntervalTier":
            parts.append(Part(values.line, times[0], times[1], said))
    return Tier(name.strip(), parts)


class _Values:
    """The texts and numbers of a file of Praat's, and the line of the last one."""

    def __init__(self, content: str) -> None:
        self.line = 1
        self._content, self._at = content, 0
        self._found = (match for match in _VALUE.finditer(content) if match.lastgroup)

    def text(self) -> str:
        """Return the next value, which is a text."""
        return self._next("text").replace('""', '"')

    def numbers(self, n: int) -> list[str]:
        """Return the next values, which are so many numbers."""
        return [self._next("number") for _ in range(n)]

    def count(self) -> int:
        """Return the next value, which says how many tiers or texts follow."""
        (number,) = self.numbers(1)
        if not number.isdecimal():
            raise DataError(f"line {self.line} has {number} tiers or texts")
        return int(number[:9])  # of which no file has so many

    def check_end(self) -> None:
        """Raise DataError if there is another value."""
        if next(self._found, None):
            raise DataError("it has more texts than it says")

    def _next(self, kind: str) -> str:
        match = next(self._found, None)
        if match is None:
            raise DataError("it ends too early, as a file that was not copied whole")
        self.line += self._content.count("\n", self._at, match.start())
        self._at = match.start()
        if match["more"]:
            raise DataError(
                f"line {self.line} has a quote that ends no text: those in it are doubled"
            )
        value: str | None = match[kind]
        if value is None:
            raise DataError(f"line {self.line} has no {kind} where a TextGrid has one")
        return value
