"""What scores a text as it grows token by token: decoder, CTC head, language model.

Legend: B utterances, W hypotheses of each (the beam), V vocabulary, K candidates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from asr.decoding.ctc_prefix import CtcPrefixScorer


class State(Protocol):
    """What a step function remembers; it follows the hypotheses as they are reordered."""

    def reorder(self, parents_BW: Tensor) -> None:
        """Let hypothesis w continue hypothesis `parents_BW[b, w]`."""

    def select(self, indices: Tensor) -> None:
        """Go on with these utterances only."""


class LmScorer(Protocol):
    """A language model beside W hypotheses of each of B utterances, at first all empty."""

    def score(self, tokens_BWK: Tensor) -> Tensor:
        """(B, W, K): log-probability of each candidate (EOS too) as the next token."""

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        """Let hypothesis w be hypothesis `parents_BW[b, w]` with `tokens_BW[b, w]` appended."""

    def select(self, indices: Tensor) -> None:
        """Go on with these utterances only."""


@dataclass
class JointScorer:
    """What scores continuations; a `step` with its state, a CTC scorer, or both.

    `step` takes the last tokens (B, W) and gives log-probabilities (B, W, V).
    """

    step: Callable[[Tensor, Any], Tensor] | None
    state: State | None
    ctc: CtcPrefixScorer | None = None
    lm: LmScorer | None = None

    @property
    def used(self) -> tuple[bool, bool, bool]:
        """Whether there is a decoder, a CTC scorer, a language model."""
        return bool(self.step), bool(self.ctc), bool(self.lm)

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        """Follow the hypotheses."""
        if self.state:
            self.state.reorder(parents_BW)
        for scorer in (self.ctc, self.lm):
            if scorer:
                scorer.advance(parents_BW, tokens_BW)

    def select(self, indices: Tensor) -> None:
        """Go on with these utterances only."""
        for model in (self.state, self.ctc, self.lm):
            if model:
                model.select(indices)
