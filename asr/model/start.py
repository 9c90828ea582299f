"""Tell modules how to begin: with drawn values, or with any, because a file's values follow."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_FOLLOW = ContextVar("weights_follow", default=False)


@contextmanager
def weights_follow() -> Iterator[None]:
    """Let modules in this context be built without drawn values: their weights are read later."""
    token = _FOLLOW.set(True)
    try:
        yield
    finally:
        _FOLLOW.reset(token)


def is_drawn() -> bool:
    """Tell whether modules that are built now begin with drawn values."""
    return not _FOLLOW.get()
