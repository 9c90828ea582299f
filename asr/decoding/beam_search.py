"""Search the best hypotheses of a batch of utterances; all hypotheses are computed at once.

Each hypothesis has a few candidates for its next token. Decoder, CTC head and hotwords preselect
them together, then these and the language model score them. Legend: B utterances, W hypotheses of
each (the beam), V vocabulary, K candidates (the last is EOS), C components of a score.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from asr.decoding.beam_state import Candidates, EndedHypotheses, LiveHypotheses, n_best, select
from asr.decoding.hypothesis import NO_SPEECH, Hypothesis
from asr.decoding.options import DecodingOptions
from asr.decoding.repetition import PERIODS
from asr.decoding.request import Request
from asr.decoding.scorers import JointScorer
from asr.decoding.topk import top_k
from asr.tokenizer import EOS, SOS, SPECIAL

# A search stops when a further n-th best would score (n - 1) · _MARGIN or more below the best.
_MARGIN = 1.5


@dataclass
class BeamSearch:
    """A beam search with its options; `num_words_V` is what each token adds to wc(Y)."""

    options: DecodingOptions
    num_words_V: Tensor

    @torch.inference_mode()
    def __call__(
        self,
        scorer: JointScorer,
        limits_B: Tensor,
        requests: Sequence[Request] | None = None,
        floor: float | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each utterance, best first, or `NO_SPEECH` alone.

        An utterance ends when no live hypothesis can join its n best, or after `limits_B` tokens.
        If its request is cancelled, it ends within a step, with the hypotheses that have ended by
        then.

        `floor` is a score, for a batch of one utterance. Hypotheses that cannot matter to any text
        of this score or more are dropped (see `_slack`). Where the n best all score `floor` or
        more, they are those of a search without a floor. With one, the scorer must allow the number
        of hypotheses to change.
        """
        weights_C = torch.tensor(scorer.weights(*self.options.weights), device=limits_B.device)
        W, least_limit = self.options.beam_size, int(limits_B.min())
        live = LiveHypotheses.start(limits_B, W, len(weights_C))
        ended, any_ended = EndedHypotheses.none_of(live), False
        if floor is not None:
            floor -= self._slack(int(limits_B))
            live.narrow(1)
        results: list[list[Hypothesis]] = [[] for _ in limits_B]
        for t in range(int(limits_B.max()) + 1):
            candidates = self._candidates(scorer, live, weights_C, t, t >= least_limit)
            extended_BX = candidates.score_BWK[..., :-1].flatten(1)
            extended_BW, flat_BW = extended_BX.topk(min(W, extended_BX.shape[1]))
            if (candidates.score_BWK[..., -1] > extended_BW[:, -1:]).any():
                ended, any_ended = ended.merged(live, candidates, extended_BW, t), True
            parents_BW = live.extend(candidates, flat_BW, self.num_words_V, t)
            if scorer.hotwords:
                scorer.hotwords.advance(parents_BW, live.tokens_BWL[:, : parents_BW.shape[1], t])
            n = W
            if floor is not None:
                n = _n_relevant(live, weights_C, floor)
                live.narrow(n)
                parents_BW = parents_BW[:, :n]
            if any_ended or requests or not n or t >= least_limit:
                done_B = self._done(live, ended, weights_C, scorer) | (live.limits_B <= t)
                if requests:
                    done_B |= _cancelled(live, requests)
                for row in (done_B & ~live.done_B).nonzero().squeeze(1).tolist():
                    nbest = n_best(live, ended, row, scorer.used, self.options)
                    results[live.utterance_B[row]] = nbest
                live.done_B = live.done_B | done_B
                # Utterances that are done are removed in groups, since a removal copies the rest.
                if live.done_B.sum() * 4 >= len(live.done_B):
                    rest = (~live.done_B).nonzero().squeeze(1)
                    if not len(rest):
                        break
                    live, ended = select(live, rest), select(ended, rest)
                    parents_BW = parents_BW[rest]
                    scorer.select(rest)
            scorer.advance(parents_BW, live.tokens_BWL[:, :n, t])
        return [nbest or [NO_SPEECH] for nbest in results]

    def _candidates(
        self, scorer: JointScorer, live: LiveHypotheses, weights_C: Tensor, t: int, is_limited: bool
    ) -> Candidates:
        """Score the preselected continuations of each hypothesis, and EOS."""
        B, W = live.num_words_BW.shape
        start_BW = torch.full((B, W), SOS, device=weights_C.device)
        last_BW = live.tokens_BWL[:, :W, t - 1] if t else start_BW
        logp_BWV = scorer.step(last_BW, scorer.state) if scorer.step else None
        scores_BWV = scorer.preselection_scores(logp_BWV, *self.options.weights[:2])
        # W allowed tokens are enough; the others may be special tokens, or repeat a phrase.
        n = min(scores_BWV.shape[2], 2 * self.options.beam_size + len(SPECIAL) + PERIODS)
        tokens_BWK = top_k(scores_BWV.flatten(0, 1), n).view(B, W, n)
        blocked_BWK = (tokens_BWK < len(SPECIAL)) | live.repetition.blocked(tokens_BWK)
        if is_limited:
            blocked_BWK |= (live.limits_B <= t)[:, None, None]
        tokens_BWK, blocked_BWK = pad(tokens_BWK, (0, 1), value=EOS), pad(blocked_BWK, (0, 1))
        components = scorer.score(logp_BWV, tokens_BWK, live.component_scores_BWC)
        components = components.masked_fill(blocked_BWK[..., None], -torch.inf)
        joint_BWK = components @ weights_C
        num_words_BWK = live.num_words_BW[..., None] + self.num_words_V.take(tokens_BWK)
        score_BWK = joint_BWK.add(num_words_BWK.sqrt_(), alpha=self.options.gamma)
        return Candidates(tokens_BWK, score_BWK, components, joint_BWK.log_softmax(2))

    def _done(
        self, live: LiveHypotheses, ended: EndedHypotheses, weights_C: Tensor, scorer: JointScorer
    ) -> Tensor:
        """Tell which utterances (B,) have no live hypothesis that can be among the n best.

        log P only falls; √wc can grow up to the utterance's limit. Hotwords that a text has begun
        can be completed. Further hotwords are assumed to be worth no more than the log P that they
        cost.
        """
        if not live.num_words_BW.shape[1]:
            return torch.ones_like(live.done_B)
        most_words_B = self.num_words_V.max() * live.limits_B
        joint_BW = live.component_scores_BWC @ weights_C
        if scorer.hotwords:
            joint_BW = joint_BW + scorer.hotwords.rest_BW
        bound_B = joint_BW.amax(1) + self.options.gamma * most_words_B.sqrt()
        last = min(self.options.n_best, self.options.beam_size) - 1
        least_B = torch.maximum(ended.score_BW[:, last], ended.score_BW[:, 0] - _MARGIN * last)
        return least_B >= bound_B

    def _slack(self, limit: int) -> float:
        """Return how far below a floor the log P of a hypothesis may be before it is dropped.

        A hypothesis further below cannot become a text above the floor, since log P only falls. Nor
        can it push out of the beam a hypothesis that becomes such a text, however unequal their
        lengths in words: that hypothesis scores more than any continuation of the dropped one.
        """
        words_V = self.num_words_V[len(SPECIAL) :]
        most, least = float(words_V.max()), float(words_V.min())
        return self.options.gamma * math.sqrt(limit) * (2 * math.sqrt(most) - math.sqrt(least))


def _n_relevant(live: LiveHypotheses, weights_C: Tensor, least: float) -> int:
    """Return how many hypotheses to keep: up to the last whose log P is `least` or more."""
    kept = (live.component_scores_BWC @ weights_C >= least)[0].nonzero()
    return int(kept[-1]) + 1 if len(kept) else 0


def _cancelled(live: LiveHypotheses, requests: Sequence[Request]) -> Tensor:
    """Tell which utterances (B,) are cancelled, and count a step of each request."""
    mine = [requests[i] for i in live.utterance_B.tolist()]
    for request in mine:
        request.n_steps += 1
    return torch.tensor([r.is_cancelled for r in mine], device=live.done_B.device)
