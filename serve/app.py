"""The HTTP service: recordings in, text out, in the shape that OpenAI's clients speak."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, FastAPI, Form, Request, Response
from fastapi.responses import PlainTextResponse

import asr
from serve import live, page
from serve.errors import ApiError, ErrorReply, install_handlers, quoted
from serve.limits import BodyLimit
from serve.schemas import Health, Model, ModelList, Transcription, TranscriptionForm, Usage
from serve.worker import Worker

router = APIRouter()


def create_app(
    bundle: Path,
    device: str = "auto",
    max_bytes: int = 25 * 2**20,
    max_seconds: float = 1800.0,
    int8: bool = False,
) -> FastAPI:
    """The service for one bundle, under the name of its folder.

    A request's body holds at most `max_bytes` (OpenAI's own limit), its audio at most
    `max_seconds`: as much as an mp3 of that size at a usual rate. The model is loaded here and
    not in the lifespan, whose failures uvicorn reports with a traceback and an exit code of its
    own.

    Raises BundleError that names the file that is missing or damaged, ConfigError for a device
    that is not here.
    """
    worker = Worker(asr.load(bundle, device, int8), max_seconds)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        worker.close()

    app = FastAPI(
        title="lrt-asr",
        summary="Speech recognition with the Low-Rank Transformer, in OpenAI's shape.",
        version=version("lrt-asr"),
        lifespan=lifespan,
    )
    folder = bundle.resolve()
    app.state.workers = {folder.name: worker}
    app.state.models = [Model(id=folder.name, created=int(folder.stat().st_mtime))]
    app.add_middleware(BodyLimit, max_bytes=max_bytes)
    install_handlers(app)
    app.state.live = live.LiveSessions()
    app.include_router(router)
    app.include_router(live.router)
    app.include_router(page.router)
    return app


@router.post(
    "/v1/audio/transcriptions",
    response_model=Transcription,
    response_model_exclude_none=True,
    responses={
        200: {"description": "The text", "content": {"text/plain": {"schema": {"type": "string"}}}},
        "4XX": {"model": ErrorReply, "description": "The request cannot be answered"},
        "5XX": {"model": ErrorReply, "description": "The service failed"},
    },
    summary="Transcribe a recording",
    tags=["audio"],
)
async def transcribe(
    request: Request,
    form: Annotated[TranscriptionForm, Form(media_type="multipart/form-data")],
) -> Transcription | Response:
    """The text of one recording, as JSON or, with `response_format=text`, by itself."""
    if len((await request.form()).getlist("file")) > 1:
        raise ApiError(400, "file is given twice: send one recording a request", "file")
    workers: dict[str, Worker] = request.app.state.workers
    if form.model not in workers:
        names = " or ".join(workers)
        raise ApiError(
            404,
            f"model {quoted(form.model)} is not served here: use {names}",
            param="model",
            code="model_not_found",
        )
    heard = await workers[form.model].transcribe(form.file.file)
    if form.response_format == "text":
        return PlainTextResponse(heard.text)
    return Transcription(
        text=heard.text,
        usage=Usage(seconds=heard.duration),
        warnings=list(heard.warnings) or None,
    )


@router.get("/v1/models", summary="List the models", tags=["models"])
async def list_models(request: Request) -> ModelList:
    """The names that `model` may have."""
    return ModelList(data=request.app.state.models)


@router.get("/health", summary="Tell whether the service is up", tags=["operation"])
async def health() -> Health:
    """Answers only once the model is loaded."""
    return Health()
