"""The routes that take no recording: models, health, metrics."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from serve.errors import ErrorReply, unavailable, unknown_model
from serve.routes.schemas import Health, Model, ModelList

router = APIRouter()


@router.get("/v1/models", summary="List the models", tags=["models"])
async def list_models(request: Request) -> ModelList:
    """Return the names that `model` may have; `whisper-1`, an alias of the first, is not listed."""
    created: dict[str, int] = request.app.state.created
    return ModelList(data=[Model(id=name, created=time) for name, time in created.items()])


@router.get(
    "/v1/models/{model}",
    summary="Describe a model",
    tags=["models"],
    responses={404: {"model": ErrorReply, "description": "It is not served here"}},
)
async def show_model(request: Request, model: str) -> Model:
    """Return one of those that GET /v1/models lists."""
    created: dict[str, int] = request.app.state.created
    if model not in created:
        raise unknown_model(model, created)
    return Model(id=model, created=created[model])


@router.get("/health", include_in_schema=False)
@router.get("/health/live", summary="Tell whether the service answers", tags=["operation"])
async def live() -> Health:
    """Return ok while the process answers."""
    return Health()


@router.get(
    "/health/ready",
    summary="Tell whether recordings are accepted",
    tags=["operation"],
    responses={503: {"model": ErrorReply, "description": "They are not, now"}},
)
async def ready(request: Request) -> Health:
    """Return only while the engine makes progress and the service is not being stopped."""
    if request.app.state.load.draining:
        raise unavailable("the service is being stopped")
    if not request.app.state.engine.ready:
        raise unavailable("the engine process makes no progress")
    return Health()


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    tags=["operation"],
    response_class=PlainTextResponse,
)
async def metrics(request: Request) -> Response:
    """Return the metrics in the text format of Prometheus."""
    text = generate_latest(request.app.state.metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
