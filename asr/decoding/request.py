"""Share cancellation and progress between a caller and a running decoding."""

from dataclasses import dataclass


@dataclass(eq=False)
class Request:
    """A flag that ends the decoding of an utterance within a step, and a count of steps so far.

    It is set and read from several threads; each field has one writer.
    """

    is_cancelled: bool = False
    n_steps: int = 0
