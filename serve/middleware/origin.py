"""Check host and origin of requests, so that no page of another site uses a visitor's browser."""

import re
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.errors import ApiError, quoted, reply
from serve.middleware.paths import route_path
from serve.settings import Settings

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::(\d{0,5}))?", re.ASCII)
_PORTS = {"http": "80", "https": "443"}


class OriginMiddleware:
    """Refuse requests and WebSockets under an unknown host name, or of a page from elsewhere.

    A page cannot choose the headers Host and Origin that its browser sends. A host name may be a
    stranger's that now points to this machine (DNS rebinding); an IP address cannot. The paths of
    /health/ answer under any name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it unread with a 403."""
        error = None
        if scope["type"] != "lifespan" and not f"{route_path(scope)}/".startswith("/health/"):
            error = _refusal(Headers(scope=scope), scope["app"].state.settings)
        await (reply(error, scope) if error else self.app)(scope, receive, send)


def _refusal(headers: Headers, settings: Settings) -> ApiError | None:
    host = ", ".join(headers.getlist("host")).lower()
    if not _knows(host, {name.lower().removesuffix(".") for name in settings.allowed_hosts}):
        reason = f"the host {quoted(host)} is unknown: call by localhost or an IP address"
        message = f"{reason}, or add the name to ASR_ALLOWED_HOSTS of the service"
        return ApiError(403, message, code="host_not_allowed")
    origin = ", ".join(headers.getlist("origin")).lower()
    allowed = {"", *(each.lower() for each in settings.cors_origins)}
    if origin in allowed or "*" in settings.cors_origins or _is_of(origin, host):
        return None
    reason = f"pages of {quoted(origin)} may not call"
    message = f"{reason}: add the origin to ASR_CORS_ORIGINS of the service"
    return ApiError(403, message, code="origin_not_allowed")


def _knows(host: str, names: set[str]) -> bool:
    found = _AUTHORITY.fullmatch(host)
    name = found[1].removesuffix(".") if found else ""  # a full name may end in a dot
    if "*" in names or (found and name in {"localhost", *names}):
        return True
    try:
        return bool(found and ip_address(name.strip("[]")))
    except ValueError:
        return False


def _is_of(origin: str, host: str) -> bool:
    """Return whether a page of this origin is the host's own, with or without TLS in front."""
    scheme, _, page = origin.partition("://")
    ours, theirs = _AUTHORITY.fullmatch(host), _AUTHORITY.fullmatch(page)
    if not (ours and theirs and scheme in _PORTS):
        return False
    default = _PORTS[scheme]
    return (ours[1], ours[2] or default) == (theirs[1], theirs[2] or default)
