"""Check API keys; give each request an id, a line in the log and metrics; answer failures."""

import base64
import hmac
import logging
import time
from contextlib import suppress
from dataclasses import asdict

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.errors import ApiError, reply
from serve.logs import RequestRecord
from serve.metrics import Metrics
from serve.middleware.paths import route_path
from serve.settings import Settings

logger = logging.getLogger("serve.middleware.access")

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_ANSWERS = {"http.response.start", "websocket.accept", "websocket.http.response.start"}


class AccessLogMiddleware:
    """Give each request and WebSocket an id, and log and count its response.

    `scope["asr.record"]` is the request's `RequestRecord`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; count its bytes, and log and count its response."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        record = scope["asr.record"] = RequestRecord()
        status = None

        async def counting_receive() -> Message:
            message = await receive()
            record.bytes += len(message.get("body") or message.get("bytes") or b"")
            return message

        async def noting_send(message: Message) -> None:
            nonlocal status
            if message["type"] in _ANSWERS:
                status = message.get("status", 101)
                message.setdefault("headers", [])
                MutableHeaders(scope=message)["x-request-id"] = record.request
            elif message["type"] == "websocket.close" and status is None:
                status = 403  # which the server answers
            await send(message)

        started = time.monotonic()
        try:
            await self.app(scope, counting_receive, noting_send)
        finally:
            self._write(scope, record, status or 500, time.monotonic() - started)

    def _write(self, scope: Scope, record: RequestRecord, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")  # the pattern, without client data
        given = scope.get("method", "GET")  # a WebSocket begins with a GET
        method = given if given in _METHODS else "other"
        self.metrics.requests.labels(route, method, status).inc()
        self.metrics.request_seconds.labels(route).observe(seconds)
        if record.error:
            self.metrics.errors.labels(record.error).inc()
        values = {"route": route, "method": method, "status": status, "seconds": round(seconds, 4)}
        known = {key: value for key, value in asdict(record).items() if value is not None}
        logger.info("request", extra={"fields": {**values, **known}})


class FailureMiddleware:
    """Answer a request on which the service fails, and log why beside the request's id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        is_answered = False

        async def noting_send(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self.app(scope, receive, noting_send)
        except Exception:
            if scope["type"] != "http" or is_answered:
                raise
            fields = {"request": scope["asr.record"].request}
            logger.exception("the service failed", extra={"fields": fields})
            error = ApiError(500, "the service failed: try again, its log says why", code="failed")
            await reply(error, scope)(scope, receive, send)


class ApiKeyMiddleware:
    """Require one of the keys, if there are any, for all paths below /v1/."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._keys = [key.get_secret_value().encode() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it with a 401."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        scope["asr.client"] = (scope.get("client") or ("unknown",))[0]
        if self._keys and route_path(scope).startswith("/v1/"):
            index = self._index(_authorization(Headers(scope=scope)))
            if index is None:
                await self._refuse(scope, receive, send)
                return
            scope["asr.client"] = f"key {index}"
        await self.app(scope, receive, send)

    def _index(self, authorization: str) -> int | None:
        """Return the index of the key that was sent, in a time that reveals nothing about keys."""
        scheme, _, text = authorization.partition(" ")
        given = text.encode("latin-1").strip()  # as bytes: "à" ends in a Latin-1 space
        found = [hmac.compare_digest(given, k) for k in self._keys]
        return found.index(True) if scheme.lower() == "bearer" and any(found) else None

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = "no valid key was sent: add the header `Authorization: Bearer KEY`"
        headers = {"www-authenticate": "Bearer"}
        error = ApiError(401, message, code="invalid_api_key", headers=headers)
        await reply(error, scope)(scope, receive, send)


def _authorization(headers: Headers) -> str:
    """Return the Authorization header, or what the WebSocket of a page offers in its place.

    A page offers a subprotocol: `bearer.` and the key in base64 for URLs, without padding; or, as
    OpenAI's client does, `openai-insecure-api-key.` and the key itself. In each case the key is
    UTF-8, decoded as Latin-1. Returns "" where nothing is sent.
    """
    if "authorization" in headers:
        return headers["authorization"]
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        kind, _, key = offered.strip().partition(".")
        if kind == "openai-insecure-api-key":
            return f"Bearer {key}"
        if kind == "bearer":
            with suppress(ValueError):
                decoded = base64.urlsafe_b64decode(key + "=" * (-len(key) % 4))
                return "Bearer " + decoded.decode("latin-1")
    return ""
