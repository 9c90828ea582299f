"""Errors as OpenAI's clients expect them, instead of FastAPI's `{"detail": [...]}` and 422."""

from collections.abc import Mapping

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as RoutingError
from starlette.types import Receive, Scope, Send


class ErrorBody(BaseModel):
    """What went wrong and what to do, the field at fault, and a stable code for programs."""

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

    def body(self) -> ErrorReply:
        """Return the body of the response."""
        kind = "invalid_request_error" if self.status_code < 500 else "server_error"
        return ErrorReply(
            error=ErrorBody(message=self.message, type=kind, param=self.param, code=self.code)
        )


def unavailable(
    message: str, code: str = "unavailable", status: int = 503, retry_after: int = 1
) -> ApiError:
    """Return the refusal of a request that may be accepted after `retry_after` seconds."""
    return ApiError(status, message, code=code, headers={"retry-after": str(retry_after)})


def unknown_model(name: str, known: Mapping[str, object]) -> ApiError:
    """Return the refusal of a model that is not served."""
    message = f"model {quoted(name)} is not served here: use {' or '.join(known)}"
    return ApiError(404, message, "model", "model_not_found")


def quoted(value: str) -> str:
    """Return a client's text for a message: short, control and bidirectional characters escaped."""
    return repr(value) if len(value) <= 80 else f"{value[:80]!r}…"


def install_handlers(app: FastAPI) -> None:
    """Make the app answer failures and unknown paths with errors in OpenAI's shape."""

    @app.exception_handler(RoutingError)
    async def on_http(request: Request, error: RoutingError) -> JSONResponse:
        known = error if isinstance(error, ApiError) else _routing(request, error)
        return reply(known, request.scope)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return reply(_invalid(error), request.scope)

    default = app.router.default

    async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await default(scope, receive, send)
            return
        error = ApiError(404, f"no WebSocket {quoted(scope['path'])} exists: see /docs")
        await reply(error, scope)(scope, receive, send)

    app.router.default = no_route


def reply(error: ApiError, scope: Scope) -> JSONResponse:
    """Return an error as a response, and record its code for the log and the metrics."""
    scope["asr.record"].error = error.code or f"http_{error.status_code}"
    return JSONResponse(error.body().model_dump(), error.status_code, error.headers)


def _routing(request: Request, error: RoutingError) -> ApiError:
    """Return an error with a sentence for Starlette's own: no such route or method, a bad form."""
    where = f"{request.method} {quoted(request.scope['path'])}"  # `url` needs a query in UTF-8
    messages = {
        404: f"{where} does not exist: see /docs",
        405: f"{where} is not allowed: see /docs for the methods",
    }
    message = messages.get(error.status_code, f"the request cannot be read ({error.detail})")
    return ApiError(error.status_code, message, headers=error.headers)


def _invalid(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    param = str([*first["loc"][1:2], *first["loc"]][0])  # without the index in a list
    if first["type"] == "missing":
        return ApiError(400, f"{param} is missing: send it as a multipart/form-data field", param)
    given = f" {quoted(first['input'])}" if isinstance(first["input"], str) else ""
    reason = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{param}{given}: {reason[0].lower()}{reason[1:]}", param)
