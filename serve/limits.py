"""A limit on request bodies that holds while they arrive, with or without a Content-Length."""

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.errors import ApiError

# How long a refused client may go on sending before its connection is closed.
_LINGER_SECONDS = 5.0


class BodyLimit:
    """ASGI middleware: whoever reads more than `max_bytes` of a body gets a 413 to raise."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on with its body counted."""
        if scope["type"] == "http":
            body = _Body(Headers(scope=scope), receive, send, self.max_bytes)
            receive, send = body.receive, body.send
        await self.app(scope, receive, send)


class _Body:
    def __init__(self, headers: Headers, receive: Receive, send: Send, max_bytes: int) -> None:
        self._receive, self._send, self._max_bytes = receive, send, max_bytes
        self._n_declared = int(headers.get("content-length", 0))
        self._n_received = 0
        self._refused = False

    async def receive(self) -> Message:
        """The body's next part. Raises ApiError 413, for a declared length before any part."""
        if self._n_declared > self._max_bytes:
            raise self._too_large()
        message = await self._receive()
        self._n_received += len(message.get("body", b""))
        if self._n_received > self._max_bytes:
            raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        """Pass the answer on, and after a refusal see that the client can read it.

        A socket closed on bytes that nobody read resets the connection, and the client then sees
        that instead of the 413; so what it still sends is read and thrown away for a while.
        """
        last = message["type"] == "http.response.body" and not message.get("more_body")
        if self._refused and last:
            await self._send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_SECONDS):
                    while (await self._receive()).get("more_body"):
                        pass
            message = {"type": "http.response.body"}
        await self._send(message)

    def _too_large(self) -> ApiError:
        self._refused = True
        return ApiError(
            413,
            f"the request is larger than the {self._max_bytes} bytes that are allowed: send a "
            "shorter recording, or a compressed one (flac, ogg, mp3)",
            param="file",
            code="request_too_large",
            headers={"connection": "close"},
        )
