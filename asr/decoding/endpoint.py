"""Decide where a segment of a stream ends, by the CTC head's blanks and the audio. No torch."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Self

from pydantic import Field, model_validator

from asr.schema import FrozenModel

# A step is quiet if its power is more than 15 dB below that of the loudest step of its segment.
# Blanks count less where the audio is not: in noise, or where CTC wrote a word before it is said.
_QUIET, _IN_NOISE = 10**-1.5, 0.4

Seconds = Annotated[float, Field(gt=0, le=60)]


class Endpoint(FrozenModel):
    """A segment ends after `silence_seconds` of blanks and quiet audio behind its text.

    Where the audio is not quiet, the blanks must last 2.5 times as long. From half of
    `longest_seconds` on, ever shorter pauses are enough; at `longest_seconds` the segment ends
    without a pause. A segment without any text ends after `idle_seconds`.
    """

    silence_seconds: Seconds = 0.8
    idle_seconds: Seconds = 2.4
    longest_seconds: Seconds = 20.0

    @classmethod
    def within(cls, seconds: float | None, silence_seconds: float | None = None) -> "Endpoint":
        """Return the default rule for a model whose segments may last `seconds` at most.

        `silence_seconds`, which a client may ask for, replaces the default; a segment's length
        limits it.
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
        """Tell whether a segment of `seconds` ends; its last `blanks` seconds are without a token.

        Its last `quiet` seconds are quiet audio. None means that this is not known; then all blanks
        count as silence.
        """
        if not has_text:
            return seconds >= self.idle_seconds
        silence = blanks if quiet is None else max(min(blanks, quiet), _IN_NOISE * blanks)
        left = 1 - seconds / self.longest_seconds
        return silence >= self.silence_seconds * min(1.0, max(0.0, 2 * left))


def quiet_steps(power_S: Sequence[float]) -> int:
    """Return how many steps at the end of a segment are quiet compared with its loudest one."""
    limit = _QUIET * max(power_S, default=0.0)
    return sum(1 for _ in takewhile(lambda power: power < limit, reversed(power_S)))
