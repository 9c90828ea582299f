"""Live transcription over a WebSocket: PCM in, partial and final text out, segment by segment.

The client sends JSON, `{"sample_rate": 16000, "model": "NAME"}`, then binary messages of 16-bit
little-endian mono PCM, and `{"type": "end"}` when it has no more. It gets `partial` (the running
segment's text so far), `final` (a segment that will not change any more), after the last `end`.
"""

import asyncio
import io
import json
import logging
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, Field, ValidationError

from serve.errors import ErrorBody, ErrorReply, quoted
from serve.session import Session
from serve.worker import Worker

router = APIRouter()
_log = logging.getLogger(__name__)


@dataclass
class LiveSessions:
    """What all sessions share: their limits, and how many there are.

    A message holds at most `max_message_bytes`, a session `max_seconds` of audio, and it waits
    `idle_seconds` for the next message.
    """

    max_sessions: int = 16
    max_message_bytes: int = 2**17
    max_seconds: float = 3600.0
    idle_seconds: float = 30.0
    n_sessions: int = 0


class Refusal(Exception):
    """Why a session ends before its time: a sentence and a WebSocket close code (RFC 6455)."""

    def __init__(
        self, close_code: int, message: str, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        kind = "server_error" if close_code in (1011, 1013) else "invalid_request_error"
        body = ErrorBody(message=message, type=kind, code=code, param=param)
        self.close_code, self.reply = close_code, ErrorReply(error=body)


class Start(BaseModel):
    """A session's first message: the rate of its audio in Hz, and a name of GET /v1/models."""

    sample_rate: Annotated[int, Field(ge=8000, le=96000)]
    model: str


@router.websocket("/v1/live")
async def live(websocket: WebSocket) -> None:
    """One session, from its place among the others to its close code."""
    sessions: LiveSessions = websocket.app.state.live
    await websocket.accept()
    sessions.n_sessions += 1
    try:
        if sessions.n_sessions > sessions.max_sessions:
            raise Refusal(1013, "all live sessions are taken: try again later", "busy")
        await _converse(websocket, sessions)
        await websocket.close()
    except Refusal as refusal:
        await _refuse(websocket, refusal)
    except WebSocketDisconnect:
        pass
    except Exception:
        _log.exception("a live session failed")
        await _refuse(websocket, Refusal(1011, "the service failed: try again, its log says why"))
    finally:
        sessions.n_sessions -= 1


async def _refuse(websocket: WebSocket, refusal: Refusal) -> None:
    try:
        await websocket.send_json(refusal.reply.model_dump())
        await websocket.close(refusal.close_code)
    except (WebSocketDisconnect, RuntimeError):
        pass  # it left before it could be told


async def _converse(websocket: WebSocket, sessions: LiveSessions) -> None:
    """Listen and answer at the same time, until all is answered or either fails."""
    start = await _start(websocket, sessions)
    workers: dict[str, Worker] = websocket.app.state.workers
    if start.model not in workers:
        raise Refusal(
            1008,
            f"model {quoted(start.model)} is not served here: use {' or '.join(workers)}",
            "model_not_found",
            "model",
        )
    worker = workers[start.model]

    async def transcribe(audio: bytes, quick: bool) -> dict[str, Any]:
        return (await worker.transcribe(io.BytesIO(audio), quick)).as_dict()

    session = Session(start.sample_rate, transcribe)
    tasks = (
        asyncio.create_task(_listen(websocket, sessions, session)),
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


async def _start(websocket: WebSocket, sessions: LiveSessions) -> Start:
    try:
        return Start.model_validate(_parsed(await _message(websocket, sessions)))
    except TimeoutError as error:
        raise _idle(sessions) from error
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][-1]) if first["loc"] else None
        raise Refusal(
            1007,
            f"{param or 'the first message'}: {first['msg']}: begin with JSON such as "
            '{"sample_rate": 16000, "model": "NAME"}',
            param=param,
        ) from error


async def _message(websocket: WebSocket, sessions: LiveSessions) -> str | bytes:
    """The next message. Raises Refusal where it is too large, TimeoutError where none comes."""
    async with asyncio.timeout(sessions.idle_seconds):
        received = await websocket.receive()
    if received["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(received["code"])
    message: str | bytes = received.get("bytes") or received.get("text") or b""
    if len(message) > sessions.max_message_bytes:
        raise Refusal(
            1009,
            f"a message holds at most {sessions.max_message_bytes} bytes: send audio in parts of "
            "a second or less",
            "message_too_large",
        )
    return message


def _parsed(message: str | bytes) -> Any:
    if isinstance(message, bytes):
        raise Refusal(1003, 'audio came before {"sample_rate": 16000, "model": "NAME"}: begin so')
    try:
        return json.loads(message)
    except (ValueError, RecursionError) as error:
        raise Refusal(1007, f"{quoted(message)} is not JSON: text messages are") from error


def _idle(sessions: LiveSessions) -> Refusal:
    return Refusal(1008, f"nothing came for {sessions.idle_seconds:g} seconds: begin again", "idle")


async def _listen(websocket: WebSocket, sessions: LiveSessions, session: Session) -> None:
    """Take audio until the session ends, then notice whether the client stays for the rest."""
    while not session.ended:
        try:
            message = await _message(websocket, sessions)
        except TimeoutError:
            await session.end(_idle(sessions))
            break
        if isinstance(message, bytes):
            await _take(message, sessions, session)
        elif _parsed(message) == {"type": "end"}:
            await session.end()
        else:
            raise Refusal(1003, f'{quoted(message)} is unknown: send audio or {{"type": "end"}}')
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
    raise WebSocketDisconnect


async def _take(pcm: bytes, sessions: LiveSessions, session: Session) -> None:
    if len(pcm) % 2:
        raise Refusal(1007, f"{len(pcm)} bytes are not whole samples: send 16-bit PCM", "odd_bytes")
    await session.hear(pcm)
    if session.seconds > sessions.max_seconds:
        reason = f"a session holds at most {sessions.max_seconds:g} seconds: begin another"
        await session.end(Refusal(1009, reason, "too_long"))


async def _answer(websocket: WebSocket, session: Session) -> None:
    async for answer in session.answers():
        await websocket.send_json(answer)
