"""OpenAI's realtime transcription over a WebSocket: audio in base64 in, text in events out.

Errors in single events are answered by an `error` event, and the session goes on. What ends it is
an `error` event too, before the close code, which is that of `/v1/live`.
"""

import asyncio
import base64
import binascii
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import from_json

from serve.errors import ApiError, quoted, unknown_model
from serve.middleware.limits import Load
from serve.routes.g711 import as_pcm
from serve.routes.live_models import begin
from serve.routes.realtime_items import Conversation, Turn, new_id
from serve.routes.realtime_schemas import (
    AppendEvent,
    Format,
    Options,
    ServerVad,
    TranscriptionOptions,
    UpdateEvent,
    as_newer,
)
from serve.routes.sockets import Patience, Refusal, both, converse
from serve.settings import DEFAULT_MODEL, Settings

router = APIRouter()

PROTOCOL = "realtime"  # which OpenAI's client for browsers offers
_MAX_MESSAGE = 2**20  # bytes: 16 seconds of 24 kHz in base64
_LEAST_SECONDS = 0.1  # of audio that can be committed

Fields = dict[str, JsonValue]
Model = TypeVar("Model", bound=BaseModel)


@router.websocket("/v1/realtime")
async def realtime(websocket: WebSocket) -> None:
    """Serve one session, from its slot to its close code."""
    await converse(websocket, PROTOCOL, _talk, lambda refusal: _error(refusal, None))


async def _talk(websocket: WebSocket) -> None:
    talk = Talk(websocket, _options(websocket))
    try:
        await both(talk.listen(), talk.answer())
    finally:
        websocket.scope["asr.record"].audio_seconds = talk.seconds


def _options(websocket: WebSocket) -> Options:
    """Return the options at first; the address may name the model."""
    settings: Settings = websocket.app.state.settings
    asked = websocket.query_params.get("model", DEFAULT_MODEL)
    model = settings.find_model(asked) or next(iter(settings.models))
    if asked not in (model, DEFAULT_MODEL):
        raise Refusal(
            1008, unknown_model(asked, settings.models).message, "model_not_found", "model"
        )
    return Options(model, TranscriptionOptions(), Format(), ServerVad())


class Talk:
    """One session: `listen` takes the client's events, `answer` sends the text of its turns."""

    def __init__(self, websocket: WebSocket, options: Options) -> None:
        self._websocket, self._options, self._id = websocket, options, new_id("sess")
        self._load: Load = websocket.app.state.load
        self._conversation = Conversation(self._send)
        self._began = asyncio.get_running_loop().time()
        self._turn: Turn | None = None  # the one that takes audio
        self._turns: asyncio.Queue[Turn | Refusal] = asyncio.Queue(1)
        self._seconds = 0.0  # of audio in turns before this one

    @property
    def seconds(self) -> float:
        """Return how much audio was received."""
        return self._seconds + (self._turn.session.seconds if self._turn else 0.0)

    async def answer(self) -> None:
        """Send the text of turn after turn. Raises why the session ends."""
        while True:
            turn = await self._turns.get()
            if isinstance(turn, Refusal):
                raise turn
            await turn.answer()

    async def listen(self) -> None:
        """Take events until the session ends, then wait for the client to disconnect."""
        await self._describe("session.created")
        patience = Patience(self._load.settings.live_idle_seconds, _MAX_MESSAGE)
        reason = None
        while not reason:
            try:
                message = await patience.message(self._websocket, self.seconds)
            except Refusal as refusal:
                if refusal.code != "idle":
                    raise
                reason = refusal
            else:
                await self._take(message)
                reason = self._late()
        await self._end_turn()
        await self._turns.put(reason)
        while (await self._websocket.receive())["type"] != "websocket.disconnect":
            pass
        raise WebSocketDisconnect

    def _late(self) -> Refusal | None:
        """Return why the session ends now, if so."""
        most = self._load.settings.max_live_seconds
        if max(self.seconds, asyncio.get_running_loop().time() - self._began) > most:
            message = f"a session lasts at most {most:g} seconds: begin another"
            return Refusal(1009, message, "too_long")
        if self._load.draining:
            message = "the service is being stopped: begin another session in a moment"
            return Refusal(1001, message, "unavailable")
        return None

    async def _take(self, message: str | bytes) -> None:
        """Take an event; answer a faulty one with an error."""
        event: Fields = {}
        try:
            event = _parsed(message)
            await self._on(event)
        except ApiError as error:
            if isinstance(error, Refusal):
                raise
            id = event.get("event_id")
            await self._websocket.send_json(_error(error, id if isinstance(id, str) else None))

    def _on(self, event: Fields) -> Awaitable[None]:
        match event.get("type"):
            case "session.update":
                return self._update(event, is_old=False)
            case "transcription_session.update":
                return self._update(as_newer(event), is_old=True)
            case "input_audio_buffer.append":
                return self._append(_valid(AppendEvent, event).audio)
            case "input_audio_buffer.commit":
                return self._commit()
            case "input_audio_buffer.clear":
                return self._clear()
        raise ApiError(
            400,
            f"the event {quoted(str(event.get('type')))} is unknown: a transcription session takes "
            "session.update and input_audio_buffer.append, .commit and .clear",
            "type",
            "unknown_event",
        )

    async def _update(self, event: Fields, is_old: bool) -> None:
        asked = _valid(UpdateEvent, event).session
        transcription = asked.audio.input.transcription
        model, name = self._options.model, transcription and transcription.model
        if name:
            settings = self._load.settings
            model = settings.find_model(name) or ""
            if not model:
                raise unknown_model(name, settings.models)
        options = self._options.updated(asked, model)
        if self._turn and not options.sounds_like(self._options):
            if not self._options.vad:
                message = "the buffer has audio of the session as it was: commit or clear it first"
                raise ApiError(400, message, "session", "buffer_not_empty")
            await self._end_turn()
        self._options = options
        await self._describe("transcription_session.updated" if is_old else "session.updated")

    async def _append(self, audio: str) -> None:
        try:
            pcm = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError):
            raise ApiError(400, "audio is not base64: encode it", "audio", "bad_audio") from None
        format = self._options.format
        if format.type != "audio/pcm":
            pcm = as_pcm(pcm, format.type)
        if len(pcm) % 2:
            message = f"{len(pcm)} bytes are not whole samples: send 16-bit PCM"
            raise ApiError(400, message, "audio", "bad_audio")
        if not pcm:
            return
        if not self._turn:
            vad = self._options.vad
            silence = vad.silence_duration_ms / 1000 if vad else None
            state = self._websocket.app.state
            words = self._options.transcription.hotwords
            session = begin(state, self._options.model, format.sample_rate, silence, words)
            self._turn = Turn(session, self._seconds, self._options, self._conversation)
            await self._turns.put(self._turn)
        second = 2 * format.sample_rate
        for start in range(0, len(pcm), second):  # each waits for room
            await self._turn.session.feed(pcm[start : start + second])

    async def _commit(self) -> None:
        seconds = self._turn.session.seconds if self._turn else 0.0
        if not self._turn or seconds < _LEAST_SECONDS:
            message = f"the buffer has {1000 * seconds:.0f} ms of audio: append 100 ms at least"
            raise ApiError(400, message, code="input_audio_buffer_commit_empty")
        self._turn.is_committed = True
        if not self._options.vad:
            await self._turn.item.commit()
        await self._end_turn()

    async def _clear(self) -> None:
        if self._turn:
            self._turn.is_cleared = True
        await self._end_turn()
        await self._send("input_audio_buffer.cleared", {})

    async def _end_turn(self) -> None:
        """Take no more audio into the turn; its text follows."""
        if turn := self._turn:
            self._seconds, self._turn = self.seconds, None
            await turn.session.end()

    async def _describe(self, type: str) -> None:
        about = {"id": self._id, "object": "realtime.transcription_session"}
        described = self._options.described(is_old=type.startswith("transcription_session"))
        await self._send(type, {"session": {**about, **described}})

    async def _send(self, type: str, fields: dict[str, object]) -> None:
        await self._websocket.send_json({"type": type, "event_id": new_id("event"), **fields})


def _parsed(message: str | bytes) -> Fields:
    try:
        event: JsonValue = from_json(message) if isinstance(message, str) else None
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise ApiError(400, "the message is no event: send JSON objects as text", code="bad_event")
    return event


def _valid(kind: type[Model], event: Fields) -> Model:
    try:
        return kind.model_validate(event)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"])
        message = f"{param}: {first['msg'].lower()}"
        raise ApiError(400, message, param, "invalid_value") from None


def _error(error: ApiError, about: str | None) -> dict[str, object]:
    """Return an error as an event; `about` is the id of the client's event, if it has one."""
    body = {**error.body().error.model_dump(), "event_id": about}
    return {"type": "error", "event_id": new_id("event"), "error": body}
