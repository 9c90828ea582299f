"""Streams in the engine: each turn computes the next chunk of all that have one, as one batch."""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import soxr

from asr.decoding.endpoint import Endpoint
from asr.transcription.recognizer import Recognizer
from asr.transcription.stream import Chunk, EncodedChunk, Session, encode_chunks
from asr.transcription.transcript import StreamResult
from serve.engine import messages
from serve.engine.faults import breaks_the_gpu, failure
from serve.engine.job import with_hotwords

Result = TypeVar("Result")


@dataclass(eq=False)
class Stream:
    """A stream: the parts that have come since the last turn, and its session."""

    asked: messages.Open
    recognizer: Recognizer
    parts: deque[messages.Audio] = field(default_factory=deque)
    session: Session | None = None
    resampler: Any = None  # None: it has the model's rate
    is_ended: bool = False

    def take_in(self) -> Session:
        """Feed the parts that have come to the session, at the model's rate; return the session."""
        rate, wanted = self.asked.pcm_rate, self.recognizer.sample_rate
        if self.session is None:
            longest = self.recognizer.config.decoding.chunk_seconds
            endpoint = Endpoint.within(longest, self.asked.silence_seconds)
            options = with_hotwords(self.recognizer.config.decoding, self.asked.hotwords)
            self.session = Session(self.recognizer, options, endpoint)
            if rate != wanted:
                self.resampler = soxr.ResampleStream(rate, wanted, 1, dtype="float32")
        while self.parts and not self.is_ended:
            part = self.parts.popleft()
            wave_N = np.frombuffer(part.pcm, "<i2").astype(np.float32) / 2**15
            if self.resampler:
                wave_N = self.resampler.resample_chunk(wave_N, last=part.is_last)
            self.session.feed(wave_N)
            if part.is_last:
                self.session.end()
                self.is_ended = True
        return self.session


class Streams:
    """The open streams. `changed` guards what the thread of the pipe and the main thread share.

    `send` sends a message to the service. `end` ends the process after an error for which all later
    work on the GPU would fail.
    """

    def __init__(
        self,
        changed: threading.Condition,
        send: Callable[[messages.FromEngine], None],
        end: Callable[[], None],
    ) -> None:
        self._changed, self._send, self._end = changed, send, end
        self._streams: dict[int, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, asked: messages.Open, recognizer: Recognizer) -> None:
        """Begin a stream."""
        with self._changed:
            self._streams[asked.id] = Stream(asked, recognizer)

    def put(self, part: messages.Audio) -> None:
        """Add a part to a stream, if it is still open."""
        with self._changed:
            if stream := self._streams.get(part.id):
                stream.parts.append(part)
                self._changed.notify()

    def drop(self, id: int) -> None:
        """Forget a stream, if it is open."""
        with self._changed:
            self._streams.pop(id, None)

    @property
    def is_due(self) -> bool:
        """Tell whether a turn has something to do; for the main thread."""
        return any(
            s.parts or (s.session and (s.session.is_ready or s.is_ended))
            for s in self._streams.values()
        )

    def advance(self) -> None:
        """Compute the next chunk of each stream that has one; streams of a model share a batch."""
        with self._changed:
            streams = list(self._streams.values())
        ready: dict[Recognizer, list[tuple[Stream, Session]]] = {}
        for stream in streams:
            session = self._guarded(stream, stream.take_in)
            if session and session.is_ready:
                ready.setdefault(stream.recognizer, []).append((stream, session))
            elif session and stream.is_ended and self._is_open(stream):
                self._finish(stream, session)
        for recognizer, batch in ready.items():
            self._compute(recognizer, batch)

    def _compute(self, recognizer: Recognizer, batch: Sequence[tuple[Stream, Session]]) -> None:
        began = time.monotonic()
        chunks = [(*each, self._guarded(each[0], each[1].next_chunk)) for each in batch]
        known = [(stream, session, chunk) for stream, session, chunk in chunks if chunk]
        if not known:
            return
        encoded = self._encoded(recognizer, known)
        seconds = sum(chunk.steps for *_, chunk in known) * recognizer.config.step_seconds
        found: list[tuple[Stream, Session, list[StreamResult]]] = []
        for (stream, session, _), each in zip(known, encoded, strict=True):
            if each and (results := self._taken(stream, session, each)) is not None:
                found.append((stream, session, results))
        self._send(messages.BatchDone(len(known), seconds, time.monotonic() - began))
        for stream, session, results in found:
            if self._is_open(stream):
                id = stream.asked.id
                self._send(messages.Streamed(id, tuple(results), session.start))

    def _encoded(
        self, recognizer: Recognizer, known: Sequence[tuple[Stream, Session, Chunk]]
    ) -> list[EncodedChunk | None]:
        """Encode chunks as one batch or, if that fails, one by one: None for those that fail."""
        try:
            states = [session.state for _, session, _ in known]
            return [*encode_chunks(recognizer, states, [chunk for *_, chunk in known])]
        except Exception as error:
            if len(known) == 1:
                self._fail(known[0][0], error)
                return [None]
            traceback.clear_frames(error.__traceback__)  # they hold the tensors of the batch
        return [self._encoded(recognizer, [each])[0] for each in known]

    def _taken(
        self, stream: Stream, session: Session, chunk: EncodedChunk
    ) -> list[StreamResult] | None:
        return self._guarded(stream, lambda: session.take(chunk))

    def _finish(self, stream: Stream, session: Session) -> None:
        """Send the last result of a stream that has ended."""
        results = self._guarded(stream, session.flush)
        self.drop(stream.asked.id)
        if results is not None:
            id = stream.asked.id
            self._send(messages.Streamed(id, tuple(results), session.start, is_last=True))

    def _guarded(self, stream: Stream, work: Callable[[], Result]) -> Result | None:
        """Return the result of a stream's own work; on an error end this stream and return None."""
        try:
            return work()
        except Exception as error:
            self._fail(stream, error)
            return None

    def _fail(self, stream: Stream, error: Exception) -> None:
        self.drop(stream.asked.id)
        self._send(failure(stream.asked.id, error))
        if breaks_the_gpu(error):
            self._end()

    def _is_open(self, stream: Stream) -> bool:
        return stream.asked.id in self._streams
