"""What the WebSockets for live text share: slots, refusals, messages and patience."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import JsonValue
from pydantic_core import from_json

from serve.errors import ApiError, quoted
from serve.middleware.limits import Load

logger = logging.getLogger("serve.routes.sockets")

MAX_MESSAGE = 2**17  # bytes: more than a second at usual sample rates


class Refusal(ApiError):
    """Why the service ends a session: a WebSocket close code (RFC 6455) and a sentence."""

    def __init__(self, close_code: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(500 if close_code in (1001, 1011, 1013) else 400, message, param, code)
        self.close_code = close_code


AsMessage = Callable[[Refusal], object]  # an error as JSON


async def converse(
    websocket: WebSocket,
    protocol: str,
    talk: Callable[[WebSocket], Awaitable[None]],
    as_message: AsMessage,
) -> None:
    """Have one session, from its slot to its close code; `protocol` is the subprotocol, if any."""
    state = websocket.app.state
    offered = websocket.scope.get("subprotocols", [])
    await websocket.accept(subprotocol=protocol if protocol in offered else None)
    state.n_live += 1
    try:
        _admit(state.n_live, state.load, websocket.scope["asr.client"])
        with state.load.slot(websocket.scope["asr.client"]):
            await talk(websocket)
        await websocket.close()
    except Refusal as refusal:
        websocket.scope["asr.record"].error = refusal.code
        await _refuse(websocket, refusal, as_message)
    except WebSocketDisconnect:
        pass
    except Exception:
        logger.exception("a live session failed")
        message = "the service failed: try again, its log says why"
        await _refuse(websocket, Refusal(1011, message, "failed"), as_message)
    finally:
        state.n_live -= 1


async def _refuse(websocket: WebSocket, refusal: Refusal, as_message: AsMessage) -> None:
    try:
        await websocket.send_json(as_message(refusal))
        await websocket.close(refusal.close_code)
    except (WebSocketDisconnect, RuntimeError):
        pass  # the client has disconnected


def _admit(n_live: int, load: Load, client: str) -> None:
    if error := load.refusal(client):
        raise Refusal(1013, error.message, error.code or "busy")
    if n_live > load.settings.max_live_sessions:
        raise Refusal(1013, "all live sessions are taken: try again later", "busy")


async def both(one: Awaitable[None], other: Awaitable[None]) -> None:
    """Wait until one of two is done, and end the other. Raises what either raises."""
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def message_of(websocket: WebSocket, seconds: float, most: int = MAX_MESSAGE) -> str | bytes:
    """Return the next message. Raises Refusal where it is too large or none comes in time."""
    try:
        async with asyncio.timeout(seconds):
            received = await websocket.receive()
    except TimeoutError as error:
        idle = websocket.app.state.settings.live_idle_seconds
        reason = f"next to no audio came for {idle:g} seconds: begin again"
        raise Refusal(1008, reason, "idle") from error
    if received["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(received["code"])
    message: str | bytes = received.get("bytes") or received.get("text") or b""
    if len(message) > most:
        reason = f"a message holds at most {most} bytes: send a second or less at a time"
        raise Refusal(1009, reason, "message_too_large")
    return message


def parsed(message: str | bytes, example: str) -> JsonValue:
    """Return the value of a JSON message. Raises Refusal for another, with an example."""
    if isinstance(message, bytes):
        raise Refusal(1003, f"audio came first: begin with {example}", "invalid_message")
    try:
        value: JsonValue = from_json(message)
        return value
    except ValueError as error:
        reason = f"{quoted(message)} is not JSON: send audio as binary messages"
        raise Refusal(1007, reason, "invalid_message") from error


class Patience:
    """The time that the service waits for a client, until a thirtieth of it has come as audio."""

    def __init__(self, seconds: float, max_message: int = MAX_MESSAGE) -> None:
        self._most = self._left = seconds
        self._max_message = max_message
        self._audio_before = 0.0

    async def message(self, websocket: WebSocket, audio_seconds: float) -> str | bytes:
        """Return the next message, after so much audio in all.

        Raises Refusal after too long a time with too little audio.
        """
        if audio_seconds - self._audio_before >= self._most / 30:
            self._audio_before, self._left = audio_seconds, self._most
        asked = time.monotonic()
        message = await message_of(websocket, self._left, self._max_message)
        self._left -= time.monotonic() - asked
        return message
