"""Share cancellation and progress between a caller and a running decoding."""

from dataclasses import dataclass


@dataclass(eq=False)
class Request:
    """A flag that ends the decoding of an utterance, and a count of the looks at it (steps).

    The joint beam search looks at the flag once per token, `ctc_beam` once per 64 encoder steps.
    Only the decoding thread writes `n_steps`; `is_cancelled` is only ever set to True.
    """

    is_cancelled: bool = False
    n_steps: int = 0
