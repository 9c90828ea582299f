"""What was said: texts with their scores and times, and recordings on their way to them."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from asr.audio import Recording
from asr.errors import AudioError
from asr.silence import split_at_silence
from asr.tokenizer import normalize_text


@dataclass(frozen=True)
class Candidate:
    """One of the texts that a recording may hold; the rest as in `asr.score.Hypothesis`."""

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
    `asr.score.Hypothesis`.
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


@dataclass
class Reading:
    """A recording on its way through `Recognizer.hear`, which adds the segments."""

    recording: Recording
    piece_seconds: float
    segments: list[Segment] = field(default_factory=list)
    nbest: tuple[Candidate, ...] = ()
    error: AudioError | None = None
    ended: bool = False

    def pieces(self) -> Iterator["Piece"]:
        """The pieces that it is cut to."""
        rate, start = self.recording.sample_rate, 0
        try:
            for wave in split_at_silence(self.recording, rate, self.piece_seconds):
                end = start + len(wave)
                yield Piece(self, start / rate, end / rate, torch.from_numpy(wave))
                start = end
        except AudioError as error:
            self.error = error
        self.ended = True

    def result(self) -> Transcript | AudioError:
        """What was heard, or why it cannot be."""
        return self.error or Transcript(
            text=normalize_text(" ".join(segment.text for segment in self.segments)),
            score=sum(segment.score for segment in self.segments),
            duration=self.recording.seconds,
            nbest=self.nbest if len(self.segments) == 1 else (),
            warnings=self.recording.warnings,
            segments=tuple(self.segments),
        )


class Piece(NamedTuple):
    """A part of a recording, from `start` to `end` in seconds."""

    reading: Reading
    start: float
    end: float
    wave_N: Tensor
