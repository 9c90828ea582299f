"""A live session of a model with a streaming encoder: its audio goes to the engine as it comes."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from asr.transcription.transcript import StreamResult
from serve.engine.client import Stream
from serve.engine.messages import Streamed
from serve.errors import ApiError
from serve.routes.live_session import LiveSession, later
from serve.routes.sockets import Refusal

# Seconds of the longest segment of a stream (see `asr.Endpoint`), and before another try.
LONGEST, _PAUSE = 20.0, 1.0


class StreamedSession(LiveSession):
    """A session whose audio is decoded chunk by chunk, beside those of other sessions.

    What the engine has not made final is held: a restarted engine gets it again. Audio that waits
    for the engine for `deadline_seconds` ends the session.
    """

    def __init__(
        self, sample_rate: int, open: Callable[[], Stream], deadline_seconds: float
    ) -> None:
        super().__init__(sample_rate, LONGEST)
        self._open, self._deadline = open, deadline_seconds
        self._stream: Stream | None = None
        self._none_since: float | None = None  # when there began to be no engine

    async def feed(self, pcm: bytes) -> None:
        """Take 16-bit PCM; return once there is room for more."""
        if self._stream:
            self._stream.send(pcm)
        await super().feed(pcm)

    async def end(self, reason: Exception | None = None) -> None:
        """Take no more; `results` raises the reason, if there is one, after the last segment."""
        if self._stream and not self.ended:
            self._stream.send(b"", is_last=True)
        await super().end(reason)

    async def results(self) -> AsyncGenerator[StreamResult, None]:
        """Yield results as the engine finds them."""
        is_done = False
        while not is_done:
            try:
                async with aclosing(self._from_engine()) as results:
                    async for result in results:
                        yield result
                is_done = True
            except ApiError as error:
                if error.status_code != 503:
                    raise Refusal(1011, error.message, error.code or "failed") from error
                self._none_since = self._none_since or time.monotonic()
                if time.monotonic() - self._none_since > self._deadline:
                    self._check_time(error)
                await asyncio.sleep(_PAUSE)
        if self._reason:
            raise self._reason

    async def _from_engine(self) -> AsyncGenerator[StreamResult, None]:
        """Open a stream, send it what is held, and yield its results, until the last."""
        began = self._n_done
        with self._open() as stream:
            stream.send(bytes(self._held), is_last=self.ended)
            self._stream = stream
            try:
                is_last = False
                while not is_last:
                    news = await self._news(stream)
                    is_last = news.is_last
                    done = began + int(news.start * self._rate)
                    await self._drop(max(0, min(done - self._n_done, self._n_held)))
                    for result in news.results:
                        segment = later(result.segment, began / self._rate)
                        yield replace(result, segment=segment)
            finally:
                self._stream = None

    async def _news(self, stream: Stream) -> Streamed:
        """Return the next message of a stream. Raises Refusal where the engine has no time."""
        while True:
            try:
                async with asyncio.timeout(self._deadline):
                    news = await stream.news()
            except TimeoutError as error:
                self._check_time(error)
            else:
                self._none_since = None
                return news

    def _check_time(self, error: Exception) -> None:
        """Raise Refusal if audio has waited for the engine for as long as it may."""
        if self.ended or self._n_held > self._most:
            message = f"not done within {self._deadline:g} seconds: try again later"
            raise Refusal(1011, message, "deadline") from error
