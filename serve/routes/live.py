"""Live transcription over a WebSocket: PCM in, partial and final text out, segment by segment.

The client sends JSON, `{"sample_rate": 16000, "model": "NAME"}`, then binary messages of 16-bit
little-endian mono PCM, and `{"type": "end"}` after the last. It gets `partial` (the text of the
current segment so far), `final` (a segment that will not change any more), and `end` as the last.
"""

import asyncio
from contextlib import aclosing
from typing import Annotated, Literal

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, Field, ValidationError

from asr.decoding.hotwords import Hotword, of_request
from asr.errors import ConfigError
from asr.transcription.transcript import Segment, Transcript
from asr.transcription.writers import as_srt, as_vtt
from serve.errors import quoted, unknown_model
from serve.middleware.limits import Load
from serve.routes.live_models import begin
from serve.routes.live_session import LiveSession
from serve.routes.responses import timed
from serve.routes.schemas import TimedSegment
from serve.routes.sockets import Patience, Refusal, both, converse, message_of, parsed
from serve.settings import Settings

router = APIRouter()

_EXAMPLE = '{"sample_rate": 16000, "model": "NAME"}'
PROTOCOL = "lrt-asr"  # for clients that offer a key as another subprotocol


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


class PartialText(BaseModel):
    """The text of the current segment so far."""

    type: Literal["partial"] = "partial"
    text: str


class FinalSegment(BaseModel):
    """A segment that will not change any more; times are seconds from the session's start."""

    type: Literal["final"] = "final"
    segment: TimedSegment


class SessionEnd(BaseModel):
    """The last message: the whole text, its subtitles, and the seconds of audio received.

    `warnings` tell the texts that are left out as too uncertain.
    """

    type: Literal["end"] = "end"
    text: str
    srt: str
    vtt: str
    duration: float
    warnings: list[str]


LiveMessage = PartialText | FinalSegment | SessionEnd


@router.websocket("/v1/live")
async def live(websocket: WebSocket) -> None:
    """Serve one session, from its slot to its close code."""
    await converse(websocket, PROTOCOL, _talk, lambda refusal: refusal.body().model_dump())


async def _talk(websocket: WebSocket) -> None:
    """Receive and answer concurrently, until all is answered or either fails."""
    start, phrases = await _start(websocket, websocket.app.state.settings)
    session = begin(websocket.app.state, start.model, start.sample_rate, hotwords=phrases)
    try:
        await both(_listen(websocket, session), _answer(websocket, session))
    finally:
        websocket.scope["asr.record"].audio_seconds = session.seconds


async def _start(websocket: WebSocket, settings: Settings) -> tuple[Start, tuple[Hotword, ...]]:
    """Return the first message, with the name that its model has here, and its hotwords."""
    try:
        start = Start.model_validate(
            parsed(await message_of(websocket, settings.live_idle_seconds), _EXAMPLE)
        )
        phrases = start.phrases
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][0]) if first["loc"] else None
        wrong = first["msg"].lower() if param != "hotwords" else "give a text or a list of texts"
        reason = f"{param or 'the first message'}: {wrong}: begin with {_EXAMPLE}"
        raise Refusal(1007, reason, "invalid_message", param) from error
    except ConfigError as error:
        raise Refusal(1007, str(error), "invalid_message", "hotwords") from error
    if model := settings.find_model(start.model):
        return start.model_copy(update={"model": model}), phrases
    message = unknown_model(start.model, settings.models).message
    raise Refusal(1008, message, "model_not_found", "model")


async def _listen(websocket: WebSocket, session: LiveSession) -> None:
    """Feed audio until the session ends, then wait for the client to disconnect."""
    load: Load = websocket.app.state.load
    patience = Patience(load.settings.live_idle_seconds)
    while not session.ended:
        try:
            message = await patience.message(websocket, session.seconds)
        except Refusal as refusal:
            if refusal.code != "idle":
                raise
            await session.end(refusal)
            break
        if isinstance(message, bytes):
            await _take(message, session, load)
        elif parsed(message, _EXAMPLE) == {"type": "end"}:
            await session.end()
        else:
            reason = f'{quoted(message)} is unknown: send audio or {{"type": "end"}}'
            raise Refusal(1003, reason, "invalid_message")
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
    raise WebSocketDisconnect


async def _take(pcm: bytes, session: LiveSession, load: Load) -> None:
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


async def _answer(websocket: WebSocket, session: LiveSession) -> None:
    async def send(message: LiveMessage) -> None:
        await websocket.send_json(message.model_dump(mode="json"))

    segments = list[Segment]()
    async with aclosing(session.results()) as results:
        async for result in results:
            if result.is_final:
                segments.append(result.segment)
                await send(FinalSegment(segment=timed(result.segment)))
            else:
                await send(PartialText(text=result.text))
    whole = Transcript.join(segments, session.seconds, ())
    # Those of an hour take longer than other sessions can wait.
    srt, vtt = [await asyncio.to_thread(written, whole) for written in (as_srt, as_vtt)]
    end = SessionEnd(
        text=whole.text, srt=srt, vtt=vtt, duration=whole.duration, warnings=list(whole.warnings)
    )
    await send(end)
