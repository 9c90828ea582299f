"""Rescore the hypotheses of a CTC beam search by the attention decoder.

Legend: B utterances, W hypotheses of each, U tokens.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import DecodingOptions
from asr.tokenizer import EOS, PAD, SOS

# Maps texts (B, W, U) of these utterances (B,) to the log-probability (B, W, U - 1) of each of
# their tokens but the first.
TextScorer = Callable[[Tensor, Tensor], Tensor]
Texts = dict[int, list[Hypothesis]]  # by utterance


class _Scored(NamedTuple):
    """A hypothesis of the first pass with its joint score, and the decoder's log P of its tokens.

    `log_prob` is their sum.
    """

    score: float
    log_prob: float
    logp_U: list[float]
    first: Hypothesis


def rescore(
    log_probs: TextScorer,
    found: list[list[Hypothesis]],
    options: DecodingOptions,
    device: torch.device,
) -> list[list[Hypothesis]]:
    """Return the n best of each utterance by the joint score, best first.

    `log_probs` are the decoder's. A token's confidence is the geometric mean of the decoder's and
    the first pass's confidence, weighted by `ctc_weight`.

    The decoder's log P is at most 0. So where only one text is wanted, the first pass's best text
    is scored first, and then only those others that can still score more.
    """
    n_first = 1 if options.n_best == 1 else None
    scored = _scored(log_probs, {b: n[:n_first] for b, n in enumerate(found)}, options, device)
    if n_first:
        rivals = {
            b: [h for h in nbest[1:] if _joint_score(h, 0.0, options) > scored[b][0].score]
            for b, nbest in enumerate(found)
        }
        rivals = {b: nbest for b, nbest in rivals.items() if nbest}
        for b, more in _scored(log_probs, rivals, options, device).items():
            scored[b] += more
    return [_n_best(each, options) for each in scored.values()]


def _scored(
    log_probs: TextScorer, texts: Texts, options: DecodingOptions, device: torch.device
) -> dict[int, list[_Scored]]:
    """Score texts in one pass of the decoder; return them by utterance."""
    if not texts:
        return {}
    utterances = torch.tensor(list(texts), device=device)
    logp_BWU = log_probs(with_limits(list(texts.values()), device), utterances)
    results: dict[int, list[_Scored]] = {}
    for (b, nbest), rows in zip(texts.items(), logp_BWU.tolist(), strict=True):
        results[b] = []
        for h, row in zip(nbest, rows, strict=False):
            log_prob = sum(row[: len(h.tokens) + 1])
            results[b].append(_Scored(_joint_score(h, log_prob, options), log_prob, row, h))
    return results


def _joint_score(h: Hypothesis, log_prob: float, options: DecodingOptions) -> float:
    """Return the score of a hypothesis whose log P by the decoder is `log_prob`."""
    att, ctc, lm = options.weights
    joint = att * log_prob + ctc * (h.ctc_log_prob or 0) + lm * (h.lm_log_prob or 0)
    return joint + h.length_score + h.hotword_score


def _n_best(scored: list[_Scored], options: DecodingOptions) -> list[Hypothesis]:
    """Return the n best with their confidences, best first."""
    share, best = options.ctc_weight, sorted(scored, key=lambda each: -each.score)
    results = []
    for score, log_prob, logp_U, h in best[: options.n_best]:
        pairs = zip(logp_U, h.confidences, strict=False)
        confidences = tuple([math.exp(p) ** (1 - share) * c**share for p, c in pairs])
        results.append(replace(h, score=score, log_prob=log_prob, confidences=confidences))
    return results


def with_limits(found: list[list[Hypothesis]], device: torch.device) -> Tensor:
    """Return the texts (B, W, U) between SOS and EOS, then PAD.

    Shorter lists of hypotheses are filled with their first one.
    """
    width = max(map(len, found))
    texts = [h.tokens for nbest in found for h in [*nbest, *[nbest[0]] * (width - len(nbest))]]
    length = max(map(len, texts))
    rows = [[SOS, *text, EOS, *[PAD] * (length - len(text))] for text in texts]
    return torch.tensor(rows, device=device).view(len(found), width, -1)
