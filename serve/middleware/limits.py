"""Limits that hold while a request arrives: its bytes and its time, and how many there are."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.errors import ApiError, reply
from serve.metrics import Metrics
from serve.settings import Settings

# How long a client that was answered before it sent all may go on before its connection is closed.
_LINGER_SECONDS = 5.0


class Load:
    """What the service is busy with: requests that it accepted, and the bytes of their bodies."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.draining = False
        self.held_bytes = 0
        self._by_client: Counter[str] = Counter()

    @property
    def n_accepted(self) -> int:
        """Requests that are not answered yet."""
        return self._by_client.total()

    def refusal(self, client: str) -> ApiError | None:
        """Why a request cannot be accepted now."""
        most = self.settings.max_requests_per_client
        if self.draining:
            return busy("the service is being stopped: try another replica", "unavailable")
        if most is not None and self._by_client[client] >= most:
            return busy(f"{most} requests of yours are open: wait for one", "rate_limit", 429)
        if self.n_accepted >= self.settings.max_requests:
            return busy("all places are taken: try again in a second", "busy")
        return None

    @contextmanager
    def place(self, client: str) -> Iterator[None]:
        """A request's place."""
        self._by_client[client] += 1
        self.metrics.in_flight.set(self.n_accepted)
        try:
            yield
        finally:
            self._by_client[client] -= 1
            self._by_client += Counter()  # those without a request are forgotten
            self.metrics.in_flight.set(self.n_accepted)

    def hold(self, n_bytes: int) -> None:
        """Count bytes that are held, or with a minus no longer are."""
        self.held_bytes += n_bytes
        self.metrics.held_bytes.set(self.held_bytes)


def busy(message: str, code: str, status: int = 503, retry_after: int = 1) -> ApiError:
    """A refusal of something that may well be accepted later."""
    return ApiError(status, message, code=code, headers={"retry-after": str(retry_after)})


class ConcurrencyLimitMiddleware:
    """ASGI middleware: what is posted has a place until it is answered, or is refused unread."""

    def __init__(self, app: ASGIApp, load: Load) -> None:
        self.app, self.load = app, load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, or refuse it."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        client = scope["asr.client"]
        if refusal := self.load.refusal(client):
            await reply(refusal, scope)(scope, receive, send)
            return
        with self.load.place(client):
            await self.app(scope, receive, send)


class BodyLimit:
    """ASGI middleware: bodies are counted and timed as they arrive, whatever their headers say."""

    def __init__(self, app: ASGIApp, load: Load) -> None:
        self.app, self.load = app, load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on with its body watched."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = _Body(Headers(scope=scope), receive, send, self.load)
        try:
            await self.app(scope, body.receive, body.send)
        finally:
            self.load.hold(-body.n_received)


class _Body:
    def __init__(self, headers: Headers, receive: Receive, send: Send, load: Load) -> None:
        self._receive, self._send, self._load = receive, send, load
        self._n_declared = int(headers.get("content-length", 0))
        self._arrived = not self._n_declared and "transfer-encoding" not in headers
        self._deadline = asyncio.get_running_loop().time() + load.settings.upload_seconds
        self.n_received = 0

    async def receive(self) -> Message:
        """The body's next part, and after the last one what the server has to say.

        Raises ApiError: 413 for too many bytes, before any part where they are declared; 408 where
        the body takes too long; 503 where all bodies together are too large.
        """
        if self._arrived:
            return await self._receive()
        limits = self._load.settings
        if self._n_declared > limits.max_bytes:
            raise _too_large(limits.max_bytes)
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise _too_slow(limits.upload_seconds) from None
        n_bytes = len(message.get("body", b""))
        self.n_received += n_bytes
        self._load.hold(n_bytes)
        if self.n_received > limits.max_bytes:
            raise _too_large(limits.max_bytes)
        if self._load.held_bytes > limits.max_held_bytes:
            raise busy("other recordings fill the memory: try again in a second", "busy")
        self._arrived = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Pass the answer on, and where it came before the body's end see that it can be read.

        A socket closed on bytes that nobody read resets the connection, and the client then sees
        that instead of the answer; so what it still sends is read and thrown away for a while.
        """
        if message["type"] == "http.response.start" and not self._arrived:
            headers = [*message.get("headers", []), (b"connection", b"close")]
            message = {**message, "headers": headers}
        last = message["type"] == "http.response.body" and not message.get("more_body")
        if last and not self._arrived:
            await self._send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_SECONDS):
                    while (await self._receive()).get("more_body"):
                        pass
            message = {"type": "http.response.body"}
        await self._send(message)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the request is larger than the {max_bytes} bytes that are allowed: send a shorter "
        "recording, or a compressed one (flac, ogg, mp3)",
        param="file",
        code="request_too_large",
    )


def _too_slow(seconds: float) -> ApiError:
    return ApiError(
        408, f"the request did not arrive within {seconds:g} seconds: send a smaller recording",
        code="upload_timeout",
    )  # fmt: skip
