"""uvicorn's ends of a connection, with limits on what a peer may cost the event loop."""

import asyncio
import resource

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from serve.errors import ApiError

# A peer that takes less than so many bytes of what it is sent, in so many seconds, is cut off.
_STALL_SECONDS, _STALL_BYTES = 20.0, 2**14
_MAX_HEAD, _MAX_FIELDS = 2**16, 200  # of a request: bytes, and header fields
# Chunks of a body and messages of a WebSocket: so many may be small. Each costs the time of 1 kB.
_MAX_SMALL, _SMALL = 1024, 64
_SLICE = 2**13  # bytes of a WebSocket that are parsed before their messages are counted
_RESERVE = 40  # descriptors for the rest: logs, the engine's pipe, the start of another engine


class Malformed(Exception):
    """What uvicorn answers with a 400, since it is no HTTP as the service accepts it."""


def backlog() -> int:
    """Return how many connections may be accepted in one step of the event loop."""
    return max(1, min(128, _most_descriptors() // 8))


def _most_connections() -> int:
    return max(1, _most_descriptors() - backlog() - _RESERVE)


def _most_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else soft


class _Impatient(asyncio.Protocol):
    """Cut off a peer that does not read; senders that wait for it then go on."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make the transport call `pause_writing` for each byte that the socket does not take."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=0)

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


class HttpProtocol(_Impatient, HttpToolsProtocol):
    """HTTP/1.1 without pipelining, with limits on heads, on chunks and on connections.

    There are fewer connections than descriptors: one more takes the place of the one that has
    waited longest for a request.
    """

    _waiting_since: float | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _n_head = _n_fields = _n_parts = _n_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request, where there is room."""
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > _most_connections():
            since = {c._waiting_since: c for c in self.connections if isinstance(c, HttpProtocol)}
            oldest = since[min(time for time in since if time is not None)]  # this one waits, too
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._have_head()

    def data_received(self, data: bytes) -> None:
        """Parse, but not the head of a request without end."""
        super().data_received(data)
        if self._waiting_since is not None and not self.transport.is_closing():
            self._n_head += len(data)
            if self._n_head > _MAX_HEAD:
                self.send_400_response("")

    def on_message_begin(self) -> None:
        """Begin a request, if the one before it is answered."""
        _require(self.cycle is None or self.cycle.response_complete)
        self._n_head = self._n_fields = self._n_parts = self._n_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head; those after the body are dropped."""
        self._n_fields += 1
        _require(self._n_fields <= _MAX_FIELDS)
        if self._waiting_since is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._have_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a chunk, or what has come of a body."""
        self._n_parts += 1
        self._n_bytes += len(body)
        _require(self._n_parts <= _MAX_SMALL + self._n_bytes // _SMALL)
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._await_head()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Answer what is no HTTP in OpenAI's shape, and close the connection."""
        message = (
            "the request is malformed, too long in its head, in too many small chunks, or sent "
            "before the answer to the one before it: send HTTP/1.1"
        )
        body = ApiError(400, message, code="bad_http").body().model_dump_json().encode()
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % len(body) + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._waiting_since = self.loop.time()
        seconds = self.config.timeout_keep_alive
        self._head_timer = self.loop.call_later(seconds, self.transport.abort)

    def _have_head(self) -> None:
        self._waiting_since = None
        if self._head_timer:
            self._head_timer.cancel()


class LiveProtocol(_Impatient, WebSocketsSansIOProtocol):
    """A WebSocket with limits on small messages and on answers to pings.

    While the service makes its peer wait, it reads nothing, so it expects no answer to its own.
    """

    _n_frames = _n_bytes = 0
    _read_at = 0.0

    def data_received(self, data: bytes) -> None:
        """Parse so much that the messages in it take little time, and so on."""
        self._read_at = self.loop.time()
        for start in range(0, len(data), _SLICE):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + _SLICE])
            if self._n_frames > _MAX_SMALL + self._n_bytes // _SMALL:
                self._fail(1008, "too many small messages")

    def handle_events(self) -> None:
        """Count and handle what has come."""
        frames = [event for event in self.conn.events if isinstance(event, Frame)]
        self._n_frames += len(frames)
        self._n_bytes += sum(len(frame.data) for frame in frames)
        super().handle_events()

    def handle_ping(self) -> None:
        """Answer, unless the peer does not read: answers would fill the memory."""
        answer = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(answer)

    async def send(self, message: ASGISendEvent) -> None:
        """Send; after a refusal the handshake is complete, which uvicorn forgets."""
        await super().send(message)
        self.handshake_complete |= self.close_sent

    def keepalive_timeout(self) -> None:
        """Close if the peer is silent, though it was listened to."""
        if self.read_paused or self._read_at > self.ping_sent_at:
            self.schedule_ping()
        else:
            super().keepalive_timeout()

    def _fail(self, code: int, reason: str) -> None:
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()


def _require(condition: bool) -> None:
    """Raise what makes uvicorn call `send_400_response`."""
    if not condition:
        raise Malformed
