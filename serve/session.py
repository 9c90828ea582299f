"""The audio of one live session, cut to segments as it comes, and their texts."""

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import numpy as np
import soundfile
import soxr

from asr.audio import split_at_silence
from serve.worker import Worker

# A segment ends at the latest after so many seconds, at the quietest moment of its last half.
_LONGEST = 10.0
# How much new audio a new partial text waits for, and how much may wait for its text, in seconds.
_NEWS, _BACKLOG = 0.7, 30.0


class Session:
    """What is heard goes in by `hear`, what it means comes out of `answers`.

    At most a segment and a backlog are held, whatever the client sends: `hear` waits for place.
    """

    def __init__(self, sample_rate: int, worker: Worker) -> None:
        self.ended = False
        self._worker, self._rate = worker, worker.sample_rate
        self._resampler = soxr.ResampleStream(sample_rate, self._rate, 1, dtype="float32")
        self._held_N = np.zeros(0, np.float32)
        self._n_done = 0  # samples before those that are held
        self._n_guessed, self._guessed = 0, ""  # the last partial text, and of how many samples
        self._reason: Exception | None = None
        self._changed = asyncio.Condition()

    @property
    def seconds(self) -> float:
        """How much was heard."""
        return (self._n_done + len(self._held_N)) / self._rate

    async def hear(self, pcm: bytes) -> None:
        """Take 16-bit PCM; returns once what is held has shrunk enough for more."""
        wave_N = np.frombuffer(pcm, "<i2").astype(np.float32) / 2**15
        await self._hold(self._resampler.resample_chunk(wave_N))

    async def end(self, reason: Exception | None = None) -> None:
        """No more comes; `answers` raises the reason, if there is one, after its last."""
        self.ended, self._reason = True, reason
        await self._hold(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))

    async def _hold(self, wave_N: np.ndarray) -> None:
        async with self._changed:
            self._held_N = np.concatenate((self._held_N, wave_N))
            self._changed.notify_all()
            most = int((_LONGEST + _BACKLOG) * self._rate)
            await self._changed.wait_for(lambda: self.ended or len(self._held_N) <= most)

    async def answers(self) -> AsyncIterator[dict[str, Any]]:
        """The messages to the client: `partial` texts, `final` segments, `end`."""
        longest = int(_LONGEST * self._rate)
        while True:
            async with self._changed:
                await self._changed.wait_for(self._is_due)
            if len(self._held_N) > longest:
                yield await self._final(next(split_at_silence([self._held_N], self._rate, _LONGEST)))
            elif not self.ended:
                guess = await self._guess()
                if guess != self._guessed:
                    self._guessed = guess
                    yield {"type": "partial", "text": guess}
            elif len(self._held_N):
                yield await self._final(self._held_N)
            else:
                break
        if self._reason:
            raise self._reason
        yield {"type": "end", "duration": self.seconds}

    def _is_due(self) -> bool:
        return self.ended or len(self._held_N) - self._n_guessed >= _NEWS * self._rate

    async def _guess(self) -> str:
        """The running segment's text, found the cheap way."""
        self._n_guessed = len(self._held_N)
        return (await self._worker.transcribe(self._file(self._held_N), quick=True)).text

    async def _final(self, piece_N: np.ndarray) -> dict[str, Any]:
        """The segment that begins what is held."""
        start = self._n_done / self._rate
        async with self._changed:
            self._held_N = self._held_N[len(piece_N) :]
            self._n_done += len(piece_N)
            self._n_guessed, self._guessed = 0, ""
            self._changed.notify_all()
        (segment,) = (await self._worker.transcribe(self._file(piece_N))).segments
        return {"type": "final", "segment": _later(asdict(segment), start)}

    def _file(self, wave_N: np.ndarray) -> io.BytesIO:
        file = io.BytesIO()
        soundfile.write(file, wave_N, self._rate, format="WAV", subtype="FLOAT")
        return file


def _later(segment: dict[str, Any], start: float) -> dict[str, Any]:
    """A segment and its tokens, in seconds from the session's start."""
    for part in (segment, *(segment["tokens"] or ())):
        part["start"] += start
        part["end"] += start
    return segment
