"""The routes that take a recording."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from python_multipart.multipart import parse_options_header

from asr.decoding.hotwords import MOST_PHRASES
from asr.transcription.writers import FORMATS
from serve.engine.client import EngineClient, Event, Job
from serve.engine.messages import Done, Partial
from serve.errors import ApiError, ErrorReply, quoted, unknown_model
from serve.logs import RequestRecord
from serve.routes import responses
from serve.routes.schemas import (
    NativeForm,
    NativeTranscription,
    RecordingForm,
    TextDelta,
    Transcription,
    TranscriptionForm,
    VerboseTranscription,
)
from serve.settings import Settings

# Python's other codecs take a time that grows with the square of a field, and it keeps the name of
# each charset that it has looked up.
_CHARSETS = {"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1"}
_MAX_TYPE = 1024  # bytes of a Content-Type


class _FormRoute(APIRoute):
    """A route whose form is refused unread in a charset but UTF-8 and Latin-1."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[object, None, Response]]:
        """Return FastAPI's handler behind a check of the charset."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            _check_charset(request.headers.get("content-type", ""))
            return await handle(request)

        return checked


router = APIRouter(
    prefix="/v1",
    tags=["audio"],
    route_class=_FormRoute,
    form_limits={"max_files": 4, "max_fields": 100 + MOST_PHRASES, "max_part_size": 2**17},
    responses={
        "4XX": {"model": ErrorReply, "description": "The request cannot be answered"},
        "5XX": {"model": ErrorReply, "description": "The service failed, or is too busy"},
    },
)

_SUBTITLES = {"srt": "application/x-subrip", "vtt": "text/vtt"}
_STREAM = "text/event-stream"
_TEXTS = {
    kind: {"schema": {"type": "string"}, "example": example}
    for kind, example in {
        "text/plain": "今天天气很好",
        "application/x-subrip": "1\n00:00:00,120 --> 00:00:01,480\n今天天气很好\n\n",
        "text/vtt": "WEBVTT\n\n00:00:00.120 --> 00:00:01.480\n今天天气很好\n\n",
        _STREAM: 'data: {"type":"transcript.text.delta","delta":"今天","progress":0.5}\n\n',
    }.items()
}

Events = AsyncGenerator[Event, None]


@router.post(
    "/audio/transcriptions",
    response_model=Transcription | VerboseTranscription,
    responses={200: {"description": "The text, as response_format says", "content": _TEXTS}},
    summary="Transcribe a recording, as OpenAI's clients ask for it",
)
async def transcribe(
    request: Request,
    form: Annotated[TranscriptionForm, Form(media_type="multipart/form-data")],
) -> Response:
    """Return the text: as JSON, by itself, as subtitles, or as events while it is recognized."""
    events = _events(request, await _submit(request, form, form.stream))
    if form.stream:
        return await _stream(request, events, lambda done: responses.brief(done.transcript, form))
    transcript = (await _outcome(events)).transcript
    headers = responses.warnings_header(transcript.warnings)
    if form.response_format == "text":
        return PlainTextResponse(transcript.text, headers=headers)
    if form.response_format in _SUBTITLES:
        subtitles = await asyncio.to_thread(FORMATS[form.response_format], transcript)
        return Response(subtitles, 200, headers, _SUBTITLES[form.response_format])
    body = responses.verbose if form.response_format == "verbose_json" else responses.brief
    return await _json(lambda: body(transcript, form), exclude_none=True)


@router.post(
    "/transcribe",
    response_model=NativeTranscription,
    responses={200: {"description": "The text", "content": {_STREAM: _TEXTS[_STREAM]}}},
    summary="Transcribe a recording, with all that is known of it",
)
async def transcribe_natively(
    request: Request, form: Annotated[NativeForm, Form(media_type="multipart/form-data")]
) -> Response:
    """Return the text with n best hypotheses, confidences, words, subtitles and timings."""
    job = await _submit(request, form, form.stream)
    events = _events(request, job)
    if form.stream:
        return await _stream(request, events, lambda done: responses.native(done, job.model))
    done = await _outcome(events)
    return await _json(lambda: responses.native(done, job.model))


def _check_charset(content_type: str) -> None:
    """Raise ApiError for a charset that is not read, and for a header that costs time to parse."""
    _, options = parse_options_header(content_type[:_MAX_TYPE])
    charset = options.get(b"charset", b"utf-8").decode("latin-1").lower().replace("_", "-")
    if charset not in _CHARSETS or len(content_type) > _MAX_TYPE:
        reason = f"the content type {quoted(content_type)} is not read"
        raise ApiError(400, f"{reason}: send multipart/form-data in utf-8")


async def _submit(request: Request, form: RecordingForm, partials: bool) -> Job:
    settings: Settings = request.app.state.settings
    engine: EngineClient = request.app.state.engine
    if len((await request.form()).getlist("file")) > 1:
        raise ApiError(400, "file is given twice: send one recording per request", "file")
    model = settings.find_model(form.model)
    if model is None:
        raise unknown_model(form.model, settings.models)
    pcm = await form.file.read()
    return engine.submit(model, pcm, partials=partials, hotwords=form.phrases)


async def _events(request: Request, job: Job) -> Events:
    """Yield a job's events to the last, and cancel the job in any case.

    Raises ApiError: 504 where that takes too long, 499 where the client has disconnected, and what
    is wrong with the recording.
    """
    settings: Settings = request.app.state.settings
    record: RequestRecord = request.scope["asr.record"]
    deadline = asyncio.get_running_loop().time() + settings.deadline_seconds
    watch = asyncio.create_task(_watch(request, job))
    event: Event | None = None
    try:
        with job:
            while not isinstance(event, Done):
                async with asyncio.timeout_at(deadline):
                    event = await job.next()
                if isinstance(event, Done):
                    record.audio_seconds = event.transcript.duration
                    record.wait_seconds = round(event.wait_seconds, 4)
                yield event
    except TimeoutError:
        reason = f"not done within {settings.deadline_seconds:g} seconds"
        message = f"{reason}: send shorter recordings, or fewer at once"
        raise ApiError(504, message, code="deadline") from None
    finally:
        watch.cancel()


async def _json(make: Callable[[], BaseModel], exclude_none: bool = False) -> Response:
    """Return a body as a response; that of a long recording takes too long for the event loop."""

    def write() -> str:
        return make().model_dump_json(exclude={"type"}, exclude_none=exclude_none)  # of events

    return Response(await asyncio.to_thread(write), media_type="application/json")


async def _outcome(events: Events) -> Done:
    async for event in events:
        if isinstance(event, Done):
            return event
    raise AssertionError("the last event is Done")


async def _stream(
    request: Request, events: Events, last: Callable[[Done], BaseModel]
) -> StreamingResponse:
    """Return a job's events as server-sent ones; an error before the first has its own status."""
    first = await anext(events)
    return StreamingResponse(
        _as_stream(request, first, events, last),
        media_type=_STREAM,
        headers={"cache-control": "no-cache"},
    )


async def _as_stream(
    request: Request, first: Event, events: Events, last: Callable[[Done], BaseModel]
) -> AsyncGenerator[str, None]:
    """Yield server-sent events; an error is the last one, in OpenAI's shape."""
    event: Event | None = first
    try:
        while event:
            if isinstance(event, Partial):
                yield _data(TextDelta(delta=event.delta, progress=event.progress))
            else:
                yield _data(await asyncio.to_thread(last, event))
            event = await anext(events, None)
    except ApiError as error:
        request.scope["asr.record"].error = error.code
        yield f"data: {error.body().model_dump_json()}\n\n"
    finally:
        await events.aclose()


def _data(body: BaseModel) -> str:
    return f"data: {body.model_dump_json(exclude_none=True)}\n\n"


async def _watch(request: Request, job: Job) -> None:
    """Make the disconnection of the client the job's next event."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.events.put_nowait(ApiError(499, "the client has disconnected", code="client_gone"))
