"""A transcript as text: txt, json, srt, vtt, tsv. Nothing is read or written here."""

import json
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from asr.tokenizer import normalize_text
from asr.transcription.transcript import Segment, Token, Transcript

# A subtitle holds two lines of 20 Chinese characters or 40 Latin ones, for 7 seconds at most, and
# ends at a pause.
_COLUMNS, _LINES = 40, 2
_LONGEST, _PAUSE = 7.0, 0.8  # seconds


@dataclass(frozen=True)
class Cue:
    """A subtitle: its lines, shown from `start` to `end` in seconds."""

    start: float
    end: float
    lines: tuple[str, ...]


def as_txt(transcript: Transcript) -> str:
    """The text and a newline."""
    return transcript.text + "\n"


def as_json(transcript: Transcript) -> str:
    """Everything that is known, on one line."""
    return json.dumps(transcript.as_dict(), ensure_ascii=False) + "\n"


def as_srt(transcript: Transcript) -> str:
    """SubRip: numbered subtitles, times with a comma."""
    return "".join(
        f"{number}\n{_clock(cue.start, ',')} --> {_clock(cue.end, ',')}\n{_joined(cue)}\n\n"
        for number, cue in enumerate(cues(transcript), 1)
    )


def as_vtt(transcript: Transcript) -> str:
    """WebVTT, with the characters escaped that it gives a meaning."""
    return "WEBVTT\n\n" + "".join(
        f"{_clock(cue.start, '.')} --> {_clock(cue.end, '.')}\n{_escaped(_joined(cue))}\n\n"
        for cue in cues(transcript)
    )


def as_tsv(transcript: Transcript) -> str:
    """A line a subtitle: start and end in milliseconds, text; the first line names them."""
    rows = (
        f"{_milliseconds(cue.start)}\t{_milliseconds(cue.end)}\t{' '.join(cue.lines)}\n"
        for cue in cues(transcript)
    )
    return "start\tend\ttext\n" + "".join(rows)


FORMATS: dict[str, Callable[[Transcript], str]] = {
    "txt": as_txt, "json": as_json, "srt": as_srt, "vtt": as_vtt, "tsv": as_tsv,
}  # fmt: skip


def cues(transcript: Transcript) -> Iterator[Cue]:
    """The subtitles of a transcript, in order and without overlap.

    They end at pauses, at the latest when they are full. Where a segment's tokens have no times,
    its characters share its time evenly.
    """
    for segment in transcript.segments:
        cue: list[list[Token]] = []
        for word in _words(segment):
            if cue and _is_full(cue, word):
                yield _cue(cue)
                cue = []
            cue.append(word)
        if cue:
            yield _cue(cue)


def _evenly(segment: Segment) -> tuple[Token, ...]:
    share = (segment.end - segment.start) / max(1, len(segment.text))
    starts = [segment.start + i * share for i in range(len(segment.text))]
    return tuple(Token(c, t, t + share) for c, t in zip(segment.text, starts, strict=True))


def words(transcript: Transcript) -> Iterator[Token]:
    """The words of a transcript and when each was said; a Chinese character is one by itself."""
    for segment in transcript.segments:
        for word in _words(segment):
            yield Token(_text([word]), word[0].start, word[-1].end)


def _words(segment: Segment) -> list[list[Token]]:
    """Tokens that no line may tear apart: a Chinese character is a word of its own."""
    words: list[list[Token]] = []
    for token in segment.tokens if segment.tokens is not None else _evenly(segment):
        before = words[-1][-1].text if words else ""
        opens = token.text[:1].isspace() or _is_wide(token.text[:1]) or _is_wide(before[-1:])
        if opens or not words:
            words.append([])
        words[-1].append(token)
    return [word for word in words if _text([word])]


def _is_full(cue: list[list[Token]], word: list[Token]) -> bool:
    return (
        word[0].start - cue[-1][-1].end > _PAUSE
        or word[-1].end - cue[0][0].start > _LONGEST
        or len(_wrapped([*cue, word])) > _LINES
    )


def _cue(words: list[list[Token]]) -> Cue:
    return Cue(words[0][0].start, words[-1][-1].end, _wrapped(words))


def _wrapped(words: list[list[Token]]) -> tuple[str, ...]:
    lines: list[list[list[Token]]] = [[]]
    for word in words:
        if lines[-1] and _columns(_text([*lines[-1], word])) > _COLUMNS:
            lines.append([])
        lines[-1].append(word)
    return tuple(_text(line) for line in lines)


def _text(words: list[list[Token]]) -> str:
    return normalize_text("".join(token.text for word in words for token in word))


def _columns(text: str) -> int:
    return sum(2 if _is_wide(character) else 1 for character in text)


def _is_wide(character: str) -> bool:
    return bool(character) and unicodedata.east_asian_width(character) in "WF"


def _joined(cue: Cue) -> str:
    return "\n".join(cue.lines)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _clock(seconds: float, point: str) -> str:
    minutes, milliseconds = divmod(_milliseconds(seconds), 60_000)
    return (
        f"{minutes // 60:02}:{minutes % 60:02}:{milliseconds // 1000:02}{point}"
        f"{milliseconds % 1000:03}"
    )
