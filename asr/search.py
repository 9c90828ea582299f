"""Beam search over any step function, batched over utterances and hypotheses.

Decoder, CTC head and language model score the same few candidates of each hypothesis, those that
the decoder favours (without a decoder, those that CTC does). There is no model code here. Legend:
B utterances, W hypotheses of each (the beam), V vocabulary, K candidates, L positions of the token
buffer, P periods, C parts of a score (decoder, CTC, language model).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from asr.repetition import PERIODS, forbidden, grown_runs
from asr.score import NO_SPEECH, Hypothesis, SearchConfig
from asr.scorers import Models
from asr.tokenizer import EOS, PAD, SOS, UNK

_NEVER = -1e9
Gone = Callable[[int], bool]
# Nothing is waited for that would come this far behind the best for each place in the n best.
_MARGIN = 1.5


@dataclass
class _Live:
    """Hypotheses that can still grow: everything about them, rows are utterances."""

    tokens_BWL: Tensor
    confidence_BWL: Tensor
    parts_BWC: Tensor
    wc_BW: Tensor
    runs_BWP: Tensor
    limits_B: Tensor
    number_B: Tensor
    done_B: Tensor


@dataclass
class _Ended:
    """The best W hypotheses of each utterance that have ended, best first."""

    score_BW: Tensor
    parts_BWC: Tensor
    wc_BW: Tensor
    length_BW: Tensor
    tokens_BWL: Tensor
    confidence_BWL: Tensor


@dataclass
class _Candidates:
    """Continuations of each hypothesis: tokens, score, parts of it, log of the confidence."""

    tokens_BWK: Tensor
    score_BWK: Tensor
    parts_BWKC: Tensor
    confidence_BWK: Tensor


_Rows = TypeVar("_Rows", _Live, _Ended)


@dataclass
class BeamSearch:
    """A search with everything that does not change from call to call.

    `word_count_V` is what each token adds to wc(Y).
    """

    config: SearchConfig
    word_count_V: Tensor

    @torch.inference_mode()
    def __call__(
        self, models: Models, limits_B: Tensor, gone: Gone | None = None
    ) -> list[list[Hypothesis]]:
        """The n best hypotheses of each utterance, best first.

        `limits_B` is how many tokens each utterance may have at most. An utterance ends when no
        live hypothesis can join its n best, or when W have ended. `gone` is asked in each step
        whether an utterance, by its number, is no longer wanted: it leaves with what has ended,
        or `NO_SPEECH`.
        """
        decoder, ctc, lm = self.config.weights
        # Without a decoder the CTC head has its share too.
        weights = (decoder, ctc, lm) if models.step else (0.0, decoder + ctc, lm)
        self._weights_C = torch.tensor(weights, device=limits_B.device)
        B, L = len(limits_B), int(limits_B.max()) + 1
        live, ended = self._start(limits_B, L), self._none_ended(limits_B, L)
        results: list[list[Hypothesis]] = [[] for _ in range(B)]
        for t in range(L):
            last_BW = live.tokens_BWL[..., t - 1] if t else torch.full_like(live.wc_BW, SOS).long()
            candidates = self._candidates(models, last_BW, live, t)
            live, parents_BW, ended = self._grow(live, ended, candidates, t)
            done_B = self._done(live, ended) | (live.limits_B <= t)
            if gone:
                done_B |= torch.tensor([gone(i) for i in live.number_B.tolist()]).to(done_B.device)
            self._collect(live, ended, done_B & ~live.done_B, models, results)
            live.done_B = live.done_B | done_B
            # Those that are done leave in company: each leaving copies all that stays.
            if live.done_B.sum() * 4 >= len(live.done_B):
                rest = (~live.done_B).nonzero().squeeze(1)
                if not len(rest):
                    break
                live, ended = _select(live, rest), _select(ended, rest)
                parents_BW = parents_BW[rest]
                models.keep(rest)
            models.advance(parents_BW, live.tokens_BWL[..., t])
        return [nbest or [NO_SPEECH] for nbest in results]

    def _start(self, limits_B: Tensor, L: int) -> _Live:
        B, W, device = len(limits_B), self.config.beam_size, limits_B.device
        parts_BWC = torch.zeros(B, W, 3, device=device)
        parts_BWC[:, 1:] = _NEVER  # one empty hypothesis; the other rows wait for its children
        return _Live(
            tokens_BWL=torch.full((B, W, L), PAD, device=device),
            confidence_BWL=torch.zeros(B, W, L, device=device),
            parts_BWC=parts_BWC,
            wc_BW=torch.zeros(B, W, device=device),
            runs_BWP=torch.zeros(B, W, PERIODS, dtype=torch.long, device=device),
            limits_B=limits_B,
            number_B=torch.arange(B, device=device),
            done_B=torch.zeros(B, dtype=torch.bool, device=device),
        )

    def _none_ended(self, limits_B: Tensor, L: int) -> _Ended:
        live = self._start(limits_B, L)
        return _Ended(
            torch.full_like(live.wc_BW, _NEVER),
            live.parts_BWC,
            live.wc_BW,
            live.wc_BW.long(),
            live.tokens_BWL,
            live.confidence_BWL,
        )

    def _candidates(self, models: Models, last_BW: Tensor, live: _Live, t: int) -> _Candidates:
        """The favoured continuations of each hypothesis, and EOS, with what they are worth."""
        favoured_BWV = models.favoured(last_BW)
        # W of them that may be chosen are enough; others are silent, EOS, or repeat too often.
        n = min(favoured_BWV.shape[2], 2 * self.config.beam_size + 4 + PERIODS)
        tokens_BWK = favoured_BWV.topk(n, dim=2).indices
        allowed_BWK = self._allowed(tokens_BWK, live, t)
        eos_BW1 = torch.full_like(tokens_BWK[..., :1], EOS)
        tokens_BWK = torch.cat((tokens_BWK, eos_BW1), 2)
        allowed_BWK = torch.cat((allowed_BWK, torch.ones_like(eos_BW1, dtype=torch.bool)), 2)

        parts_BWKC = live.parts_BWC[:, :, None].repeat(1, 1, n + 1, 1)
        if models.step:
            parts_BWKC[..., 0] += favoured_BWV.gather(2, tokens_BWK)
        if models.ctc:
            parts_BWKC[..., 1] = models.ctc.score(tokens_BWK).to(parts_BWKC.dtype)
        if models.lm:
            parts_BWKC[..., 2] += models.lm.score(tokens_BWK)
        joint_BWK = self._joint(parts_BWKC).masked_fill(~allowed_BWK, _NEVER)
        wc_BWK = live.wc_BW[..., None] + self.word_count_V[tokens_BWK]
        score = (joint_BWK + self.config.gamma * wc_BWK.sqrt()).masked_fill(
            joint_BWK <= _NEVER / 2, _NEVER
        )
        return _Candidates(tokens_BWK, score, parts_BWKC, joint_BWK.log_softmax(2))

    def _allowed(self, tokens_BWK: Tensor, live: _Live, t: int) -> Tensor:
        """What may be written at place t; EOS is asked for apart."""
        never = torch.tensor((PAD, SOS, UNK, EOS), device=tokens_BWK.device)
        never_BWX = torch.cat(
            (forbidden(live.tokens_BWL, live.runs_BWP, t), never.expand(*live.wc_BW.shape, -1)), 2
        )
        said_BWK = (tokens_BWK[..., None] == never_BWX[:, :, None]).any(-1)
        return ~said_BWK & (live.limits_B > t)[:, None, None]

    def _joint(self, parts: Tensor) -> Tensor:
        """The weighted sum; what one part never says stays impossible, whatever the weights."""
        return (parts @ self._weights_C).masked_fill((parts < _NEVER / 2).any(-1), _NEVER)

    def _grow(
        self, live: _Live, ended: _Ended, candidates: _Candidates, t: int
    ) -> tuple[_Live, Tensor, _Ended]:
        """The W best continuations, their parents, and those that ended with EOS put aside.

        Each hypothesis has one EOS, so that 2 W candidates hold W that go on.
        """
        B, W, K = candidates.score_BWK.shape
        best, flat = candidates.score_BWK.flatten(1).topk(2 * W)
        rows, parents = torch.arange(B, device=flat.device)[:, None], flat // K
        tokens = candidates.tokens_BWK.flatten(1).gather(1, flat)
        parts = candidates.parts_BWKC.flatten(1, 2)[rows, flat]
        confidence = candidates.confidence_BWK.flatten(1).gather(1, flat)
        is_eos, rank = tokens == EOS, torch.arange(2 * W, device=flat.device)
        ends = is_eos & (rank < W) & (best > _NEVER / 2)
        ended = self._end(live, ended, best.masked_fill(~ends, _NEVER), parts, parents, t)

        goes_on = (is_eos.long() * 2 * W + rank).argsort(dim=1)[:, :W]
        parents, tokens = parents.gather(1, goes_on), tokens.gather(1, goes_on)
        tokens_BWL, runs_BWP = live.tokens_BWL[rows, parents], live.runs_BWP[rows, parents]
        runs_BWP = grown_runs(tokens_BWL, runs_BWP, tokens, t)
        tokens_BWL[..., t] = tokens
        confidence_BWL = live.confidence_BWL[rows, parents]
        confidence_BWL[..., t] = confidence.gather(1, goes_on)
        wc_BW = live.wc_BW.gather(1, parents) + self.word_count_V[tokens]
        grown = _Live(
            tokens_BWL, confidence_BWL, parts[rows, goes_on], wc_BW, runs_BWP,
            live.limits_B, live.number_B, live.done_B,
        )  # fmt: skip
        return grown, parents, ended

    def _end(
        self, live: _Live, ended: _Ended, score: Tensor, parts: Tensor, parents: Tensor, t: int
    ) -> _Ended:
        """Merge what ended now with what had ended before; the W best stay."""
        rows = torch.arange(len(score), device=score.device)[:, None]
        now = _Ended(
            score,
            parts,
            live.wc_BW[rows, parents],
            torch.full_like(parents, t),
            live.tokens_BWL[rows, parents],
            live.confidence_BWL[rows, parents],
        )
        both = {name: torch.cat((vars(ended)[name], new), 1) for name, new in vars(now).items()}
        order = both["score_BW"].topk(self.config.beam_size).indices
        return _Ended(**{name: value[rows, order] for name, value in both.items()})

    def _done(self, live: _Live, ended: _Ended) -> Tensor:
        """(B,): nothing live can join the n best that ended, or the pool of ended ones is full.

        log P only falls; √wc can grow to the utterance's limit.
        """
        most = self.word_count_V.max() * live.limits_B
        bound = self._joint(live.parts_BWC).amax(1) + self.config.gamma * most.sqrt()
        last = min(self.config.n_best, self.config.beam_size) - 1
        least = torch.maximum(ended.score_BW[:, last], ended.score_BW[:, 0] - _MARGIN * last)
        return (least >= bound) | (ended.score_BW[:, -1] > _NEVER / 2)

    def _collect(
        self, live: _Live, ended: _Ended, done_B: Tensor, models: Models,
        results: list[list[Hypothesis]],
    ) -> None:  # fmt: skip
        used = (bool(models.step), bool(models.ctc), bool(models.lm))
        done = _select(ended, done_B)
        length_score_BW = self.config.gamma * done.wc_BW.sqrt()
        columns = zip(
            live.number_B[done_B].tolist(), live.limits_B[done_B].tolist(),
            done.score_BW.tolist(), done.parts_BWC.tolist(), length_score_BW.tolist(),
            done.length_BW.tolist(), done.tokens_BWL.tolist(), done.confidence_BWL.exp().tolist(),
            strict=True,
        )  # fmt: skip
        for number, limit, *hypotheses in columns:
            for score, parts, length_score, n, tokens, confidences in zip(*hypotheses, strict=True):
                if score <= _NEVER / 2 or len(results[number]) == self.config.n_best:
                    break
                att, ctc, lm = (p if has else None for p, has in zip(parts, used, strict=True))
                ended_by: Literal["eos", "length"] = "length" if n == limit else "eos"
                results[number].append(
                    Hypothesis(
                        tuple(tokens[:n]),
                        score,
                        att,
                        ctc,
                        ended_by,
                        lm,
                        length_score,
                        tuple(confidences[:n]),
                    )
                )


def _select(group: _Rows, rows: Tensor) -> _Rows:
    """These utterances of a group of tensors."""
    return type(group)(**{name: value[rows] for name, value in vars(group).items()})
