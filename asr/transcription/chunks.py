"""TODO: chunks."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from asr.audio.recording import Recording
from asr.audio.segmentation import split_at_silence
from asr.errors import AudioError
from asr.tokenizer import normalize_text
from asr.transcription.transcript import Candidate, Segment, Transcript


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
