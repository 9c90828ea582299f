"""The audio of one live session, cut to segments as it comes, and their texts."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import soundfile

from asr.audio.segmentation import split_at_silence

# A segment ends at the latest after so many seconds, at the quietest moment of its last half.
_LONGEST = 10.0
# How much new audio a new partial text waits for, and how much may wait for its text, in seconds.
_NEWS, _BACKLOG = 0.7, 30.0


class Session:
    """What is heard goes in by `hear`, what it means comes out of `answers`.

    At most a segment and a backlog are held, whatever the client sends: `hear` waits for place.
    `transcribe` gives the transcript of a WAV file, as plain values, quickly where it is told to.
    """

    def __init__(
        self, sample_rate: int, transcribe: Callable[[bytes, bool], Awaitable[dict[str, Any]]]
    ) -> None:
        self.ended = False
        self._rate, self._transcribe = sample_rate, transcribe
        self._held = bytearray()  # 16-bit samples; grows without a copy of what is there
        self._n_done = 0  # samples before those that are held
        self._n_guessed, self._guessed = 0, ""  # the last partial text, and of how many samples
        self._reason: Exception | None = None
        self._changed = asyncio.Condition()

    @property
    def seconds(self) -> float:
        """How much was heard."""
        return (self._n_done + self._n_held) / self._rate

    @property
    def _n_held(self) -> int:
        return len(self._held) // 2

    @property
    def _held_N(self) -> np.ndarray:
        return np.frombuffer(bytes(self._held), "<i2")

    async def hear(self, pcm: bytes) -> None:
        """Take 16-bit PCM; returns once what is held has shrunk enough for more."""
        most = int((_LONGEST + _BACKLOG) * self._rate)
        async with self._changed:
            self._held += pcm
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._n_held <= most)

    async def end(self, reason: Exception | None = None) -> None:
        """No more comes; `answers` raises the reason, if there is one, after its last."""
        async with self._changed:
            self.ended, self._reason = True, reason
            self._changed.notify_all()

    async def answers(self) -> AsyncIterator[dict[str, Any]]:
        """The messages to the client: `partial` texts, `final` segments, `end`."""
        longest = int(_LONGEST * self._rate)
        while True:
            async with self._changed:
                await self._changed.wait_for(self._is_due)
            if self._n_held > longest:
                piece_N = next(split_at_silence([self._held_N], self._rate, _LONGEST))
                for final in await self._finals(piece_N):
                    yield final
            elif not self.ended:
                guess = await self._guess()
                if guess != self._guessed:
                    self._guessed = guess
                    yield {"type": "partial", "text": guess}
            elif self._n_held:
                for final in await self._finals(self._held_N):
                    yield final
            else:
                break
        if self._reason:
            raise self._reason
        yield {"type": "end", "duration": self.seconds}

    def _is_due(self) -> bool:
        return self.ended or self._n_held - self._n_guessed >= _NEWS * self._rate

    async def _guess(self) -> str:
        """The running segment's text, found the quick way."""
        self._n_guessed = self._n_held
        text: str = (await self._transcribe(self._wav(self._held_N), True))["text"]
        return text

    async def _finals(self, piece_N: np.ndarray) -> list[dict[str, Any]]:
        """What begins what is held: a segment and its n best, or more where the model wants it."""
        start = self._n_done / self._rate
        async with self._changed:
            del self._held[: 2 * len(piece_N)]
            self._n_done += len(piece_N)
            self._n_guessed, self._guessed = 0, ""
            self._changed.notify_all()
        heard = await self._transcribe(self._wav(piece_N), False)
        return [
            {"type": "final", "segment": _later(segment, start), "nbest": heard["nbest"]}
            for segment in heard["segments"]
        ]

    def _wav(self, wave_N: np.ndarray) -> bytes:
        file = io.BytesIO()
        soundfile.write(file, wave_N, self._rate, format="WAV", subtype="PCM_16")
        return file.getvalue()


def _later(segment: dict[str, Any], start: float) -> dict[str, Any]:
    """A segment and its tokens, in seconds from the session's start."""
    for part in (segment, *(segment["tokens"] or ())):
        part["start"] += start
        part["end"] += start
    return segment
