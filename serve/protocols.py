"""uvicorn's HTTP and WebSocket protocols, with limits on what a peer may cost the event loop."""

import asyncio

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from serve.connections import Impatient, most_connections
from serve.errors import ApiError

# Limits of a request: bytes of its head, or between two parts of its body; and header fields.
_MAX_HEAD, _MAX_FIELDS = 2**16, 200
# A body may have _MAX_SMALL chunks, and one more for each _SMALL bytes; a WebSocket may have
# _MAX_SMALL messages, and one more for each _SMALL_MESSAGE bytes. Each chunk or message costs the
# time of 1 kB. A message of 2.5 ms at 8 kHz has 40 bytes.
_MAX_SMALL, _SMALL, _SMALL_MESSAGE = 1024, 64, 32
_SLICE = 2**13  # bytes of a WebSocket that are parsed before their messages are counted
_BODY_FIELDS = {b"content-length", b"transfer-encoding"}
_CLOSE_SECONDS = 1.0  # for a peer to answer the close of its session


class Malformed(Exception):
    """A request is no HTTP that the service accepts; the answer is a 400."""


class HttpProtocol(Impatient, HttpToolsProtocol):
    """HTTP/1.1 without pipelining, with limits on heads, on chunks and on connections.

    There are fewer connections than descriptors. Above the limit a new connection takes the place
    of the one that has waited longest for a request.
    """

    _began = 0.0
    _n_quiet = _n_data = _n_fields = _n_parts = _n_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request; above the limit, abort the connection that waits longest."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            since = {c.idle_since(): c for c in self.connections if isinstance(c, Impatient)}
            oldest = since[min(time for time in since if time is not None)]  # this one waits, too
            self.connections.discard(oldest)
            oldest.transport.abort()

    def idle_since(self) -> float | None:
        """Return since when it waits, or since when it is answered and sends an unread body.

        The latter is the time of the request's head: a body that goes on after the beginning of
        its response is not read.
        """
        is_answered = self.cycle and self.cycle.response_started and self.cycle.more_body
        return self._began if is_answered else super().idle_since()

    def data_received(self, data: bytes) -> None:
        """Parse; send a 400 for malformed data, or `_MAX_HEAD` bytes without a part of a body."""
        self._unset_keepalive_if_required()
        self._n_data = len(data)
        self._n_quiet += len(data)
        try:
            self._feed(data)
        except HttpParserError:
            self.send_400_response("")
        if self._n_quiet > _MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("")

    def _feed(self, data: bytes) -> None:
        """Parse data; ignore an upgrade to anything but a WebSocket, as RFC 9110, 7.8 allows."""
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                head = self._head_without_upgrade()
                self.parser = HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn
                self.parser.feed_data(head + data[upgrade.args[0] :])

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection to a `LiveProtocol`, which has a time limit of its own."""
        self._stop_waiting()
        self._n_quiet = 0
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        """Begin a request. Raises Malformed if the one before it is not answered."""
        _require(self.cycle is None or self.cycle.response_complete)
        self._n_quiet = self._n_data
        self._n_fields = self._n_parts = self._n_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head; drop fields after the body. Raises Malformed for too many."""
        self._n_fields += 1
        _require(self._n_fields <= _MAX_FIELDS)
        if self.waiting_since is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer, unless another protocol is asked for, on which `_feed` decides."""
        method = self.parser.get_method()
        if not self.parser.should_upgrade():
            super().on_headers_complete()
            self._stop_waiting()
            self._began = self.loop.time()
        elif self._should_upgrade():
            _require(method == b"GET" and _BODY_FIELDS.isdisjoint(dict(self.headers)))
            super().on_headers_complete()  # only notes the method
        else:
            _require(method != b"CONNECT")

    def on_body(self, body: bytes) -> None:
        """Take a part of a body. Raises Malformed if too many parts are small."""
        self._n_parts += 1
        self._n_bytes += len(body)
        _require(self._n_parts <= _MAX_SMALL + self._n_bytes // _SMALL)
        self._n_quiet = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a body, if a request has begun."""
        if self.waiting_since is None:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._wait()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Send a 400 in OpenAI's shape for malformed HTTP, and close the connection."""
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


class LiveProtocol(Impatient, WebSocketsSansIOProtocol):
    """A WebSocket with limits on small messages and on answers to pings.

    While the service makes its peer wait, it reads nothing. So it expects no answer to its own
    pings then.
    """

    _n_frames = _n_bytes = 0
    _read_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a session."""
        super().connection_made(transport)
        self.close_timeout = _CLOSE_SECONDS

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; `HttpProtocol` may have removed it already to make room."""
        self.connections.add(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data in slices; fail the session where too many messages are small."""
        self._read_at = self.loop.time()
        for start in range(0, len(data), _SLICE):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + _SLICE])
            if self._n_frames > _MAX_SMALL + self._n_bytes // _SMALL_MESSAGE:
                self._fail(1008, "too many small messages")
        if not self.handshake_initiated:  # the first data are a whole head, but no valid handshake
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def handle_events(self) -> None:
        """Count the frames that have come, and handle them."""
        frames = [event for event in self.conn.events if isinstance(event, Frame)]
        self._n_frames += len(frames)
        self._n_bytes += sum(len(frame.data) for frame in frames)
        super().handle_events()

    def send_receive_event_to_app(self) -> None:
        """Pass a message on; replace a text that is not UTF-8 by the repr of its bytes: no JSON."""
        data = b"".join(self.frames)
        if self.curr_msg_data_type == "text":
            try:
                data.decode()
            except UnicodeDecodeError:
                self.frames = [repr(data[:80]).encode()]
        super().send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer a ping, unless the peer does not read: the answers would fill the memory."""
        answer = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(answer)

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message; after a refusal, note that the handshake is complete, as uvicorn forgets.

        A session that the service has closed counts as waiting: its peer may never answer.
        """
        await super().send(message)
        self.handshake_complete |= self.close_sent
        if self.handshake_complete:
            self._stop_waiting()
        if self.close_sent:
            self.waiting_since = self.loop.time()

    def keepalive_timeout(self) -> None:
        """Close if nothing came after the last ping, unless the service itself reads nothing."""
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
    """Raise Malformed unless a condition holds; `data_received` then sends a 400."""
    if not condition:
        raise Malformed
