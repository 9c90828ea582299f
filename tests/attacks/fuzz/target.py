"""The record of a target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asr.errors import AsrError


@dataclass
class Target:
    """A parser: `run` may raise the `allowed` errors only."""

    seeds: Sequence[bytes]
    run: Callable[[bytes], object]
    tokens: Sequence[bytes] = ()
    allowed: tuple[type[Exception], ...] = (AsrError,)
