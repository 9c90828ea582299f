"""A recording cut into chunks that a model can take, and its segments put together again."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import soxr
import torch
from torch import Tensor

from asr.audio.recording import Recording
from asr.audio.segmentation import Splitter
from asr.decoding.request import Request
from asr.errors import AudioError
from asr.transcription.transcript import Segment

# Samples of all channels that are decoded in a slice: some 20 ms of processor time.
_SLICE_SAMPLES = 2**21


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


def at_speed(wave_N: Tensor, rate: int, factor: float) -> Tensor:
    """Return a waveform (N,) at `rate` Hz, played `factor` times as fast; the pitch changes too."""
    if factor == 1.0:
        return wave_N
    return torch.from_numpy(soxr.resample(wave_N.numpy(), round(rate * factor), rate))


@dataclass
class ChunkedRecording:
    """A recording that is cut at silences while it is read; the caller adds its segments.

    `error` is known, and `is_read` True, once `chunks` has ended.
    """

    recording: Recording
    chunk_seconds: float
    request: Request | None = None
    warnings: tuple[str, ...] = ()  # beside those of the recording
    segments: list[Segment] = field(default_factory=list)
    error: AudioError | None = None
    is_read: bool = False
    _n_cut: int = 0  # samples that are in chunks

    def chunks(self) -> Iterator[Chunk]:
        """Read the recording and yield its chunks; an error of reading is kept in `error`."""
        return (chunk for chunk in self.slices() if chunk)

    def slices(self) -> Iterator[Chunk | None]:
        """Yield the chunks, and None wherever a slice (`_SLICE_SAMPLES`) was decoded without one.

        So a caller can read several recordings in turns, whatever their rates and channels. A
        cancelled request ends the reading within a block.
        """
        splitter = Splitter(self.recording.sample_rate, self.chunk_seconds)
        read_until = 0
        try:
            for block in self.recording:
                if self.request and self.request.is_cancelled:
                    return
                for wave in splitter.add(block):
                    yield self._chunk(wave)
                    read_until = self.recording.n_samples
                if self.recording.n_samples - read_until >= _SLICE_SAMPLES:
                    yield None
                    read_until = self.recording.n_samples
            yield from map(self._chunk, splitter.rest())
        except AudioError as error:
            self.error = error
        self.is_read = True

    def _chunk(self, wave: np.ndarray) -> Chunk:
        rate, start = self.recording.sample_rate, self._n_cut
        self._n_cut += len(wave)
        return Chunk(start / rate, self._n_cut / rate, torch.from_numpy(wave), self.request)
