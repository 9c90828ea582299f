"""Decide where a segment of a stream ends, by the CTC head's blanks and the audio. No torch."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Self

from pydantic import Field, model_validator

from asr.schema import FrozenModel

# A step is quiet whose power is 15 dB or more below the loudest of its segment. Where the audio is
# not, in noise or where CTC wrote a word before it is said, blanks count less.
_QUIET, _IN_NOISE = 10**-1.5, 0.4

Seconds = Annotated[float, Field(gt=0, le=60)]


class Endpoint(FrozenModel):
    """A segment ends after `silence_seconds` of blanks and quiet audio behind its text.

    Blanks alone, where the audio is not quiet, must last 2.5 times as long. From half of
    `longest_seconds` on ever shorter pauses do, down to none at `longest_seconds`. Without any text
    it ends after `idle_seconds`.
    """

    silence_seconds: Seconds = 0.8
    idle_seconds: Seconds = 2.4
    longest_seconds: Seconds = 20.0

    @classmethod
    def within(cls, seconds: float | None, silence_seconds: float | None = None) -> "Endpoint":
        """Return the usual rule for a model whose segments have so many seconds at most.

        `silence_seconds` is what a client asks for.
        """
        usual = cls()
        longest = min(usual.longest_seconds, seconds or usual.longest_seconds)
        silence = min(silence_seconds or usual.silence_seconds, longest)
        idle = min(max(usual.idle_seconds, silence), longest)
        return cls(silence_seconds=silence, idle_seconds=idle, longest_seconds=longest)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.silence_seconds <= self.idle_seconds <= self.longest_seconds:
            raise ValueError(
                f"silence_seconds {self.silence_seconds:g}, idle_seconds {self.idle_seconds:g} and "
                f"longest_seconds {self.longest_seconds:g} must not fall in this order"
            )
        return self

    def is_reached(
        self, seconds: float, blanks: float, has_text: bool, quiet: float | None = None
    ) -> bool:
        """Tell whether a segment of so many seconds ends after so many of blanks at its end.

        `quiet` seconds at its end are quiet audio; None is not known, and all blanks are silence.
        """
        if not has_text:
            return seconds >= self.idle_seconds
        silence = blanks if quiet is None else max(min(blanks, quiet), _IN_NOISE * blanks)
        left = 1 - seconds / self.longest_seconds
        return silence >= self.silence_seconds * min(1.0, max(0.0, 2 * left))


def quiet_steps(power_S: Sequence[float]) -> int:
    """Return how many steps at the end of a segment are quiet beside its loudest one."""
    limit = _QUIET * max(power_S, default=0.0)
    return sum(1 for _ in takewhile(lambda power: power < limit, reversed(power_S)))
