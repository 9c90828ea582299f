"""The routes that take a recording."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel

from serve.engine.client import Event, Job, Worker
from serve.errors import ApiError, ErrorReply, body_of, quoted
from serve.routes import responses as answers
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
    """The text of a recording: JSON, by itself, as subtitles, or as events while it is heard."""
    job = await _submit(
        request, form,
        words="word" in form.timestamp_granularities,
        subtitles=form.response_format if form.response_format in _SUBTITLES else None,
        partials=form.stream,
    )  # fmt: skip
    events = _follow(request, job)
    if form.stream:
        first = await anext(events)  # an error that comes before it has a status of its own
        return StreamingResponse(
            _as_stream(request, form, first, events),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache"},
        )
    heard = await _outcome(events)
    if form.response_format == "text":
        return PlainTextResponse(heard["text"])
    if form.response_format in _SUBTITLES:
        return Response(heard["subtitles"], media_type=_SUBTITLES[form.response_format])
    answer = answers.verbose if form.response_format == "verbose_json" else answers.brief
    return answer(heard, form)


@router.post(
    "/transcribe",
    response_model=NativeTranscription,
    summary="Transcribe a recording, with all that is known of it",
)
async def transcribe_natively(
    request: Request, form: Annotated[RecordingForm, Form(media_type="multipart/form-data")]
) -> NativeTranscription:
    """The text with its n best rivals, confidences, times, and what it took."""
    heard = await _outcome(_follow(request, await _submit(request, form)))
    return answers.native(heard, form.model)


async def _submit(request: Request, form: RecordingForm, **options: Any) -> Job:
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
    worker: Worker = request.app.state.worker
    return worker.submit(form.model, await form.file.read(), **options)


async def _follow(request: Request, job: Job) -> AsyncIterator[Event]:
    """What is heard, to the end.

    Raises ApiError: 504 where that takes too long, 499 where the client has gone, and what the
    recording cannot be recognised for. The job is left in any case.
    """
    settings: Settings = request.app.state.settings
    deadline = asyncio.get_running_loop().time() + settings.deadline_seconds
    watch = asyncio.create_task(_watch(request, job))
    try:
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    kind, value = await job.next()
            except TimeoutError:
                raise _too_late(settings.deadline_seconds) from None
            if kind == "done":
                request.scope["asr.record"]["audio_seconds"] = value["duration"]
                request.scope["asr.record"]["wait_seconds"] = round(value["wait_seconds"], 4)
            yield kind, value
            if kind == "done":
                return
    finally:
        watch.cancel()
        job.leave()


async def _outcome(events: AsyncIterator[Event]) -> dict[str, Any]:
    async for kind, value in events:
        if kind == "done":
            return value
    raise AssertionError("events end with done")


async def _as_stream(
    request: Request, form: TranscriptionForm, first: Event, events: AsyncIterator[Event]
) -> AsyncIterator[str]:
    """Server-sent events; an error is the last one, in OpenAI's shape."""
    event: Event | None = first
    try:
        while event:
            kind, value = event
            model = TextDelta(delta=value) if kind == "partial" else answers.done(value, form)
            yield f"data: {model.model_dump_json(exclude_none=True)}\n\n"
            event = await anext(events, None)
    except ApiError as error:
        request.scope["asr.record"]["error"] = error.code
        yield f"data: {json.dumps(body_of(error), ensure_ascii=False)}\n\n"
    finally:
        await events.aclose()  # type: ignore[attr-defined]


async def _watch(request: Request, job: Job) -> None:
    """Let it be the job's next event that the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.events.put_nowait(ApiError(499, "the client has gone", code="client_gone"))


def _too_late(seconds: float) -> ApiError:
    return ApiError(
        504, f"not done within {seconds:g} seconds: send shorter recordings, or fewer at once",
        code="deadline",
    )  # fmt: skip
