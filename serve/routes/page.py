"""The web page at `/`: plain files of the package, which load nothing from other hosts."""

from mimetypes import guess_type
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import Response

from serve.errors import ApiError, quoted

# In memory: a client that reads slowly holds no file open.
_FILES = {path.name: path.read_bytes() for path in Path(__file__).parents[1].glob("page/*")}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # so that a browser never mixes two versions
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index() -> Response:
    """Return the page."""
    return _response("index.html")


@router.get("/page/{name}")
async def part(name: str) -> Response:
    """Return a file of the page."""
    if name not in _FILES:
        raise ApiError(404, f"the page has no file {quoted(name)}: reload it")
    return _response(name)


def _response(name: str) -> Response:
    return Response(_FILES[name], media_type=guess_type(name)[0], headers=HEADERS)
