"""A recording cut into chunks that a model can take, and its segments put together again."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from asr.audio.recording import Recording
from asr.audio.segmentation import split_at_silence
from asr.decoding.request import Request
from asr.errors import AudioError
from asr.transcription.transcript import Segment


@dataclass(frozen=True, eq=False)
class Chunk:
    """A part of a recording from `start` to `end` in seconds; `wave_N` is mono at the model's rate.

    `request`, if given, can cancel its recognition.
    """

    start: float
    end: float
    wave_N: Tensor
    request: Request | None = None

    @property
    def seconds(self) -> float:
        """Return its length in seconds."""
        return self.end - self.start


@dataclass
class ChunkedRecording:
    """A recording that is cut at silences while it is read; the caller adds its segments.

    `error` is known, and `is_read` True, once `chunks` has ended.
    """

    recording: Recording
    chunk_seconds: float
    request: Request | None = None
    segments: list[Segment] = field(default_factory=list)
    error: AudioError | None = None
    is_read: bool = False

    def chunks(self) -> Iterator[Chunk]:
        """Read the recording and yield its chunks; what cannot be read is kept in `error`."""
        rate, start = self.recording.sample_rate, 0
        try:
            for wave in split_at_silence(self.recording, rate, self.chunk_seconds):
                end = start + len(wave)
                yield Chunk(start / rate, end / rate, torch.from_numpy(wave), self.request)
                start = end
        except AudioError as error:
            self.error = error
        self.is_read = True
