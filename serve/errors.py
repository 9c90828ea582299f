"""Errors as OpenAI's clients expect them, instead of FastAPI's `{"detail": [...]}` and 422."""

from collections.abc import Mapping

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as RoutingError

from asr.errors import AudioError

_AUDIO_STATUS = {"unsupported_media": 415, "too_long": 413}


class ErrorBody(BaseModel):
    """What went wrong and the mend, which field it was, and a stable word for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(BaseModel):
    """OpenAI's shape of every failure."""

    error: ErrorBody


class ApiError(HTTPException):
    """A request that cannot be answered: its status, a sentence, the field and a code."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.message, self.param, self.code = message, param, code


def quoted(value: str) -> str:
    """A client's text, fit for a message: short, control and bidirectional characters escaped."""
    return repr(value) if len(value) <= 80 else f"{value[:80]!r}…"


def install_handlers(app: FastAPI) -> None:
    """Answer every failure of `app` in OpenAI's shape; a bug's traceback goes to the log only."""

    @app.exception_handler(RoutingError)
    async def on_http(request: Request, error: RoutingError) -> JSONResponse:
        return _reply(error if isinstance(error, ApiError) else _routing(request, error))

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        return _reply(_invalid(error))

    @app.exception_handler(AudioError)
    async def on_audio(_request: Request, error: AudioError) -> JSONResponse:
        status = _AUDIO_STATUS.get(error.code, 400)
        return _reply(ApiError(status, str(error), "file", error.code))

    @app.exception_handler(Exception)
    async def on_bug(_request: Request, _error: Exception) -> JSONResponse:
        return _reply(ApiError(500, "the service failed: try again, its log says why"))


def _reply(error: ApiError) -> JSONResponse:
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    body = ErrorBody(message=error.message, type=kind, param=error.param, code=error.code)
    return JSONResponse(ErrorReply(error=body).model_dump(), error.status_code, error.headers)


def _routing(request: Request, error: RoutingError) -> ApiError:
    """What Starlette raises by itself: no such route, no such method, a body that is no form."""
    where = f"{request.method} {quoted(request.url.path)}"
    messages = {
        404: f"{where} does not exist: /docs lists what does",
        405: f"{where} is not allowed: /docs lists the methods",
    }
    message = messages.get(error.status_code, f"the request cannot be read ({error.detail})")
    return ApiError(error.status_code, message, headers=error.headers)


def _invalid(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    param = str(first["loc"][-1])
    if first["type"] == "missing":
        return ApiError(400, f"{param} is missing: send it as a multipart/form-data field", param)
    given = f" {quoted(first['input'])}" if isinstance(first["input"], str) else ""
    reason = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{param}{given}: {reason[0].lower()}{reason[1:]}", param)
