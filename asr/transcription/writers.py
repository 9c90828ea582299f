"""A transcript as text: txt, json, srt, vtt, tsv, TextGrid. No file is read or written here."""

import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape

from asr.normalization import normalize_text
from asr.transcription.transcript import Segment, Token, Transcript

# A subtitle holds two lines of 20 Chinese characters or 40 Latin ones, for 7 seconds at most, and
# ends at a pause. It stays as long as a word takes to read, if the next one does not begin before.
_COLUMNS, _LINES = 40, 2
_LONGEST, _SHORTEST, _PAUSE = 7.0, 0.7, 0.8  # seconds


@dataclass(frozen=True)
class Word:
    """A word, or a Chinese character, with a space before it where the text has one.

    `start` and `end` are seconds from the recording's start; `confidence` is the lowest of its
    tokens, or of the segment's where the tokens have no times.
    """

    text: str
    start: float
    end: float
    confidence: float


@dataclass(frozen=True)
class Cue:
    """A subtitle: lines of text, shown from `start` to `end` in seconds."""

    start: float
    end: float
    text: str


def as_txt(transcript: Transcript) -> str:
    """Return the text and a newline."""
    return transcript.text + "\n"


def as_json(transcript: Transcript) -> str:
    """Return all fields on one line."""
    return json.dumps(asdict(transcript), ensure_ascii=False) + "\n"


def as_srt(transcript: Transcript) -> str:
    """Return SubRip: numbered subtitles, times with a comma."""
    return "".join(
        f"{index}\n{_span(cue, ',')}\n{cue.text}\n\n"
        for index, cue in enumerate(cues(transcript.segments), 1)
    )


def as_vtt(transcript: Transcript) -> str:
    """Return WebVTT, with its special characters escaped."""
    return "WEBVTT\n\n" + "".join(
        f"{_span(cue, '.')}\n{escape(cue.text, quote=False)}\n\n"
        for cue in cues(transcript.segments)
    )


def as_tsv(transcript: Transcript) -> str:
    """Return a line per subtitle: start and end in milliseconds, text; after a line of names."""
    rows = (
        f"{_milliseconds(cue.start)}\t{_milliseconds(cue.end)}\t{' '.join(cue.text.splitlines())}\n"
        for cue in cues(transcript.segments)
    )
    return "start\tend\ttext\n" + "".join(rows)


def as_textgrid(transcript: Transcript) -> str:
    """Return Praat's TextGrid: a tier `text` with an interval for each subtitle.

    Between them are intervals without text, because a tier of Praat has no gaps.
    """
    at, intervals = 0.0, list[tuple[float, float, str]]()
    for cue in cues(transcript.segments):
        intervals += [(at, cue.start, ""), (cue.start, cue.end, " ".join(cue.text.splitlines()))]
        at = cue.end
    end = max(transcript.duration, at, 0.001)
    values: list[object] = ["File type = \"ooTextFile\"\nObject class = \"TextGrid\"\n", 0, end,
                            "<exists>", 1, '"IntervalTier"', '"text"', 0, end]  # fmt: skip
    filled = [each for each in (*intervals, (at, end, "")) if f"{each[0]:.3f}" != f"{each[1]:.3f}"]
    values.append(len(filled))
    for start, stop, text in filled:
        values += [start, stop, '"' + text.replace('"', '""') + '"']
    lines = (f"{value:.3f}" if isinstance(value, float) else str(value) for value in values)
    return "\n".join(lines) + "\n"


FORMATS: dict[str, Callable[[Transcript], str]] = {
    "txt": as_txt,
    "json": as_json,
    "srt": as_srt,
    "vtt": as_vtt,
    "tsv": as_tsv,
    "TextGrid": as_textgrid,
}


def cues(segments: Sequence[Segment]) -> Iterator[Cue]:
    """Yield the subtitles of segments, in order and without overlap.

    They end at pauses and with their segment, at the latest when they are full.
    """
    found = list(_full_cues(segments))
    limits = [cue.start for cue in found[1:]] + [segment.end for segment in segments[-1:]]
    for cue, latest in zip(found, limits, strict=False):
        yield replace(cue, end=max(cue.end, min(cue.start + _SHORTEST, latest)))


def _full_cues(segments: Sequence[Segment]) -> Iterator[Cue]:
    """Yield the subtitles of segments, which end with their last word."""
    for segment in segments:
        cue, lines = list[Word](), list[str]()
        for word in words(segment):
            longer = _wrapped(lines, word)
            if cue and (len(longer) > _LINES or _is_over(cue, word)):
                yield _cue(cue, lines)
                cue, longer = [], [word.text]
            cue.append(word)
            lines = longer
        if cue:
            yield _cue(cue, lines)


def words(segment: Segment) -> list[Word]:
    """Return the words of a segment; a Chinese or Japanese character is a word.

    Where the tokens have no times, the characters share the segment's time evenly.
    """
    tokens, confidences = segment.tokens, segment.confidences
    if tokens is None:
        tokens = _evenly(segment)
        confidences = (min(confidences, default=0.0),) * len(tokens)
    found: list[Word] = []
    for token, confidence in zip(tokens, confidences, strict=True):
        word = Word(token.text, token.start, token.end, confidence)
        first = token.text[:1]
        if not found or first.isspace() or _is_word(first) or _is_word(found[-1].text[-1:]):
            found.append(word)
        else:
            found[-1] = _joined(found[-1], word)
    return [word for word in found if word.text.strip()]


def _evenly(segment: Segment) -> tuple[Token, ...]:
    share = (segment.end - segment.start) / max(1, len(segment.text))
    starts = [segment.start + i * share for i in range(len(segment.text))]
    return tuple(Token(c, t, t + share) for c, t in zip(segment.text, starts, strict=True))


def _joined(one: Word, other: Word) -> Word:
    if one.text.isspace():  # a token of its own, long before the word maybe
        return Word(one.text + other.text, other.start, other.end, other.confidence)
    confidence = min(one.confidence, other.confidence)
    return Word(one.text + other.text, one.start, other.end, confidence)


def _is_over(cue: list[Word], word: Word) -> bool:
    return word.start - cue[-1].end > _PAUSE or word.end - cue[0].start > _LONGEST


def _cue(words: list[Word], lines: list[str]) -> Cue:
    start = words[0].start
    end = min(words[-1].end, start + _LONGEST)  # a word with pauses in it may be longer
    return Cue(start, end, "\n".join(normalize_text(line, "keep") for line in lines))


def _wrapped(lines: list[str], word: Word) -> list[str]:
    """Return the lines of a subtitle with one more word."""
    if lines and _columns(normalize_text(lines[-1] + word.text, "keep")) <= _COLUMNS:
        return [*lines[:-1], lines[-1] + word.text]
    return [*lines, word.text]


def _columns(text: str) -> int:
    return sum(2 if _is_wide(character) else 1 for character in text)


def _is_wide(character: str) -> bool:
    return bool(character) and unicodedata.east_asian_width(character) in "WF"


def _is_word(character: str) -> bool:
    """Tell whether a character is of a script without spaces; Korean has them."""
    return _is_wide(character) and not unicodedata.name(character, "").startswith("HANGUL")


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _span(cue: Cue, point: str) -> str:
    return f"{_clock(cue.start, point)} --> {_clock(cue.end, point)}"


def _clock(seconds: float, point: str) -> str:
    minutes, milliseconds = divmod(_milliseconds(seconds), 60_000)
    return (
        f"{minutes // 60:02}:{minutes % 60:02}:{milliseconds // 1000:02}{point}"
        f"{milliseconds % 1000:03}"
    )
