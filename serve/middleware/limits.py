"""Limits on requests while they arrive: their bytes, their time, and how many there are."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.errors import ApiError, reply, unavailable
from serve.metrics import Metrics
from serve.settings import Settings

# How long a client may go on sending after its response, before its connection is closed.
_LINGER_SECONDS, _SHORT_LINGER_SECONDS = 5.0, 0.5
# An upload has _FIRST_SECONDS, and a second more for each _SLOW_BYTES that arrive, but never more
# than _MOST_SECONDS ahead. Where slots or memory are short, an upload whose time is over is ended.
_SLOW_BYTES, _FIRST_SECONDS, _MOST_SECONDS = 2**14, 1.0, 5.0


@dataclass(eq=False)
class Upload:
    """A body that arrives: when it began, the time it has, and whether it was ended for another.

    `began` and `fast_until` are the event loop's times in seconds. After `fast_until` it is slow.
    """

    began: float
    fast_until: float
    n_bytes: int = 0
    has_slot: bool = False
    was_ended: bool = False


class Load:
    """The requests that the service has accepted, and the bytes of their bodies."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.draining = False
        self.held_bytes = 0
        self.ended = False
        self._uploads: dict[Upload, asyncio.Timeout] = {}
        self._by_client: Counter[str] = Counter()

    @property
    def n_accepted(self) -> int:
        """Return the number of requests that are not answered yet."""
        return self._by_client.total()

    def refusal(self, client: str) -> ApiError | None:
        """Return why a request of a client cannot be accepted now, or None if it can.

        Where all slots are taken, the slowest upload is ended to make room, if one is slow.
        """
        most = self.settings.max_requests_per_client
        if self.draining:
            return unavailable("the service is being stopped: try another replica")
        if most is not None and self._by_client[client] >= most:
            return unavailable(
                f"{most} requests of yours are open: wait for one", "rate_limit", 429
            )
        if self.n_accepted >= self.settings.max_requests and not self._end_slowest():
            return unavailable("all request slots are taken: try again in a second", "busy")
        return None

    @contextmanager
    def slot(self, client: str) -> Iterator[None]:
        """Count a request of a client as accepted."""
        self._by_client[client] += 1
        self.metrics.in_flight.set(self.n_accepted)
        try:
            yield
        finally:
            self._by_client[client] -= 1
            self._by_client += Counter()  # drops clients without a request
            self.metrics.in_flight.set(self.n_accepted)

    @contextmanager
    def upload(self, upload: Upload, limit: asyncio.Timeout) -> Iterator[None]:
        """Register an upload while its client is waited for; to end it, `limit` is rescheduled."""
        self._uploads[upload] = limit
        try:
            yield
        finally:
            del self._uploads[upload]

    def _end_slowest(self) -> bool:
        """End the slowest upload that has a slot, and free its bytes; tell whether one was slow."""
        open_ = [
            upload
            for upload, limit in self._uploads.items()
            if upload.has_slot and not upload.was_ended and not limit.expired()
        ]
        slowest = min(open_, key=lambda upload: upload.fast_until, default=None)
        if slowest is None or slowest.fast_until >= asyncio.get_running_loop().time():
            return False
        slowest.was_ended = True
        self._uploads[slowest].reschedule(0)
        self.hold(-slowest.n_bytes)
        slowest.n_bytes = 0
        return True

    def end(self) -> None:
        """Stop waiting for clients: refuse the requests that have not arrived."""
        self.ended = True
        for limit in self._uploads.values():
            if not limit.expired():
                limit.reschedule(0)

    def take(self, upload: Upload, n_bytes: int) -> None:
        """Count bytes of an upload; end slow uploads while all bodies together are too large.

        Raises ApiError (503) where no upload is slow and the bodies are still too large.
        """
        now = asyncio.get_running_loop().time()
        more = n_bytes / _SLOW_BYTES
        upload.fast_until = min(upload.fast_until + more, now + _MOST_SECONDS)
        upload.n_bytes += n_bytes
        self.hold(n_bytes)
        while self.held_bytes > self.settings.max_held_bytes:
            if not self._end_slowest():
                raise unavailable("other recordings fill the memory: try again in a second", "busy")

    def hold(self, n_bytes: int) -> None:
        """Count bytes that are held, or, if negative, are released."""
        self.held_bytes += n_bytes
        self.metrics.held_bytes.set(self.held_bytes)


class ConcurrencyLimitMiddleware:
    """Give each POST request a slot until it is answered, or refuse it unread."""

    def __init__(self, app: ASGIApp, load: Load) -> None:
        self.app, self.load = app, load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        client = scope["asr.client"]
        if refusal := self.load.refusal(client):
            await reply(refusal, scope)(scope, receive, send)
            return
        with self.load.slot(client):
            scope["asr.upload"].has_slot = True
            await self.app(scope, receive, send)


class BodyLimitMiddleware:
    """Count and time bodies while they arrive, whatever their headers say."""

    def __init__(self, app: ASGIApp, load: Load) -> None:
        self.app, self.load = app, load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body limited."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        now = asyncio.get_running_loop().time()
        upload = scope["asr.upload"] = Upload(now, now + _FIRST_SECONDS)
        body = _Body(Headers(scope=scope), receive, send, self.load, upload)
        try:
            await self.app(scope, body.receive, body.send)
        finally:
            self.load.hold(-upload.n_bytes)


class _Body:
    def __init__(
        self, headers: Headers, receive: Receive, send: Send, load: Load, upload: Upload
    ) -> None:
        self._receive, self._send, self._load, self._upload = receive, send, load, upload
        self._n_declared = int(headers.get("content-length", 0))
        self._arrived = not self._n_declared and "transfer-encoding" not in headers
        self._deadline = upload.began + load.settings.upload_seconds

    async def receive(self) -> Message:
        """Return the next part of the body, and after the last one the server's messages.

        Raises ApiError: 413 for too many bytes, before any part where they are declared; 408 where
        the body takes too long; 499 where its client leaves; 503 where all bodies together are too
        large, the upload is ended for another one, or the service is being stopped.
        """
        if self._arrived:
            return await self._receive()
        limits = self._load.settings
        if self._n_declared > limits.max_bytes:
            raise _too_large(limits.max_bytes)
        message = None
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline) as limit:
                with self._load.upload(self._upload, limit):
                    message = await self._receive()
        if message is None or self._upload.was_ended:
            raise self._late()
        if message["type"] == "http.disconnect":
            raise ApiError(499, "the client has disconnected", code="client_gone")
        n_bytes = len(message.get("body", b""))
        if self._upload.n_bytes + n_bytes > limits.max_bytes:
            raise _too_large(limits.max_bytes)
        self._load.take(self._upload, n_bytes)
        self._arrived = not message.get("more_body", False)
        return message

    def _late(self) -> ApiError:
        if self._load.ended:
            return unavailable("the service is being stopped: try another replica")
        if self._upload.was_ended:
            reason = "others need the place of this request, which arrived slowly"
            return unavailable(f"{reason}: try again in a second", "busy")
        reason = f"the request did not arrive within {self._load.settings.upload_seconds:g} seconds"
        return ApiError(408, f"{reason}: send a smaller recording", code="upload_timeout")

    async def send(self, message: Message) -> None:
        """Pass the response on; if the body has not ended, read and drop its rest for a while.

        A socket that is closed with unread bytes resets the connection. The client would see the
        reset instead of the response.
        """
        if message["type"] == "http.response.start" and not self._arrived:
            headers = [*message.get("headers", []), (b"connection", b"close")]
            message = {**message, "headers": headers}
        last = message["type"] == "http.response.body" and not message.get("more_body")
        if last and not self._arrived:
            await self._send({**message, "more_body": True})
            hurry = self._load.ended or self._upload.was_ended
            seconds = _SHORT_LINGER_SECONDS if hurry else _LINGER_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds) as limit:
                    with self._load.upload(self._upload, limit):
                        while (await self._receive()).get("more_body"):
                            pass
            message = {"type": "http.response.body"}
        await self._send(message)


def _too_large(max_bytes: int) -> ApiError:
    message = (
        f"the request is larger than the {max_bytes} bytes that are allowed: send a shorter "
        "recording, or a compressed one (flac, ogg, mp3)"
    )
    return ApiError(413, message, "file", "request_too_large")
