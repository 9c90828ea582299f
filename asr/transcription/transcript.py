"""What was said: texts with their scores and times, and recordings on their way to them."""


from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Candidate:
    """One of the texts that a recording may hold; the rest as in `asr.decoding.hypothesis.Hypothesis`."""

    text: str
    score: float
    log_prob: float | None
    ctc_log_prob: float | None
    ended: Literal["eos", "length", "no_speech"]
    lm_log_prob: float | None = None
    length_score: float = 0.0
    confidences: tuple[float, ...] = ()


@dataclass(frozen=True)
class Token:
    """A token of a text and when it was said, in seconds from the recording's start."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Segment:
    """A piece of a recording, from `start` to `end` in seconds, its text and its score.

    Together the tokens' texts are the segment's; `tokens` is None where nothing tells their times:
    the model has no CTC head, or its frames are too few for the text. `confidences` are as in
    `asr.decoding.hypothesis.Hypothesis`.
    """

    start: float
    end: float
    text: str
    score: float
    ended: Literal["eos", "length", "no_speech"]
    tokens: tuple[Token, ...] | None
    confidences: tuple[float, ...] = ()


@dataclass(frozen=True)
class Transcript:
    """What was said: the best text and its score, seconds of audio, and the n best.

    A recording longer than `search.piece_seconds` is recognised in `segments` that follow each
    other without a gap; its score is their sum, and `nbest` is empty.
    """

    text: str
    score: float
    duration: float
    nbest: tuple[Candidate, ...]
    warnings: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)
