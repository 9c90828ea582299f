"""Who asks, and what is written down of it: keys, ids, a log line and figures for each request."""

import base64
import hmac
import logging
import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.errors import ApiError, reply
from serve.metrics import Metrics
from serve.settings import Settings

logger = logging.getLogger("serve.middleware.access")

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


class AccessLogMiddleware:
    """ASGI middleware: an id for each request, a log line and figures of its answer.

    Others put what they know of it (`audio_seconds`, `error`) into `scope["asr.record"]`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on and see what comes back."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record: dict[str, Any] = {"request": uuid4().hex, "bytes": 0}
        scope["asr.record"], status = record, 500

        async def counted() -> Message:
            message = await receive()
            record["bytes"] += len(message.get("body", b""))
            return message

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = record["request"]
            await send(message)

        started = time.monotonic()
        try:
            await self.app(scope, counted, noted)
        finally:
            self._write(scope, record, status, time.monotonic() - started)

    def _write(self, scope: Scope, record: dict[str, Any], status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")  # the pattern, never what was asked for
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.metrics.requests.labels(route, method, status).inc()
        self.metrics.request_seconds.labels(route).observe(seconds)
        if "error" in record:
            self.metrics.errors.labels(record["error"]).inc()
        values = {"route": route, "method": method, "status": status, "seconds": round(seconds, 4)}
        logger.info("request", extra={"fields": {**values, **record}})


class ApiKeyMiddleware:
    """ASGI middleware: with keys set, what is below /v1/ is for those who send one of them."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._keys = [key.get_secret_value().encode() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, or refuse it with a 401; a WebSocket is closed."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        scope["asr.client"] = (scope.get("client") or ("unknown",))[0]
        if self._keys and scope["path"].startswith("/v1/"):
            number = self._number(_authorization(Headers(scope=scope)))
            if number is None:
                await self._refuse(scope, receive, send)
                return
            scope["asr.client"] = f"key {number}"
        await self.app(scope, receive, send)

    def _number(self, authorization: str) -> int | None:
        """Which key it is; the time that takes tells nothing about them."""
        scheme, _, told = authorization.partition(" ")
        given = told.encode("latin-1").strip()  # as bytes: "à" ends in a Latin-1 space
        found = [hmac.compare_digest(given, k) for k in self._keys]
        return found.index(True) if scheme.lower() == "bearer" and any(found) else None

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        error = ApiError(
            401, "no valid key was sent: add the header `Authorization: Bearer KEY`",
            code="invalid_api_key", headers={"www-authenticate": "Bearer"},
        )  # fmt: skip
        await reply(error, scope)(scope, receive, send)


def _authorization(headers: Headers) -> str:
    """The header of that name, or what a page's WebSocket, which has none, offers in its place.

    That is a subprotocol `bearer.` and the key in base64 for URLs, without padding. Either has a
    key's UTF-8, each byte as a character (Latin-1), as Starlette reads headers.
    """
    if "authorization" in headers:
        return headers["authorization"]
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        kind, _, key = offered.strip().partition(".")
        if kind == "bearer":
            with suppress(ValueError):
                told = base64.urlsafe_b64decode(key + "=" * (-len(key) % 4))
                return "Bearer " + told.decode("latin-1")
    return ""
