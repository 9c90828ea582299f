"""The routes that take no recording: models, health, figures."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from serve.errors import ApiError, ErrorReply, quoted
from serve.middleware.limits import busy
from serve.routes.schemas import Health, Model, ModelList
from serve.settings import Settings

router = APIRouter()


@router.get("/v1/models", summary="List the models", tags=["models"])
async def list_models(request: Request) -> ModelList:
    """The names that `model` may have."""
    return ModelList(data=_models(request.app.state.settings))


@router.get(
    "/v1/models/{model}",
    summary="Tell about a model",
    tags=["models"],
    responses={404: {"model": ErrorReply, "description": "It is not served here"}},
)
async def show_model(request: Request, model: str) -> Model:
    """One of those that GET /v1/models lists."""
    for each in _models(request.app.state.settings):
        if each.id == model:
            return each
    message = f"model {quoted(model)} is not served here: GET /v1/models lists those that are"
    raise ApiError(404, message, "model", "model_not_found")


def _models(settings: Settings) -> list[Model]:
    return [
        Model(id=name, created=int(folder.stat().st_mtime))
        for name, folder in settings.models.items()
    ]


@router.get("/health", include_in_schema=False)
@router.get("/health/live", summary="Tell whether the service answers", tags=["operation"])
async def live() -> Health:
    """Always, as long as there is a service."""
    return Health()


@router.get(
    "/health/ready",
    summary="Tell whether recordings are taken",
    tags=["operation"],
    responses={503: {"model": ErrorReply, "description": "They are not, now"}},
)
async def ready(request: Request) -> Health:
    """Only while the decoding loop goes on, and not while the service is being stopped."""
    if request.app.state.load.draining:
        raise busy("the service is being stopped", "unavailable")
    if not request.app.state.worker.ready:
        raise busy("the decoding process makes no progress", "unavailable")
    return Health()


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    tags=["operation"],
    response_class=PlainTextResponse,
)
async def metrics(request: Request) -> Response:
    """In its text format."""
    figures = generate_latest(request.app.state.metrics.registry)
    return Response(figures, media_type=CONTENT_TYPE_LATEST)
