"""How many connections there may be, and how long one waits for its peer."""

import asyncio
import resource

from uvicorn.config import Config

# A peer that takes less than so many bytes of what it is sent, in so many seconds, is cut off.
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

    Senders that wait for one that does not read then go on.
    """

    config: Config
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    waiting_since: float | None = None  # for a request or a session
    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait; the transport calls `pause_writing` for each byte that the socket does not take."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=0)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._stop_waiting()

    def pause_writing(self) -> None:
        """Begin to watch the peer."""
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
        """Return since when the connection has been of no use, if so."""
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
