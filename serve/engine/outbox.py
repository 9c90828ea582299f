"""A queue of messages for the pipe to the engine, which takes none while the engine hangs."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection

from serve.engine import messages


class Outbox:
    """Send messages in order by a thread of its own; all methods are called in the event loop.

    A recording that is no longer waited for is dropped. If the pipe is already taking it, `hold`
    counts its bytes until it is taken. The waiting parts of a stream are dropped in the same case.
    """

    def __init__(self, hold: Callable[[int], None]) -> None:
        self._hold = hold
        self._thread = ThreadPoolExecutor(1, "asr-send")
        self._waiting: dict[int, messages.Transcribe] = {}
        self._parts: dict[int, deque[messages.Open | messages.Audio]] = {}
        self._sent: dict[int, tuple[asyncio.Future[None], int]] = {}

    def put(self, pipe: Connection, message: messages.Transcribe) -> None:
        """Send a recording."""
        id = message.id  # only `_waiting` refers to the message, so that a drop frees it
        self._waiting[id] = message
        sent = self._run(self._send_waiting, pipe, id)
        self._sent[id] = sent, len(message.audio)
        sent.add_done_callback(lambda _: self._sent.pop(id))

    def put_part(self, pipe: Connection, message: messages.Open | messages.Audio) -> None:
        """Send a part of a stream."""
        self._parts.setdefault(message.id, deque()).append(message)
        self._run(self._send_part, pipe, message.id)

    def drop_parts(self, id: int) -> None:
        """Drop the parts of a stream that the pipe has not begun to take."""
        self._parts.pop(id, None)

    def cancel(self, pipe: Connection, id: int) -> None:
        """Drop a recording that still waits here; otherwise have the engine drop it or a stream."""
        if self._waiting.pop(id, None):
            return
        if id in self._sent:
            sent, n_bytes = self._sent[id]
            self._hold(n_bytes)
            sent.add_done_callback(lambda _: self._hold(-n_bytes))
        self._run(_send, pipe, messages.Cancel(id))

    def clear(self) -> None:
        """Drop what the pipe has not begun to take."""
        self._waiting.clear()
        self._parts.clear()

    def close(self) -> None:
        """End the thread, as soon as the pipe lets it."""
        self.clear()
        self._thread.shutdown(wait=False)

    def _run(self, send: Callable[..., None], *arguments: object) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._thread, send, *arguments)

    def _send_waiting(self, pipe: Connection, id: int) -> None:
        if message := self._waiting.pop(id, None):
            _send(pipe, message)

    def _send_part(self, pipe: Connection, id: int) -> None:
        if parts := self._parts.get(id):
            _send(pipe, parts.popleft())


def _send(pipe: Connection, message: messages.ToEngine) -> None:
    with suppress(OSError):  # the engine died, and is restarted
        pipe.send(message)
