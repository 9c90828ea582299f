"""Share cancellation and progress between a caller and a running decoding."""

from dataclasses import dataclass


@dataclass(eq=False)
class Request:
    """A flag that ends the decoding of an utterance within a step, and a count of steps so far.

    Only the decoding thread writes `n_steps`; `is_cancelled` is only ever set to True.
    """

    is_cancelled: bool = False
    n_steps: int = 0
