"""The HTTP service: recordings in, text out, in the shape that OpenAI's clients use."""

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
from serve.middleware.access import AccessLogMiddleware, ApiKeyMiddleware, FailureMiddleware
from serve.middleware.limits import BodyLimitMiddleware, ConcurrencyLimitMiddleware, Load
from serve.middleware.origin import OriginMiddleware
from serve.routes import document, live, operations, page, realtime, transcriptions
from serve.settings import Settings


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the service, with settings from the environment where none are given.

    The models are loaded here and not in the lifespan: uvicorn reports a failure of the lifespan
    with a traceback and an exit code of its own.

    Raises BundleError for a file that is missing or damaged, ConfigError for settings that are
    invalid.
    """
    configure_logging()
    settings = settings or Settings.read()
    metrics = Metrics()
    app = FastAPI(
        title="lrt-asr",
        summary="Speech recognition with the Low-Rank Transformer, in OpenAI's shape.",
        version=version("lrt-asr"),
        lifespan=_lifespan,
        docs_url=None,  # its scripts come from another host: see serve.routes.document
        redoc_url=None,
    )
    app.state.settings, app.state.metrics, app.state.n_live = settings, metrics, 0
    app.state.load = Load(settings, metrics)
    app.state.engine = EngineClient(settings, metrics, app.state.load.hold)
    app.state.created = {k: int(v.stat().st_mtime) for k, v in settings.models.items()}
    _add_middleware(app)
    install_handlers(app)
    for routes in (transcriptions, operations, live, realtime, page, document):
        app.include_router(routes.router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Watch the engine process while the service runs, and end it afterwards."""
    engine: EngineClient = app.state.engine
    watch = asyncio.create_task(engine.supervise())
    try:
        yield
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
    finally:
        engine.close()


def _add_middleware(app: FastAPI) -> None:
    """Add the middleware; the last one added is the outermost."""
    settings: Settings = app.state.settings
    MultiPartParser.spool_max_size = settings.max_bytes  # bodies never touch the disk
    app.add_middleware(FailureMiddleware)
    app.add_middleware(ConcurrencyLimitMiddleware, load=app.state.load)
    app.add_middleware(ApiKeyMiddleware, settings=settings)
    app.add_middleware(OriginMiddleware)
    app.add_middleware(BodyLimitMiddleware, load=app.state.load)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # OpenAI's clients describe themselves in many headers
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(AccessLogMiddleware, metrics=app.state.metrics)
