"""Beam search over any step function, batched over utterances and hypotheses.

Decoder, CTC head and language model score the same few candidates of each hypothesis, those that
decoder and CTC head favour together. There is no model code here. Tokens stay where they were
written, with the hypothesis that each continues; a text is read from its end when it is done. What
cannot be has the score -inf. Legend: B utterances, W hypotheses of each (the beam), V vocabulary,
K candidates (the last is EOS), L positions, P periods, C parts of a score (decoder, CTC, language
model: those in use).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from asr.decoding.ctc_prefix import CtcPrefixScorer
from asr.decoding.hypothesis import NO_SPEECH, Hypothesis
from asr.decoding.options import DecodingOptions
from asr.decoding.repetition import PERIODS, Repetition
from asr.decoding.request import Request
from asr.decoding.scorers import JointScorer
from asr.decoding.topk import top_k
from asr.tokenizer import EOS, SOS, SPECIAL

# Nothing is waited for that would come this far behind the best for each place in the n best.
_MARGIN = 1.5
# Below the least logarithm that float32 has.
_TINY = -100.0
# The CTC scorer's own "never" is a large number.
_CTC_NEVER = -1e7


@dataclass
class _Live:
    """Hypotheses that can still grow: everything about them, rows are utterances.

    Place l of `tokens_BWL` is what hypothesis w wrote then, to continue `parents_BWL`'s.
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


@dataclass
class _Ended:
    """The best W hypotheses of each utterance that have ended, best first.

    One of `length_BW` tokens is the hypothesis that `slot_BW` was then.
    """

    score_BW: Tensor
    component_scores_BWC: Tensor
    num_words_BW: Tensor
    length_BW: Tensor
    slot_BW: Tensor


@dataclass
class _Candidates:
    """Continuations of each hypothesis: tokens, score, parts of it, log of the confidence."""

    tokens_BWK: Tensor
    score_BWK: Tensor
    component_scores_BWKC: Tensor
    confidence_BWK: Tensor


_Rows = TypeVar("_Rows", _Live, _Ended)


@dataclass
class BeamSearch:
    """A search with everything that does not change from call to call.

    `word_count_V` is what each token adds to wc(Y).
    """

    config: DecodingOptions
    word_count_V: Tensor

    @torch.inference_mode()
    def __call__(
        self,
        models: JointScorer,
        limits_B: Tensor,
        requests: Sequence[Request] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each utterance, best first.

        `limits_B` is how many tokens each utterance may have at most. An utterance ends when no
        live hypothesis can join its n best, or when W have ended. One whose request is cancelled
        ends within a step, with the hypotheses that have ended, or `NO_SPEECH`.
        """
        weights_C = self._weights(models, limits_B.device)
        W = self.config.beam_size
        L, least_limit = int(limits_B.max()) + 1, int(limits_B.min())
        live, ended = self._start(limits_B, L, len(weights_C))
        results: list[list[Hypothesis]] = [[] for _ in limits_B]
        some_ended = False
        for t in range(L):
            candidates = self._candidates(models, live, weights_C, t, t >= least_limit)
            extended_BW, flat_BW = candidates.score_BWK[..., :-1].flatten(1).topk(W)
            if (candidates.score_BWK[..., -1] > extended_BW[:, -1:]).any():
                ended, some_ended = self._end(live, ended, candidates, extended_BW, t), True
            parents_BW = self._grow(live, candidates, flat_BW, t)
            if some_ended or requests or t >= least_limit:
                done_B = self._done(live, ended, weights_C) | (live.limits_B <= t)
                if requests:
                    done_B |= _cancelled(live, requests)
                self._collect(live, ended, done_B & ~live.done_B, models, results)
                live.done_B = live.done_B | done_B
                # Utterances that are done are removed in groups, since a removal copies the rest.
                if live.done_B.sum() * 4 >= len(live.done_B):
                    rest = (~live.done_B).nonzero().squeeze(1)
                    if not len(rest):
                        break
                    live, ended = _select(live, rest), _select(ended, rest)
                    parents_BW = parents_BW[rest]
                    models.select(rest)
            models.advance(parents_BW, live.tokens_BWL[..., t])
        return [nbest or [NO_SPEECH] for nbest in results]

    def _weights(self, models: JointScorer, device: torch.device) -> Tensor:
        """What the parts in use are multiplied by."""
        decoder, ctc, lm = self.config.weights
        if not models.step:  # the CTC head has its share too
            decoder, ctc = 0.0, decoder + ctc
        used = zip((decoder, ctc, lm), models.used, strict=True)
        return torch.tensor([weight for weight, is_used in used if is_used], device=device)

    def _start(self, limits_B: Tensor, L: int, C: int) -> tuple[_Live, _Ended]:
        B, W, device = len(limits_B), self.config.beam_size, limits_B.device
        component_scores_BWC = torch.zeros(B, W, C, device=device)
        component_scores_BWC[
            :, 1:
        ] = -math.inf  # one empty hypothesis; the others wait for its children
        history = torch.zeros(B, W, L, dtype=torch.long, device=device)
        nothing_BW = torch.zeros(B, W, device=device)
        live = _Live(
            tokens_BWL=history,
            parents_BWL=history.clone(),
            confidence_BWL=history.float(),
            component_scores_BWC=component_scores_BWC,
            num_words_BW=nothing_BW,
            repetition=Repetition.start(B, W, device),
            limits_B=limits_B,
            utterance_B=torch.arange(B, device=device),
            done_B=torch.zeros(B, dtype=torch.bool, device=device),
        )
        none_BW = nothing_BW.long()
        return live, _Ended(
            nothing_BW - math.inf, component_scores_BWC, nothing_BW, none_BW, none_BW
        )

    def _candidates(
        self, models: JointScorer, live: _Live, weights_C: Tensor, t: int, limited: bool
    ) -> _Candidates:
        """Score the preselected continuations of each hypothesis, and EOS."""
        tokens_BW = (
            live.tokens_BWL[..., t - 1] if t else torch.full_like(live.num_words_BW, SOS).long()
        )
        logp_BWV = models.step(tokens_BW, models.state) if models.step else None
        preselection_BWV = self._preselection_scores(logp_BWV, models.ctc)
        # W of them that may be chosen are enough; others are special, or repeat too often.
        n = min(preselection_BWV.shape[2], 2 * self.config.beam_size + len(SPECIAL) + PERIODS)
        tokens_BWK = top_k(preselection_BWV.flatten(0, 1), n).view(*live.num_words_BW.shape, n)
        never_BWK = (tokens_BWK < len(SPECIAL)) | live.repetition.blocked(tokens_BWK)
        if limited:
            never_BWK |= (live.limits_B <= t)[:, None, None]
        tokens_BWK, never_BWK = pad(tokens_BWK, (0, 1), value=EOS), pad(never_BWK, (0, 1))
        parts = []
        if logp_BWV is not None:
            parts.append(logp_BWV.gather(2, tokens_BWK) + live.component_scores_BWC[..., 0, None])
        if models.ctc:
            ctc_BWK = models.ctc.score(tokens_BWK).to(live.component_scores_BWC.dtype)
            is_dead_BW1 = live.component_scores_BWC[..., len(parts), None] == -math.inf
            parts.append(ctc_BWK.masked_fill((ctc_BWK < _CTC_NEVER) | is_dead_BW1, -math.inf))
        if models.lm:
            parts.append(models.lm.score(tokens_BWK) + live.component_scores_BWC[..., -1, None])
        component_scores_BWKC = torch.stack(parts, -1).masked_fill(never_BWK[..., None], -math.inf)
        joint_BWK = component_scores_BWKC @ weights_C
        num_words_BWK = live.num_words_BW[..., None] + self.word_count_V.take(tokens_BWK)
        score_BWK = joint_BWK.add(num_words_BWK.sqrt_(), alpha=self.config.gamma)
        return _Candidates(tokens_BWK, score_BWK, component_scores_BWKC, joint_BWK.log_softmax(2))

    def _preselection_scores(self, logp_BWV: Tensor | None, ctc: CtcPrefixScorer | None) -> Tensor:
        """(B, W, V): what orders the candidates: the joint score, nearly.

        The decoder alone would leave out what only CTC finds: a decoder that skips a word is sure
        of the next one.
        """
        if ctc is None:
            assert logp_BWV is not None, "a search has a decoder or a CTC head"
            return logp_BWV
        if logp_BWV is None:
            return ctc.preselection_scores()
        decoder, share, _ = self.config.weights
        return decoder * logp_BWV + share * ctc.preselection_scores().clamp(min=_TINY)

    def _end(
        self, live: _Live, ended: _Ended, candidates: _Candidates, extended_BW: Tensor, t: int
    ) -> _Ended:
        """Merge those that end now with those that had: the W best stay.

        An end counts if it is among the W best of all that hypotheses can do now; of those that
        go on, `extended_BW` are the best scores.
        """
        W = self.config.beam_size
        eos_BW = candidates.score_BWK[..., -1]
        better_BWX = torch.cat((extended_BW, eos_BW), 1)[:, None] > eos_BW[..., None]
        score_BW = eos_BW.masked_fill(better_BWX.sum(2) >= W, -math.inf)
        now = _Ended(
            score_BW,
            candidates.component_scores_BWKC[:, :, -1],
            live.num_words_BW,
            torch.full_like(ended.length_BW, t),
            torch.arange(W, device=eos_BW.device).expand_as(eos_BW),
        )
        both = {name: torch.cat((vars(ended)[name], new), 1) for name, new in vars(now).items()}
        rows = torch.arange(len(eos_BW), device=eos_BW.device)[:, None]
        order = both["score_BW"].topk(W).indices
        return _Ended(**{name: value[rows, order] for name, value in both.items()})

    def _grow(self, live: _Live, candidates: _Candidates, flat_BW: Tensor, t: int) -> Tensor:
        """Let these of the W · (K - 1) continuations be the live hypotheses.

        Returns which each continues, (B, W).
        """
        parents_BW = flat_BW // (candidates.tokens_BWK.shape[2] - 1)
        flat_BW = flat_BW + parents_BW  # among W · K, with EOS
        tokens_BW = candidates.tokens_BWK.flatten(1).gather(1, flat_BW)
        index_BWC = flat_BW[..., None].expand(-1, -1, live.component_scores_BWC.shape[2])
        live.component_scores_BWC = candidates.component_scores_BWKC.flatten(1, 2).gather(
            1, index_BWC
        )
        live.num_words_BW = live.num_words_BW.gather(1, parents_BW) + self.word_count_V.take(
            tokens_BW
        )
        live.repetition = live.repetition.extended(parents_BW, tokens_BW)
        live.tokens_BWL[..., t], live.parents_BWL[..., t] = tokens_BW, parents_BW
        live.confidence_BWL[..., t] = candidates.confidence_BWK.flatten(1).gather(1, flat_BW)
        return parents_BW

    def _done(self, live: _Live, ended: _Ended, weights_C: Tensor) -> Tensor:
        """(B,): nothing live can join the n best that ended, or the pool of ended ones is full.

        log P only falls; √wc can grow to the utterance's limit.
        """
        most = self.word_count_V.max() * live.limits_B
        bound = (live.component_scores_BWC @ weights_C).amax(1) + self.config.gamma * most.sqrt()
        last = min(self.config.n_best, self.config.beam_size) - 1
        least = torch.maximum(ended.score_BW[:, last], ended.score_BW[:, 0] - _MARGIN * last)
        return (least >= bound) | (ended.score_BW[:, -1] > -math.inf)

    def _collect(
        self,
        live: _Live,
        ended: _Ended,
        done_B: Tensor,
        models: JointScorer,
        results: list[list[Hypothesis]],
    ) -> None:
        """The n best of utterances that are done now; EOS was the last token of each."""
        rows = done_B.nonzero().squeeze(1)
        done = _select(ended, rows)
        length_score_BW = self.config.gamma * done.num_words_BW.sqrt()
        columns = zip(
            live.utterance_B[rows].tolist(), live.limits_B[rows].tolist(), rows.tolist(),
            done.score_BW.tolist(), done.component_scores_BWC.tolist(), length_score_BW.tolist(),
            done.length_BW.tolist(), done.slot_BW.tolist(),
            strict=True,
        )  # fmt: skip
        for number, limit, row, *hypotheses in columns:
            tokens_WL, parents_WL = live.tokens_BWL[row].tolist(), live.parents_BWL[row].tolist()
            confidence_WL = live.confidence_BWL[row].exp().tolist()
            for score, parts, length_score, n, slot in zip(*hypotheses, strict=True):
                if score == -math.inf or len(results[number]) == self.config.n_best:
                    break
                rest = iter(parts)
                att, ctc, lm = (next(rest) if used else None for used in models.used)
                way = _trace(parents_WL, slot, n)
                tokens = tuple(tokens_WL[w][u] for u, w in enumerate(way))
                confidences = tuple(confidence_WL[w][u] for u, w in enumerate(way))
                ended_by: Literal["eos", "length"] = "length" if n == limit else "eos"
                results[number].append(
                    Hypothesis(tokens, score, att, ctc, ended_by, lm, length_score, confidences)
                )


def _cancelled(live: _Live, requests: Sequence[Request]) -> Tensor:
    """(B,): whose request is cancelled; the others' requests count a step."""
    mine = [requests[i] for i in live.utterance_B.tolist()]
    for request in mine:
        request.n_steps += 1
    return torch.tensor([r.is_cancelled for r in mine], device=live.done_B.device)


def _trace(parents_WL: list[list[int]], slot: int, n: int) -> list[int]:
    """Where each of n tokens of a hypothesis stands, which was `slot` in the end."""
    way = []
    for t in reversed(range(n)):
        way.append(slot)
        slot = parents_WL[slot][t]
    return way[::-1]


def _select(group: _Rows, rows: Tensor) -> _Rows:
    """These utterances of a group of tensors."""
    return type(group)(**{name: value[rows] for name, value in vars(group).items()})
