"""Limits on the number of connections, and on the time that a connection waits for its peer."""

import asyncio
import resource

from uvicorn.config import Config

# A peer is cut off where its write buffer shrinks by less than _STALL_BYTES in _STALL_SECONDS.
_STALL_SECONDS, _STALL_BYTES = 20.0, 2**14
_RESERVE = 40  # descriptors for the rest: logs, the engine's pipe, the start of another engine


def backlog() -> int:
    """Return how many connections may be accepted in one step of the event loop."""
    return max(1, min(128, _most_descriptors() // 8))


def most_connections() -> int:
    """Return how many connections may be open."""
    return max(1, _most_descriptors() - backlog() - _RESERVE)


def _most_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else soft


class Impatient(asyncio.Protocol):
    """Cut off a peer that does not read, or that begins neither a request nor a session.

    A coroutine that waits to send to a peer that does not read then goes on.
    """

    config: Config
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    waiting_since: float | None = None  # for a request or a session
    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request or a session.

        The limit of 0 makes the transport call `pause_writing` as soon as the socket does not take
        a byte.
        """
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=0)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._stop_waiting()

    def pause_writing(self) -> None:
        """Begin to watch whether the peer reads."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Stop watching: all is sent."""
        super().resume_writing()
        if self._stalled:
            self._stalled.cancel()

    def _watch(self) -> None:
        size = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(_STALL_SECONDS, self._check, size)

    def _check(self, size_before: int) -> None:
        if self.transport.get_write_buffer_size() > size_before - _STALL_BYTES:
            self.transport.abort()
        else:
            self._watch()

    def idle_since(self) -> float | None:
        """Return the event loop's time since when the connection waits; None if it is in use."""
        return self.waiting_since

    def _wait(self) -> None:
        self._stop_waiting()
        self.waiting_since = self.loop.time()
        seconds = self.config.timeout_keep_alive
        self._waiting = self.loop.call_later(seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        self.waiting_since = None
        if self._waiting:
            self._waiting.cancel()
