"""Transcripts: texts with their scores and times. No torch, so that clients can use them too."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from asr.decoding.hypothesis import Ended, Hypothesis, geometric_mean
from asr.joining import join_texts
from asr.normalization import normalize_text


@dataclass(frozen=True)
class Token:
    """A token's text, and when it was said, in seconds from the recording's start."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Segment:
    """A part of a recording from `start` to `end`, in seconds: the best text, and the n best.

    `text`, `score`, `ended`, `token_ids` and `confidences` are those of the best hypothesis (see
    `asr.decoding.hypothesis.Hypothesis`). `tokens` are the tokens with their times; their texts
    together are the segment's. It is None where the times are unknown, because the model has no CTC
    head or there are too few frames for the text. `nbest` is empty where a recording has several
    segments. A segment whose text was too uncertain keeps it: that text is the second one.
    """

    start: float
    end: float
    text: str
    score: float
    ended: Ended
    token_ids: tuple[int, ...]
    confidences: tuple[float, ...]
    tokens: tuple[Token, ...] | None
    nbest: tuple[Hypothesis, ...] = ()

    @property
    def confidence(self) -> float:
        """Return the confidence of the text as a whole."""
        return geometric_mean(self.confidences)


@dataclass(frozen=True)
class StreamResult:
    """What is known of a stream's running segment; a final one does not change any more.

    The text and the times of a partial result are the CTC head's; its score is the log-probability
    of the most likely path.
    """

    segment: Segment
    is_final: bool

    @property
    def text(self) -> str:
        """Return the text of the segment so far."""
        return self.segment.text


@dataclass(frozen=True)
class Transcript:
    """The text of a recording, its score, its duration in seconds, and its segments.

    A recording longer than `decoding.chunk_seconds` has several segments, which follow each other
    without a gap; the score is their sum.
    """

    text: str
    score: float
    duration: float
    warnings: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()

    @classmethod
    def join(
        cls, segments: Sequence[Segment], duration: float, warnings: tuple[str, ...]
    ) -> "Transcript":
        """Return the transcript of segments; of several, only uncertain ones keep their n best."""
        segments = tuple(segments)
        uncertain = [left_out(s) for s in segments if s.ended == "uncertain"]
        if len(segments) > 1:
            segments = tuple(
                s if s.ended == "uncertain" else replace(s, nbest=()) for s in segments
            )
        return cls(
            text=normalize_text(join_texts(segment.text for segment in segments), "keep"),
            score=sum(segment.score for segment in segments),
            duration=duration,
            warnings=(*warnings, *uncertain),
            segments=segments,
        )

    @property
    def nbest(self) -> tuple[Hypothesis, ...]:
        """Return the n best hypotheses of a recording of one segment; of others, none."""
        return self.segments[0].nbest if len(self.segments) == 1 else ()


def left_out(segment: Segment) -> str:
    """Return a warning with the text that was left out as too uncertain."""
    guess = segment.nbest[1]
    return (
        f"{segment.start:.1f} to {segment.end:.1f} s: left out as uncertain, confidence "
        f"{guess.confidence:.2f}: {guess.text}"
    )
