"""The HTTP service: recordings in, text out, in the shape that OpenAI's clients speak."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.formparsers import MultiPartParser

from serve.engine.client import EngineClient
from serve.errors import install_handlers
from serve.logs import configure_logging
from serve.metrics import Metrics
from serve.middleware.access import AccessLogMiddleware, ApiKeyMiddleware
from serve.middleware.limits import BodyLimit, ConcurrencyLimitMiddleware, Load
from serve.routes import live, operations, page, transcriptions
from serve.settings import Settings


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service, with settings from the environment where none are given.

    The models are loaded here and not in the lifespan, whose failures uvicorn reports with a
    traceback and an exit code of its own.

    Raises BundleError that names the file that is missing or damaged, ConfigError for settings
    that cannot be obeyed.
    """
    configure_logging()
    settings = settings or Settings.read()
    metrics = Metrics()
    worker, load = EngineClient(settings, metrics), Load(settings, metrics)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(worker.supervise())
        try:
            yield
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
        finally:
            worker.close()

    app = FastAPI(
        title="lrt-asr",
        summary="Speech recognition with the Low-Rank Transformer, in OpenAI's shape.",
        version=version("lrt-asr"),
        lifespan=lifespan,
    )
    app.state.settings, app.state.worker, app.state.load = settings, worker, load
    app.state.metrics, app.state.n_live = metrics, 0
    MultiPartParser.spool_max_size = settings.max_bytes  # bodies never touch the disk
    # The last one is the outermost.
    app.add_middleware(ConcurrencyLimitMiddleware, load=load)
    app.add_middleware(ApiKeyMiddleware, settings=settings)
    app.add_middleware(BodyLimit, load=load)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(AccessLogMiddleware, metrics=metrics)
    install_handlers(app)
    app.include_router(transcriptions.router)
    app.include_router(operations.router)
    app.include_router(live.router)
    app.include_router(page.router)
    return app
