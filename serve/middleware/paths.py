"""The path of a request as routes have it."""

from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """Return the path without the prefix (`root_path`) under which a proxy serves it."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
