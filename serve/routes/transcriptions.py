"""The routes that take a recording."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel

from asr.transcription.writers import FORMATS
from serve.engine.client import EngineClient, Event, Job
from serve.engine.messages import Done, Partial
from serve.errors import ApiError, ErrorReply, body_of, quoted
from serve.routes import responses
from serve.routes.schemas import (
    NativeTranscription,
    RecordingForm,
    TextDelta,
    Transcription,
    TranscriptionForm,
    VerboseTranscription,
)
from serve.settings import Settings

router = APIRouter(
    prefix="/v1",
    tags=["audio"],
    form_limits={"max_files": 4, "max_fields": 100, "max_part_size": 2**17},
    responses={
        "4XX": {"model": ErrorReply, "description": "The request cannot be answered"},
        "5XX": {"model": ErrorReply, "description": "The service failed, or is too busy"},
    },
)

_SUBTITLES = {"srt": "application/x-subrip", "vtt": "text/vtt"}
_TEXTS = {
    kind: {"schema": {"type": "string"}, "example": example}
    for kind, example in {
        "text/plain": "今天天气很好",
        "application/x-subrip": "1\n00:00:00,120 --> 00:00:01,480\n今天天气很好\n\n",
        "text/vtt": "WEBVTT\n\n00:00:00.120 --> 00:00:01.480\n今天天气很好\n\n",
        "text/event-stream": 'data: {"type":"transcript.text.delta","delta":"今天天气很好"}\n\n',
    }.items()
}


@router.post(
    "/audio/transcriptions",
    response_model=Transcription | VerboseTranscription,
    response_model_exclude_none=True,
    responses={200: {"description": "The text, as response_format has it", "content": _TEXTS}},
    summary="Transcribe a recording, as OpenAI's clients ask for it",
)
async def transcribe(
    request: Request,
    form: Annotated[TranscriptionForm, Form(media_type="multipart/form-data")],
) -> BaseModel | Response:
    """Return the text: as JSON, by itself, as subtitles, or as events while it is recognized."""
    events = _events(request, await _submit(request, form, partials=form.stream))
    if form.stream:
        first = await anext(events)  # an error that comes before it has a status of its own
        return StreamingResponse(
            _as_stream(request, form, first, events),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache"},
        )
    transcript = (await _outcome(events)).transcript
    if form.response_format == "text":
        return PlainTextResponse(transcript.text)
    if form.response_format in _SUBTITLES:
        subtitles = FORMATS[form.response_format](transcript)
        return Response(subtitles, media_type=_SUBTITLES[form.response_format])
    body = responses.verbose if form.response_format == "verbose_json" else responses.brief
    return body(transcript, form)


@router.post(
    "/transcribe",
    response_model=NativeTranscription,
    summary="Transcribe a recording, with all that is known of it",
)
async def transcribe_natively(
    request: Request, form: Annotated[RecordingForm, Form(media_type="multipart/form-data")]
) -> NativeTranscription:
    """Return the text with its n best hypotheses, confidences, times, and the time it took."""
    done = await _outcome(_events(request, await _submit(request, form)))
    return responses.native(done, form.model)


async def _submit(request: Request, form: RecordingForm, partials: bool = False) -> Job:
    settings: Settings = request.app.state.settings
    if len((await request.form()).getlist("file")) > 1:
        raise ApiError(400, "file is given twice: send one recording a request", "file")
    if form.model not in settings.models:
        names = " or ".join(settings.models)
        raise ApiError(
            404,
            f"model {quoted(form.model)} is not served here: use {names}",
            param="model",
            code="model_not_found",
        )
    worker: EngineClient = request.app.state.worker
    return worker.submit(form.model, await form.file.read(), partials=partials)


async def _events(request: Request, job: Job) -> AsyncIterator[Event]:
    """Yield a job's events to the last, and leave the job in any case.

    Raises ApiError: 504 where that takes too long, 499 where the client has disconnected, and what
    is wrong with the recording.
    """
    settings: Settings = request.app.state.settings
    deadline = asyncio.get_running_loop().time() + settings.deadline_seconds
    watch = asyncio.create_task(_watch(request, job))
    try:
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    event = await job.next()
            except TimeoutError:
                raise _too_late(settings.deadline_seconds) from None
            if isinstance(event, Done):
                record = request.scope["asr.record"]
                record["audio_seconds"] = event.transcript.duration
                record["wait_seconds"] = round(event.wait_seconds, 4)
            yield event
            if isinstance(event, Done):
                return
    finally:
        watch.cancel()
        job.leave()


async def _outcome(events: AsyncIterator[Event]) -> Done:
    async for event in events:
        if isinstance(event, Done):
            return event
    raise AssertionError("events end with done")


async def _as_stream(
    request: Request, form: TranscriptionForm, first: Event, events: AsyncIterator[Event]
) -> AsyncIterator[str]:
    """Server-sent events; an error is the last one, in OpenAI's shape."""
    event: Event | None = first
    try:
        while event:
            body: BaseModel
            if isinstance(event, Partial):
                body = TextDelta(delta=event.delta)
            else:
                body = responses.last_event(event.transcript, form)
            yield f"data: {body.model_dump_json(exclude_none=True)}\n\n"
            event = await anext(events, None)
    except ApiError as error:
        request.scope["asr.record"]["error"] = error.code
        yield f"data: {json.dumps(body_of(error), ensure_ascii=False)}\n\n"
    finally:
        await events.aclose()  # type: ignore[attr-defined]


async def _watch(request: Request, job: Job) -> None:
    """Make the disconnection of the client the job's next event."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.events.put_nowait(ApiError(499, "the client has disconnected", code="client_gone"))


def _too_late(seconds: float) -> ApiError:
    return ApiError(
        504, f"not done within {seconds:g} seconds: send shorter recordings, or fewer at once",
        code="deadline",
    )  # fmt: skip
