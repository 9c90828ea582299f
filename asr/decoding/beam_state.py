"""Hold the hypotheses of a beam search: those that can be extended and those that have ended.

Legend: B utterances, W hypotheses of each (the beam), K candidates (the last is EOS), L steps,
C components of a score (decoder, CTC head, language model, hotwords: those in use).
"""

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from asr.decoding.hypothesis import Ended, Hypothesis
from asr.decoding.options import DecodingOptions
from asr.decoding.repetition import Repetition


@dataclass
class Candidates:
    """Continuations of each hypothesis; confidences are logarithms of probabilities."""

    tokens_BWK: Tensor
    score_BWK: Tensor
    component_scores_BWKC: Tensor
    confidence_BWK: Tensor


@dataclass
class LiveHypotheses:
    """Hypotheses that can still be extended; an impossible one has the score -inf.

    Tokens stay where they were written: at step t hypothesis w wrote `tokens_BWL[b, w, t]` to
    continue hypothesis `parents_BWL[b, w, t]`. A text is traced back from its end.
    """

    tokens_BWL: Tensor
    parents_BWL: Tensor
    confidence_BWL: Tensor
    component_scores_BWC: Tensor
    num_words_BW: Tensor
    repetition: Repetition
    limits_B: Tensor
    utterance_B: Tensor
    done_B: Tensor

    @classmethod
    def start(cls, limits_B: Tensor, W: int, C: int) -> "LiveHypotheses":
        """Return one empty hypothesis of each utterance, and W - 1 impossible ones."""
        B, L, device = len(limits_B), int(limits_B.max()) + 1, limits_B.device
        component_scores_BWC = torch.zeros(B, W, C, device=device)
        component_scores_BWC[:, 1:] = -math.inf
        history = torch.zeros(B, W, L, dtype=torch.long, device=device)
        return cls(
            tokens_BWL=history,
            parents_BWL=history.clone(),
            confidence_BWL=history.float(),
            component_scores_BWC=component_scores_BWC,
            num_words_BW=torch.zeros(B, W, device=device),
            repetition=Repetition.start(B, W, device),
            limits_B=limits_B,
            utterance_B=torch.arange(B, device=device),
            done_B=torch.zeros(B, dtype=torch.bool, device=device),
        )

    def extend(
        self, candidates: Candidates, flat_BW: Tensor, num_words_V: Tensor, t: int
    ) -> Tensor:
        """Make the continuations `flat_BW` the live hypotheses; return which each continues (B, W).

        `flat_BW` are indices into the W · (K - 1) continuations without EOS, `t` is the step.
        """
        parents_BW = flat_BW // (candidates.tokens_BWK.shape[2] - 1)
        flat_BW = flat_BW + parents_BW  # among W · K, with EOS
        tokens_BW = candidates.tokens_BWK.flatten(1).gather(1, flat_BW)
        components = candidates.component_scores_BWKC.flatten(1, 2)
        index_BWC = flat_BW[..., None].expand(-1, -1, components.shape[2])
        self.component_scores_BWC = components.gather(1, index_BWC)
        self.num_words_BW = self.num_words_BW.gather(1, parents_BW) + num_words_V.take(tokens_BW)
        self.repetition = self.repetition.extended(parents_BW, tokens_BW)
        n = flat_BW.shape[1]
        self.tokens_BWL[:, :n, t], self.parents_BWL[:, :n, t] = tokens_BW, parents_BW
        confidence_BX = candidates.confidence_BWK.flatten(1)
        self.confidence_BWL[:, :n, t] = confidence_BX.gather(1, flat_BW)
        return parents_BW

    def narrow(self, n: int) -> None:
        """Keep the first n hypotheses of each utterance; the history stays as wide as it is."""
        self.component_scores_BWC = self.component_scores_BWC[:, :n]
        self.num_words_BW = self.num_words_BW[:, :n]
        self.repetition = self.repetition.narrowed(n)


@dataclass
class EndedHypotheses:
    """The best W ended hypotheses of each utterance, best first; a missing one scores -inf.

    Hypothesis w ended after `length_BW` tokens, when it was live hypothesis `slot_BW`.
    """

    score_BW: Tensor
    component_scores_BWC: Tensor
    num_words_BW: Tensor
    length_BW: Tensor
    slot_BW: Tensor

    @classmethod
    def none_of(cls, live: LiveHypotheses) -> "EndedHypotheses":
        """Return a group in which no hypothesis has ended yet."""
        zeros_BW = torch.zeros_like(live.num_words_BW)
        index_BW = zeros_BW.long()
        return cls(zeros_BW - math.inf, live.component_scores_BWC, zeros_BW, index_BW, index_BW)

    def merged(
        self, live: LiveHypotheses, candidates: Candidates, extended_BW: Tensor, t: int
    ) -> "EndedHypotheses":
        """Return the W best of these and of the live hypotheses that end at step t.

        A hypothesis ends only if its EOS is among the W best of all candidates. `extended_BW` are
        the W best scores of the candidates that continue.
        """
        eos_BW, W = candidates.score_BWK[..., -1], self.score_BW.shape[1]
        better_BWX = torch.cat((extended_BW, eos_BW), 1)[:, None] > eos_BW[..., None]
        now = EndedHypotheses(
            eos_BW.masked_fill(better_BWX.sum(2) >= W, -math.inf),
            candidates.component_scores_BWKC[:, :, -1],
            live.num_words_BW,
            torch.full_like(eos_BW, t, dtype=torch.long),
            torch.arange(eos_BW.shape[1], device=eos_BW.device).expand_as(eos_BW),
        )
        both = {name: torch.cat((vars(self)[name], new), 1) for name, new in vars(now).items()}
        rows = torch.arange(len(eos_BW), device=eos_BW.device)[:, None]
        order = both["score_BW"].topk(W).indices
        return EndedHypotheses(**{name: value[rows, order] for name, value in both.items()})


_Rows = TypeVar("_Rows", LiveHypotheses, EndedHypotheses)


def select(group: _Rows, rows: Tensor) -> _Rows:
    """Return the hypotheses of these utterances."""
    return type(group)(**{name: value[rows] for name, value in vars(group).items()})


def n_best(
    live: LiveHypotheses,
    ended: EndedHypotheses,
    row: int,
    used: tuple[bool, bool, bool, bool],
    options: DecodingOptions,
) -> list[Hypothesis]:
    """Return the n best ended hypotheses of a row, or as many as there are, best first.

    `used` tells which of decoder, CTC head, language model and hotwords the components belong to.
    """
    tokens_WL, parents_WL = live.tokens_BWL[row].tolist(), live.parents_BWL[row].tolist()
    confidence_WL, limit = live.confidence_BWL[row].exp().tolist(), int(live.limits_B[row])
    length_score_W = options.gamma * ended.num_words_BW[row].sqrt()
    columns = (
        ended.score_BW[row], ended.component_scores_BWC[row], length_score_W,
        ended.length_BW[row], ended.slot_BW[row],
    )  # fmt: skip
    found: list[Hypothesis] = []
    for score, components, length_score, n, slot in zip(
        *(c.tolist() for c in columns), strict=True
    ):
        if score == -math.inf or len(found) == options.n_best:
            break
        rest = iter(components)
        att, ctc, lm, bonus = (next(rest) if is_used else None for is_used in used)
        path = _trace(parents_WL, slot, n)
        tokens = tuple(tokens_WL[w][t] for t, w in enumerate(path))
        confidences = tuple(confidence_WL[w][t] for t, w in enumerate(path))
        how: Ended = "length" if n == limit else "eos"
        found.append(
            Hypothesis(
                tokens, score, att, ctc, how, lm, length_score, confidences,
                hotword_score=bonus or 0.0,
            )
        )  # fmt: skip
    return found


def _trace(parents_WL: list[list[int]], slot: int, length: int) -> list[int]:
    """Return the hypothesis that wrote each token of the text that ended in `slot`."""
    path = []
    for t in reversed(range(length)):
        path.append(slot)
        slot = parents_WL[slot][t]
    return path[::-1]
