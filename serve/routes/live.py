"""Live transcription over a WebSocket: PCM in, partial and final text out, segment by segment.

The client sends JSON, `{"sample_rate": 16000, "model": "NAME"}`, then binary messages of 16-bit
little-endian mono PCM, and `{"type": "end"}` after the last. It gets `partial` (the text of the
current segment so far), `final` (a segment that will not change any more), and `end` as the last.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, Field, JsonValue, ValidationError
from pydantic_core import from_json

from asr.decoding.hotwords import Hotword, of_request
from asr.errors import ConfigError
from asr.transcription.transcript import Transcript
from serve.engine.client import EngineClient, Job
from serve.engine.messages import Done
from serve.errors import ApiError, quoted, unknown_model
from serve.middleware.limits import Load
from serve.routes.live_session import Session
from serve.settings import Settings

router = APIRouter()
logger = logging.getLogger("serve.routes.live")

_EXAMPLE = '{"sample_rate": 16000, "model": "NAME"}'
PROTOCOL = "lrt-asr"  # for clients that offer a key as another subprotocol
_MAX_MESSAGE = 2**17  # bytes: more than a second at usual sample rates


class Refusal(ApiError):
    """Why the service ends a session: a WebSocket close code (RFC 6455) and a sentence."""

    def __init__(self, close_code: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(500 if close_code in (1001, 1011, 1013) else 400, message, param, code)
        self.close_code = close_code


class Start(BaseModel):
    """A session's first message: the sample rate of its audio in Hz, and the model's name.

    `hotwords` and `prompt` are as in the form of a recording; hotwords may be a list too.
    """

    sample_rate: Annotated[int, Field(ge=8000, le=96000)]
    model: str
    hotwords: str | list[str] = ""
    prompt: str = ""

    @property
    def phrases(self) -> tuple[Hotword, ...]:
        """Return the hotwords of both. Raises ConfigError beyond the limits."""
        given = self.hotwords if isinstance(self.hotwords, str) else "\n".join(self.hotwords)
        return of_request(given, self.prompt)


@router.websocket("/v1/live")
async def live(websocket: WebSocket) -> None:
    """Serve one session, from its slot to its close code."""
    state = websocket.app.state
    offered = websocket.scope.get("subprotocols", [])
    await websocket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
    state.n_live += 1
    try:
        _admit(state.n_live, state.load, websocket.scope["asr.client"])
        with state.load.slot(websocket.scope["asr.client"]):
            await _converse(websocket, state.settings)
        await websocket.close()
    except Refusal as refusal:
        websocket.scope["asr.record"].error = refusal.code
        await _refuse(websocket, refusal)
    except WebSocketDisconnect:
        pass
    except Exception:
        logger.exception("a live session failed")
        message = "the service failed: try again, its log says why"
        await _refuse(websocket, Refusal(1011, message, "failed"))
    finally:
        state.n_live -= 1


def _admit(n_live: int, load: Load, client: str) -> None:
    if error := load.refusal(client):
        raise Refusal(1013, error.message, error.code or "busy")
    if n_live > load.settings.max_live_sessions:
        raise Refusal(1013, "all live sessions are taken: try again later", "busy")


async def _refuse(websocket: WebSocket, refusal: Refusal) -> None:
    try:
        await websocket.send_json(refusal.body().model_dump())
        await websocket.close(refusal.close_code)
    except (WebSocketDisconnect, RuntimeError):
        pass  # the client has disconnected


async def _converse(websocket: WebSocket, settings: Settings) -> None:
    """Receive and answer concurrently, until all is answered or either fails."""
    start, phrases = await _start(websocket, settings)
    engine: EngineClient = websocket.app.state.engine

    async def transcribe(pcm: bytes, quick: bool) -> Transcript:
        asked = partial(engine.submit, start.model, pcm, start.sample_rate, quick=quick)
        return await _transcribe(partial(asked, hotwords=() if quick else phrases), settings)

    session = Session(start.sample_rate, transcribe)
    tasks = (
        asyncio.create_task(_listen(websocket, session)),
        asyncio.create_task(_answer(websocket, session)),
    )
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        websocket.scope["asr.record"].audio_seconds = session.seconds


async def _transcribe(submit: Callable[[], Job], settings: Settings) -> Transcript:
    """Transcribe a part of a session, again if the engine was restarted meanwhile."""
    try:
        async with asyncio.timeout(settings.deadline_seconds):
            while True:
                try:
                    with submit() as job:
                        event = await job.next()
                    assert isinstance(event, Done), "without partials the first event is the last"
                    return event.transcript
                except ApiError as error:
                    if error.status_code != 503:
                        raise Refusal(1011, error.message, error.code or "failed") from error
                await asyncio.sleep(1)
    except TimeoutError as error:
        message = f"not done within {settings.deadline_seconds:g} seconds: try again later"
        raise Refusal(1011, message, "deadline") from error


async def _start(websocket: WebSocket, settings: Settings) -> tuple[Start, tuple[Hotword, ...]]:
    """Return the first message, with the name that its model has here, and its hotwords."""
    try:
        start = Start.model_validate(_parsed(await _message(websocket, settings.live_idle_seconds)))
        phrases = start.phrases
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][-1]) if first["loc"] else None
        reason = f"{param or 'the first message'}: {first['msg'].lower()}: begin with {_EXAMPLE}"
        raise Refusal(1007, reason, "invalid_message", param) from error
    except ConfigError as error:
        raise Refusal(1007, str(error), "invalid_message", "hotwords") from error
    if model := settings.find_model(start.model):
        return start.model_copy(update={"model": model}), phrases
    message = unknown_model(start.model, settings.models).message
    raise Refusal(1008, message, "model_not_found", "model")


async def _message(websocket: WebSocket, seconds: float) -> str | bytes:
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
    if len(message) > _MAX_MESSAGE:
        reason = f"a message holds at most {_MAX_MESSAGE} bytes: send a second or less at a time"
        raise Refusal(1009, reason, "message_too_large")
    return message


def _parsed(message: str | bytes) -> JsonValue:
    if isinstance(message, bytes):
        raise Refusal(1003, f"audio came first: begin with {_EXAMPLE}", "invalid_message")
    try:
        value: JsonValue = from_json(message)
        return value
    except ValueError as error:
        reason = f"{quoted(message)} is not JSON: send audio as binary messages"
        raise Refusal(1007, reason, "invalid_message") from error


async def _listen(websocket: WebSocket, session: Session) -> None:
    """Feed audio until the session ends, then wait for the client to disconnect."""
    load: Load = websocket.app.state.load
    patience = _Patience(load.settings.live_idle_seconds)
    while not session.ended:
        try:
            message = await patience.message(websocket, session)
        except Refusal as refusal:
            if refusal.code != "idle":
                raise
            await session.end(refusal)
            break
        if isinstance(message, bytes):
            await _take(message, session, load)
        elif _parsed(message) == {"type": "end"}:
            await session.end()
        else:
            reason = f'{quoted(message)} is unknown: send audio or {{"type": "end"}}'
            raise Refusal(1003, reason, "invalid_message")
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
    raise WebSocketDisconnect


class _Patience:
    """The time that the service waits for a client, until a thirtieth of it has come as audio."""

    def __init__(self, seconds: float) -> None:
        self._most = self._left = seconds
        self._audio_before = 0.0

    async def message(self, websocket: WebSocket, session: Session) -> str | bytes:
        """Return the next message. Raises Refusal after too long a time with too little audio."""
        if session.seconds - self._audio_before >= self._most / 30:
            self._audio_before, self._left = session.seconds, self._most
        asked = time.monotonic()
        message = await _message(websocket, self._left)
        self._left -= time.monotonic() - asked
        return message


async def _take(pcm: bytes, session: Session, load: Load) -> None:
    """Feed audio; what ends the session here lets it send the text so far."""
    if len(pcm) % 2:
        reason = f"{len(pcm)} bytes are not whole samples: send 16-bit PCM"
        raise Refusal(1007, reason, "invalid_message")
    await session.feed(pcm)
    most = load.settings.max_live_seconds
    if max(session.seconds, session.age) > most:
        reason = f"a session lasts at most {most:g} seconds: begin another"
        await session.end(Refusal(1009, reason, "too_long"))
    elif load.draining:
        reason = "the service is being stopped: begin another session in a moment"
        await session.end(Refusal(1001, reason, "unavailable"))


async def _answer(websocket: WebSocket, session: Session) -> None:
    async for message in session.messages():
        await websocket.send_json(message.model_dump(mode="json"))
