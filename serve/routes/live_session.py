"""The audio of a live session, cut into segments while it arrives, and their texts.

`LiveSession` is what all have in common, `Session` is for models without a streaming encoder;
`serve.routes.streamed_session` has the other one.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace

import numpy as np

from asr.audio.segmentation import split_at_silence
from asr.decoding.endpoint import Endpoint
from asr.transcription.transcript import Segment, StreamResult, Transcript

# The longest segment in seconds; it ends at the quietest moment of its last half.
_LONGEST = 10.0
# Seconds of new audio for a new partial text, and seconds of audio that may wait for their text.
_NEW_AUDIO, BACKLOG = 0.7, 30.0
# Seconds without new audio, after which less is enough.
_STALLED = 1.0

# From 16-bit mono PCM, and whether a quick result will do, to a transcript.
Transcribe = Callable[[bytes, bool], Awaitable[Transcript]]


class LiveSession(ABC):
    """A session: `feed` takes its audio, `results` yields what is found in it.

    The running segment, at most of `longest` seconds, and a backlog are held: `feed` waits for
    room.
    """

    def __init__(self, sample_rate: int, longest: float) -> None:
        self.ended = False
        self._began = time.monotonic()
        self._rate, self._most = sample_rate, int((longest + BACKLOG) * sample_rate)
        self._held = bytearray()  # 16-bit samples; appending copies none of them
        self._n_done = 0  # samples before those that are held
        self._reason: Exception | None = None
        self._changed = asyncio.Condition()

    @property
    def seconds(self) -> float:
        """Return how much audio was received."""
        return (self._n_done + self._n_held) / self._rate

    @property
    def age(self) -> float:
        """Return how long ago the session began, in seconds."""
        return time.monotonic() - self._began

    @property
    def _n_held(self) -> int:
        return len(self._held) // 2

    async def feed(self, pcm: bytes) -> None:
        """Take 16-bit PCM; return once there is room for more."""
        self._held += pcm
        async with self._changed:
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._n_held <= self._most)

    async def end(self, reason: Exception | None = None) -> None:
        """Take no more; `results` raises the reason, if there is one, after the last segment."""
        self.ended, self._reason = True, reason
        async with self._changed:
            self._changed.notify_all()

    @abstractmethod
    def results(self) -> AsyncGenerator[StreamResult, None]:
        """Yield partial texts of the running segment, and final segments; times are seconds."""

    async def _drop(self, n_samples: int) -> None:
        """Hold the first samples no longer."""
        async with self._changed:
            del self._held[: 2 * n_samples]
            self._n_done += n_samples
            self._changed.notify_all()


class Session(LiveSession):
    """A session whose running segment is recognized again and again, until it is long enough.

    With `silence_seconds` it also ends after so much silence behind its text, by its tokens' times.
    """

    def __init__(
        self, sample_rate: int, transcribe: Transcribe, silence_seconds: float | None = None
    ) -> None:
        super().__init__(sample_rate, _LONGEST)
        self._transcribe = transcribe
        self._endpoint: Endpoint | None = None
        if silence_seconds:
            self._endpoint = Endpoint.within(_LONGEST, silence_seconds)
        self._n_partial, self._partial = 0, ""  # the last partial text, and its samples

    async def results(self) -> AsyncGenerator[StreamResult, None]:
        """Yield results; a segment ends at the quietest moment between its 5th and 10th second.

        That is where no pause has ended it before.
        """
        longest = int(_LONGEST * self._rate)
        while True:
            await self._until_due()
            if self._n_held > longest or (self.ended and self._n_held):
                for segment in await self._finish(self._next_segment()):
                    yield StreamResult(segment, True)
            elif not self.ended:
                segment = await self._partial_segment()
                if segment.text != self._partial:
                    self._partial = segment.text
                    yield StreamResult(segment, False)
                if n_samples := self._until_pause(segment):
                    for final in await self._finish(n_samples):
                        yield StreamResult(final, True)
            else:
                break
        if self._reason:
            raise self._reason

    async def _until_due(self) -> None:
        """Wait until there is enough new audio, or some of which no more has come for a while.

        Else a pause that began in it would not be found before more comes.
        """
        async with self._changed:
            while not self._is_due():
                n_held = self._n_held
                try:
                    async with asyncio.timeout(_STALLED):
                        await self._changed.wait()
                except TimeoutError:
                    if self._n_held == n_held > self._n_partial:
                        return

    def _is_due(self) -> bool:
        return self.ended or self._n_held - self._n_partial >= _NEW_AUDIO * self._rate

    def _next_segment(self) -> int:
        """Return how many of the held samples the next segment has."""
        held_N = np.frombuffer(bytes(self._held), "<i2")
        return len(next(split_at_silence([held_N], self._rate, _LONGEST)))

    def _until_pause(self, segment: Segment) -> int:
        """Return the samples of the running segment if it ends now, up to the middle of a pause."""
        if self._endpoint is None or (segment.text and segment.tokens is None):
            return 0
        seconds = segment.end - segment.start
        silence = segment.end - segment.tokens[-1].end if segment.tokens else seconds
        if not self._endpoint.is_reached(seconds, silence, bool(segment.text)):
            return 0
        cut = seconds - min(silence, self._endpoint.silence_seconds) / 2
        return int(cut * self._rate)

    async def _partial_segment(self) -> Segment:
        """Return what is known of the running segment, by the quick method."""
        self._n_partial = self._n_held
        found = await self._transcribe(bytes(self._held), True)
        tokens = [token for segment in found.segments for token in segment.tokens or ()]
        whole = Segment(
            0.0, found.duration, found.text, found.score, "eos", (), (), tuple(tokens) or None
        )
        return later(whole, self._n_done / self._rate)

    async def _finish(self, n_samples: int) -> list[Segment]:
        """Return the first samples as a segment, or as several if the model needs shorter ones."""
        start, pcm = self._n_done / self._rate, bytes(self._held[: 2 * n_samples])
        self._n_partial, self._partial = 0, ""
        await self._drop(n_samples)
        transcript = await self._transcribe(pcm, False)
        return [later(segment, start) for segment in transcript.segments]


def later(segment: Segment, seconds: float) -> Segment:
    """Return a segment with its times and its tokens' so many seconds later."""
    tokens = segment.tokens and tuple(
        replace(token, start=token.start + seconds, end=token.end + seconds)
        for token in segment.tokens
    )
    return replace(segment, start=segment.start + seconds, end=segment.end + seconds, tokens=tokens)
