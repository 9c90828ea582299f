"""The audio of a live session, cut into segments while it arrives, and their texts.

The WebSocket, its messages and its close codes are in `serve.routes.live`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import BaseModel

from asr.audio.segmentation import split_at_silence
from asr.transcription.transcript import Segment, Transcript
from asr.transcription.writers import as_srt, as_vtt
from serve.routes.responses import timed
from serve.routes.schemas import TimedSegment

# The longest segment in seconds; it ends at the quietest moment of its last half.
_LONGEST = 10.0
# Seconds of new audio for a new partial text, and seconds of audio that may wait for their text.
_NEW_AUDIO, _BACKLOG = 0.7, 30.0

# From 16-bit mono PCM, and whether a quick result will do, to a transcript.
Transcribe = Callable[[bytes, bool], Awaitable[Transcript]]


class PartialText(BaseModel):
    """The text of the current segment so far."""

    type: Literal["partial"] = "partial"
    text: str


class FinalSegment(BaseModel):
    """A segment that will not change any more; times are seconds from the session's start."""

    type: Literal["final"] = "final"
    segment: TimedSegment


class SessionEnd(BaseModel):
    """The last message: the whole text, its subtitles, and the seconds of audio received."""

    type: Literal["end"] = "end"
    text: str
    srt: str
    vtt: str
    duration: float


LiveMessage = PartialText | FinalSegment | SessionEnd


class Session:
    """A session: `feed` takes its audio, `messages` yields the messages to its client.

    At most a segment and a backlog are held: `feed` waits for room.
    """

    def __init__(self, sample_rate: int, transcribe: Transcribe) -> None:
        self.ended = False
        self._began = time.monotonic()
        self._rate, self._transcribe = sample_rate, transcribe
        self._held = bytearray()  # 16-bit samples; appending copies none of them
        self._n_done = 0  # samples before those that are held
        self._n_partial, self._partial = 0, ""  # the last partial text, and its samples
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
        most = int((_LONGEST + _BACKLOG) * self._rate)
        async with self._changed:
            self._held += pcm
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._n_held <= most)

    async def end(self, reason: Exception | None = None) -> None:
        """Take no more; `messages` raises the reason, if there is one, after the last segment."""
        async with self._changed:
            self.ended, self._reason = True, reason
            self._changed.notify_all()

    async def messages(self) -> AsyncIterator[LiveMessage]:
        """Yield the messages to the client: partial texts, final segments, the end."""
        longest, segments = int(_LONGEST * self._rate), list[Segment]()
        while True:
            async with self._changed:
                await self._changed.wait_for(self._is_due)
            if self._n_held > longest or (self.ended and self._n_held):
                for segment in await self._finish(self._next_segment()):
                    segments.append(segment)
                    yield FinalSegment(segment=timed(segment))
            elif not self.ended:
                text = await self._partial_text()
                if text != self._partial:
                    self._partial = text
                    yield PartialText(text=text)
            else:
                break
        if self._reason:
            raise self._reason
        whole = Transcript.join(segments, self.seconds, ())
        yield SessionEnd(
            text=whole.text, srt=as_srt(whole), vtt=as_vtt(whole), duration=whole.duration
        )

    def _is_due(self) -> bool:
        return self.ended or self._n_held - self._n_partial >= _NEW_AUDIO * self._rate

    def _next_segment(self) -> int:
        """Return how many of the held samples the next segment has."""
        held_N = np.frombuffer(bytes(self._held), "<i2")
        return len(next(split_at_silence([held_N], self._rate, _LONGEST)))

    async def _partial_text(self) -> str:
        """Return the text of the current segment, by the quick method."""
        self._n_partial = self._n_held
        return (await self._transcribe(bytes(self._held), True)).text

    async def _finish(self, n_samples: int) -> list[Segment]:
        """Return the first samples as a segment, or as several if the model needs shorter ones."""
        start, pcm = self._n_done / self._rate, bytes(self._held[: 2 * n_samples])
        async with self._changed:
            del self._held[: 2 * n_samples]
            self._n_done += n_samples
            self._n_partial, self._partial = 0, ""
            self._changed.notify_all()
        transcript = await self._transcribe(pcm, False)
        return [_later(segment, start) for segment in transcript.segments]


def _later(segment: Segment, seconds: float) -> Segment:
    """Return a segment with its times and its tokens' so many seconds later."""
    tokens = segment.tokens and tuple(
        replace(token, start=token.start + seconds, end=token.end + seconds)
        for token in segment.tokens
    )
    return replace(segment, start=segment.start + seconds, end=segment.end + seconds, tokens=tokens)
