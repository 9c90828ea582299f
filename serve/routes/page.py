"""The web page at `/`: plain files of the package, which load nothing from other hosts."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

from serve.errors import ApiError, quoted

_FOLDER = Path(__file__).parents[1] / "page"
_NAMES = frozenset(path.name for path in _FOLDER.iterdir())
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # so that a browser never mixes two versions
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index() -> FileResponse:
    """Return the page."""
    return FileResponse(_FOLDER / "index.html", headers=_HEADERS)


@router.get("/page/{name}")
async def part(name: str) -> FileResponse:
    """Return a file of the page, of those that were there at the start."""
    if name not in _NAMES:
        raise ApiError(404, f"the page has no file {quoted(name)}: reload it")
    return FileResponse(_FOLDER / name, headers=_HEADERS)
