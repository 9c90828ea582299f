"""Beam search over any step function, batched over utterances and hypotheses.

score(Y) = α · log P(Y|X) + γ · √wc(Y) (thesis eq. 4.1; α 1, γ 0.1, beam 8), where log P is the
decoder's, or its mixture with the CTC head's. There is no model code here. Legend: B utterances,
W hypotheses of each (the beam), V vocabulary, L positions of the token buffer, P periods.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol, TypeVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from asr.ctc import CtcPrefixScorer
from asr.node import Node
from asr.tokenizer import EOS, PAD, SOS, UNK

_NEVER = -1e9
# The end of a hypothesis may be one phrase again and again (of up to _PERIODS tokens) for
# max(_RUN, _REPEATS · phrase) tokens, then the phrase may not start once more.
_PERIODS, _RUN, _REPEATS = 8, 8, 4
# Nothing is waited for that would come this far behind the best for each place in the n best.
_MARGIN = 1.5


class SearchConfig(Node):
    """How a text is looked for; a beam of 1 is greedy.

    `ctc_weight` is the CTC head's share of log P(Y|X); `n_best` how many texts a result lists.
    """

    beam_size: PositiveInt = 8
    alpha: Annotated[float, Field(gt=0)] = 1.0
    gamma: Annotated[float, Field(ge=0)] = 0.1
    ctc_weight: Annotated[float, Field(ge=0, lt=1)] = 0.0
    n_best: PositiveInt = 5


@dataclass(frozen=True)
class Hypothesis:
    """A text as tokens without SOS and EOS, and what it is worth.

    `log_prob` is the decoder's log P(Y|X), EOS included; `ctc_log_prob` the CTC head's, or None;
    `ended` is "eos", or "length" where the audio's limit on tokens ended it.
    """

    tokens: tuple[int, ...]
    score: float
    log_prob: float
    ctc_log_prob: float | None
    ended: Literal["eos", "length"]


class State(Protocol):
    """What a step function remembers; it follows the hypotheses as they are reordered."""

    def reorder(self, parents_BW: Tensor) -> None:
        """Let hypothesis w continue hypothesis `parents_BW[b, w]`."""

    def keep(self, utterances: Tensor) -> None:
        """Go on with these utterances only."""


_S = TypeVar("_S", bound=State)


@dataclass
class _Live:
    """Hypotheses that can still grow: everything about them, rows are utterances."""

    tokens_BWL: Tensor
    att_BW: Tensor
    ctc_BW: Tensor
    wc_BW: Tensor
    runs_BWP: Tensor
    limits_B: Tensor
    number_B: Tensor
    done_B: Tensor


@dataclass
class _Ended:
    """The best W hypotheses of each utterance that have ended, best first."""

    score_BW: Tensor
    att_BW: Tensor
    ctc_BW: Tensor
    length_BW: Tensor
    tokens_BWL: Tensor


_Rows = TypeVar("_Rows", _Live, _Ended)


@dataclass
class BeamSearch:
    """A search with everything that does not change from call to call.

    `word_count_V` is what each token adds to wc(Y).
    """

    config: SearchConfig
    word_count_V: Tensor
    _silent: tuple[int, ...] = field(default=(PAD, SOS, UNK), repr=False)

    @torch.inference_mode()
    def __call__(
        self,
        step: Callable[[Tensor, _S], Tensor],
        state: _S,
        limits_B: Tensor,
        ctc: CtcPrefixScorer | None = None,
    ) -> list[list[Hypothesis]]:
        """The n best hypotheses of each utterance, best first.

        `step` takes the last tokens (B, W) and gives log-probabilities (B, W, V); `limits_B` is
        how many tokens each utterance may have at most. An utterance ends when no live hypothesis
        can join its n best, or when W have ended.
        """
        B, L = len(limits_B), int(limits_B.max()) + 1
        live, ended = self._start(limits_B, L), self._none_ended(limits_B, L)
        results: list[list[Hypothesis]] = [[] for _ in range(B)]
        for t in range(L):
            last_BW = live.tokens_BWL[..., t - 1] if t else torch.full_like(live.wc_BW, SOS).long()
            scores, att, ctc_scores = self._score(step(last_BW, state), live, ctc, t)
            live, parents_BW, ended = self._grow(live, ended, scores, att, ctc_scores, t)
            done_B = self._done(live, ended) | (live.limits_B <= t)
            self._collect(live, ended, done_B & ~live.done_B, results)
            live.done_B = live.done_B | done_B
            # Those that are done leave in company: each leaving copies all that stays.
            if live.done_B.sum() * 4 >= len(live.done_B):
                rest = (~live.done_B).nonzero().squeeze(1)
                if not len(rest):
                    break
                live, ended, parents_BW = (
                    _select(live, rest),
                    _select(ended, rest),
                    parents_BW[rest],
                )
                state.keep(rest)
                if ctc:
                    ctc.keep(rest)
            state.reorder(parents_BW)
            if ctc:
                ctc.advance(parents_BW, live.tokens_BWL[..., t])
        return results

    def _start(self, limits_B: Tensor, L: int) -> _Live:
        B, W, device = len(limits_B), self.config.beam_size, limits_B.device
        att_BW = torch.full((B, W), _NEVER, device=device)
        att_BW[:, 0] = 0.0  # one empty hypothesis; the other rows wait for its children
        return _Live(
            tokens_BWL=torch.full((B, W, L), PAD, device=device),
            att_BW=att_BW,
            ctc_BW=torch.zeros(B, W, device=device),
            wc_BW=torch.zeros(B, W, device=device),
            runs_BWP=torch.zeros(B, W, _PERIODS, dtype=torch.long, device=device),
            limits_B=limits_B,
            number_B=torch.arange(B, device=device),
            done_B=torch.zeros(B, dtype=torch.bool, device=device),
        )

    def _none_ended(self, limits_B: Tensor, L: int) -> _Ended:
        B, W, device = len(limits_B), self.config.beam_size, limits_B.device
        nothing = torch.full((B, W), _NEVER, device=device)
        lengths = torch.zeros(B, W, dtype=torch.long, device=device)
        tokens = torch.full((B, W, L), PAD, device=device)
        return _Ended(nothing, nothing.clone(), nothing.clone(), lengths, tokens)

    def _score(
        self, logp_BWV: Tensor, live: _Live, ctc: CtcPrefixScorer | None, t: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score, decoder's and CTC's log-probability (B, W, V) of every continuation."""
        logp_BWV = logp_BWV.index_fill(
            2, logp_BWV.new_tensor(self._silent, dtype=torch.long), _NEVER
        )
        logp_BWV = _forbid_repetition(logp_BWV, live, t)
        at_limit_B11 = (live.limits_B <= t)[:, None, None]
        is_eos_V = torch.arange(logp_BWV.shape[2], device=logp_BWV.device) == EOS
        logp_BWV = logp_BWV.masked_fill(at_limit_B11 & ~is_eos_V, _NEVER)
        att = live.att_BW[..., None] + logp_BWV
        ctc_scores = torch.zeros_like(att) if ctc is None else self._ctc_scores(att, ctc)
        joint = self._joint(att, ctc_scores)
        wc = live.wc_BW[..., None] + self.word_count_V
        scores = self.config.alpha * joint + self.config.gamma * wc.sqrt()
        return scores.masked_fill(joint < _NEVER / 2, _NEVER), att, ctc_scores

    def _joint(self, att: Tensor, ctc: Tensor) -> Tensor:
        """log P(Y|X); what either side never says stays impossible, whatever the weights."""
        share = self.config.ctc_weight
        never = (att < _NEVER / 2) | (ctc < _NEVER / 2)
        return ((1 - share) * att + share * ctc).masked_fill(never, _NEVER)

    def _ctc_scores(self, att_BWV: Tensor, ctc: CtcPrefixScorer) -> Tensor:
        """CTC scores of EOS and of the continuations that the decoder favours; others never."""
        n_candidates = min(att_BWV.shape[2], 2 * self.config.beam_size + 8)
        tokens_BWK = att_BWV.topk(n_candidates, dim=2).indices
        scores = torch.full_like(att_BWV, _NEVER)
        scores.scatter_(2, tokens_BWK, ctc.score(tokens_BWK).to(att_BWV.dtype))
        scores[..., EOS] = ctc.total().to(att_BWV.dtype)
        return scores

    def _grow(
        self, live: _Live, ended: _Ended, scores: Tensor, att: Tensor, ctc: Tensor, t: int
    ) -> tuple[_Live, Tensor, _Ended]:
        """The W best continuations, their parents, and those that ended with EOS put aside.

        Each hypothesis has one EOS, so that 2 W candidates hold W that go on.
        """
        B, W, V = scores.shape
        best, flat = scores.flatten(1).topk(min(2 * W, W * V))
        parents, tokens = flat // V, flat % V
        att, ctc = att.flatten(1).gather(1, flat), ctc.flatten(1).gather(1, flat)
        is_eos = tokens == EOS
        rank = torch.arange(flat.shape[1], device=flat.device)
        ends = is_eos & (rank < W) & (best > _NEVER / 2)
        ended = self._end(live, ended, best.masked_fill(~ends, _NEVER), att, ctc, parents, t)

        goes_on = (is_eos.long() * 2 * W + rank).argsort(dim=1)[:, :W]
        parents, tokens = parents.gather(1, goes_on), tokens.gather(1, goes_on)
        rows = torch.arange(B, device=flat.device)[:, None]
        tokens_BWL = live.tokens_BWL[rows, parents]
        runs = _runs(tokens_BWL, live.runs_BWP[rows, parents], tokens, t)
        tokens_BWL[..., t] = tokens
        grown = _Live(
            tokens_BWL,
            att.gather(1, goes_on),
            ctc.gather(1, goes_on),
            live.wc_BW.gather(1, parents) + self.word_count_V[tokens],
            runs,
            live.limits_B,
            live.number_B,
            live.done_B,
        )
        return grown, parents, ended

    def _end(
        self, live: _Live, ended: _Ended, score: Tensor, att: Tensor, ctc: Tensor,
        parents: Tensor, t: int,
    ) -> _Ended:  # fmt: skip
        """Merge what ended now with what had ended before; the W best stay."""
        rows = torch.arange(len(score), device=score.device)[:, None]
        score = torch.cat((ended.score_BW, score), 1)
        top, order = score.topk(self.config.beam_size)
        length = torch.cat((ended.length_BW, torch.full_like(parents, t)), 1)
        tokens = torch.cat((ended.tokens_BWL, live.tokens_BWL[rows, parents]), 1)
        return _Ended(
            top,
            torch.cat((ended.att_BW, att), 1).gather(1, order),
            torch.cat((ended.ctc_BW, ctc), 1).gather(1, order),
            length.gather(1, order),
            tokens[rows, order],
        )

    def _done(self, live: _Live, ended: _Ended) -> Tensor:
        """(B,): nothing live can join the n best that ended, or the pool of ended ones is full.

        log P only falls; √wc can grow to the utterance's limit.
        """
        joint = self._joint(live.att_BW, live.ctc_BW)
        most = self.word_count_V.max() * live.limits_B
        bound = self.config.alpha * joint.amax(1) + self.config.gamma * most.sqrt()
        last = min(self.config.n_best, self.config.beam_size) - 1
        least = torch.maximum(ended.score_BW[:, last], ended.score_BW[:, 0] - _MARGIN * last)
        return (least >= bound) | (ended.score_BW[:, -1] > _NEVER / 2)

    def _collect(
        self, live: _Live, ended: _Ended, done_B: Tensor, results: list[list[Hypothesis]]
    ) -> None:
        has_ctc = self.config.ctc_weight > 0
        done = _select(ended, done_B)
        limits = live.limits_B[done_B].tolist()
        columns = zip(
            live.number_B[done_B].tolist(), limits, done.score_BW.tolist(), done.att_BW.tolist(),
            done.ctc_BW.tolist(), done.length_BW.tolist(), done.tokens_BWL.tolist(), strict=True,
        )  # fmt: skip
        for number, limit, *hypotheses in columns:
            results[number] = [
                Hypothesis(
                    tuple(tokens[:length]),
                    score,
                    att,
                    ctc if has_ctc else None,
                    "length" if length == limit else "eos",
                )
                for score, att, ctc, length, tokens in zip(*hypotheses, strict=True)
                if score > _NEVER / 2
            ][: self.config.n_best]


def _select(group: _Rows, rows: Tensor) -> _Rows:
    """These utterances of a group of tensors."""
    return type(group)(**{name: value[rows] for name, value in vars(group).items()})


def _recent(tokens_BWL: Tensor, t: int) -> Tensor:
    """(B, W, P): the tokens 1, 2 … P places before position `t`; PAD where there is none."""
    recent = tokens_BWL[..., max(0, t - _PERIODS) : t].flip(-1)
    return torch.nn.functional.pad(recent, (0, _PERIODS - recent.shape[-1]), value=PAD)


def _runs(tokens_BWL: Tensor, runs_BWP: Tensor, tokens_BW: Tensor, t: int) -> Tensor:
    """How many tokens at the end, now with `tokens_BW`, equal the one p places before them."""
    same = tokens_BW[..., None] == _recent(tokens_BWL, t)
    return torch.where(same, runs_BWP + 1, 0)


def _forbid_repetition(logp_BWV: Tensor, live: _Live, t: int) -> Tensor:
    """Take away the token that would start the phrase at the end once more than allowed."""
    period = torch.arange(1, _PERIODS + 1, device=logp_BWV.device)
    too_often = live.runs_BWP + period >= torch.clamp(_REPEATS * period, min=_RUN)
    forbidden = torch.where(too_often, _recent(live.tokens_BWL, t), PAD)
    return logp_BWV.scatter(2, forbidden, _NEVER)
