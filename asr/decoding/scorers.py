"""Score hypotheses that grow token by token, by decoder, CTC head and language model together.

Legend: B utterances, W hypotheses of each (the beam), V vocabulary, K candidates, C components of a
score (decoder, CTC head, language model, hotwords: those in use).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from asr.decoding.ctc_prefix import CtcPrefixScorer
from asr.decoding.hotword_scorer import HotwordScorer

# The CTC prefix scorer has large negative numbers where a score is -inf.
_CTC_NEVER = -1e7
# Below the logarithm of the smallest normal number in float32.
_LEAST_LOG = -100.0


class State(Protocol):
    """The cache of a step function; it follows the hypotheses as they are reordered."""

    def reorder(self, parents_BW: Tensor) -> None:
        """Let hypothesis w continue hypothesis `parents_BW[b, w]`."""

    def select(self, indices: Tensor) -> None:
        """Keep these utterances only."""


class LmScorer(Protocol):
    """A language model's scores of W hypotheses of each of B utterances, all empty at first."""

    def score(self, tokens_BWK: Tensor) -> Tensor:
        """Return the log-probability of each candidate, EOS included, as the next token."""

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        """Let hypothesis w be hypothesis `parents_BW[b, w]` with `tokens_BW[b, w]` appended."""

    def select(self, indices: Tensor) -> None:
        """Keep these utterances only."""


@dataclass
class JointScorer:
    """A decoder's `step` with its state, a CTC prefix scorer, or both; the others are optional.

    `step` maps the last tokens (B, W) and the state to log-probabilities (B, W, V) of the next.
    """

    step: Callable[[Tensor, Any], Tensor] | None
    state: State | None
    ctc: CtcPrefixScorer | None = None
    lm: LmScorer | None = None
    hotwords: HotwordScorer | None = None

    @property
    def used(self) -> tuple[bool, bool, bool, bool]:
        """Tell whether decoder, CTC scorer, language model and hotwords are in use."""
        return bool(self.step), bool(self.ctc), bool(self.lm), bool(self.hotwords)

    def weights(self, decoder: float, ctc: float, lm: float) -> list[float]:
        """Return the weights of the components in use; CTC has a missing decoder's weight too."""
        if not self.step:
            ctc += decoder
        return [w for w, used in zip((decoder, ctc, lm, 1.0), self.used, strict=True) if used]

    def preselection_scores(self, logp_BWV: Tensor | None, decoder: float, ctc: float) -> Tensor:
        """Return scores (B, W, V) that order candidates nearly as their joint scores do.

        The decoder alone would exclude what only CTC finds: a decoder that skips a word is sure of
        the next one.
        """
        if self.ctc is None:
            assert logp_BWV is not None, "a search has a decoder or a CTC head"
            scores_BWV, weight = logp_BWV, decoder
        elif logp_BWV is None:
            scores_BWV, weight = self.ctc.preselection_scores(), decoder + ctc
        else:
            ctc_BWV = self.ctc.preselection_scores().clamp(min=_LEAST_LOG)
            scores_BWV, weight = decoder * logp_BWV + ctc * ctc_BWV, 1.0
        return scores_BWV + self.hotwords.bonuses() / weight if self.hotwords else scores_BWV

    def score(self, logp_BWV: Tensor | None, tokens_BWK: Tensor, before_BWC: Tensor) -> Tensor:
        """Return the component scores (B, W, K, C) of hypotheses with each candidate appended.

        `before_BWC` are their component scores without it, -inf where there is no hypothesis.
        """
        components = []
        if logp_BWV is not None:
            components.append(logp_BWV.gather(2, tokens_BWK) + before_BWC[..., 0, None])
        if self.ctc:
            ctc_BWK = self.ctc.score(tokens_BWK).to(before_BWC.dtype)
            is_dead_BW1 = before_BWC[..., len(components), None] == -math.inf
            components.append(ctc_BWK.masked_fill((ctc_BWK < _CTC_NEVER) | is_dead_BW1, -math.inf))
        if self.lm:
            components.append(self.lm.score(tokens_BWK) + before_BWC[..., len(components), None])
        if self.hotwords:
            bonus_BWK = self.hotwords.bonuses().gather(2, tokens_BWK)
            components.append(bonus_BWK + before_BWC[..., -1, None])
        return torch.stack(components, -1)

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        """Let hypothesis w be hypothesis `parents_BW[b, w]` with `tokens_BW[b, w]` appended."""
        if self.state:
            self.state.reorder(parents_BW)
        for scorer in (self.ctc, self.lm):
            if scorer:
                scorer.advance(parents_BW, tokens_BW)

    def select(self, indices: Tensor) -> None:
        """Keep these utterances only."""
        for part in (self.state, self.ctc, self.lm, self.hotwords):
            if part:
                part.select(indices)
