"""Rescore the hypotheses of a CTC beam search by the attention decoder.

Legend: B utterances, W hypotheses of each, U tokens.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor

from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import DecodingOptions
from asr.tokenizer import EOS, PAD, SOS

# Maps texts (B, W, U) to the log-probability (B, W, U - 1) of each of their tokens but the first.
TextScorer = Callable[[Tensor], Tensor]


def rescore(
    log_probs: TextScorer,
    found: list[list[Hypothesis]],
    options: DecodingOptions,
    device: torch.device,
) -> list[list[Hypothesis]]:
    """Return the n best of each utterance by the joint score, best first.

    `log_probs` are the decoder's. A token's confidence is the weighted geometric mean of the
    decoder's and the first pass's, by `ctc_weight`.
    """
    logp_BWU = log_probs(with_limits(found, device))
    att, ctc, lm = options.weights
    results = []
    for nbest, rows in zip(found, logp_BWU.tolist(), strict=True):
        scored = []
        for h, row in zip(nbest, rows, strict=False):
            log_prob = sum(row[: len(h.tokens) + 1])
            joint = att * log_prob + ctc * (h.ctc_log_prob or 0) + lm * (h.lm_log_prob or 0)
            scored.append((joint + h.length_score + h.hotword_score, log_prob, row, h))
        scored.sort(key=itemgetter(0), reverse=True)
        results.append(
            [
                replace(
                    h, score=score, log_prob=log_prob,
                    confidences=_mixed(row, h.confidences, options.ctc_weight),
                )
                for score, log_prob, row, h in scored[: options.n_best]
            ]
        )  # fmt: skip
    return results


def _mixed(
    logp_U: list[float], confidences: tuple[float, ...], ctc_weight: float
) -> tuple[float, ...]:
    """Return the weighted geometric means of the decoder's probabilities and other ones."""
    pairs = zip(logp_U, confidences, strict=False)
    return tuple([math.exp(p) ** (1 - ctc_weight) * c**ctc_weight for p, c in pairs])


def with_limits(found: list[list[Hypothesis]], device: torch.device) -> Tensor:
    """Return the texts (B, W, U) between SOS and EOS, then PAD.

    Shorter lists of hypotheses are filled with their first one.
    """
    width = max(map(len, found))
    texts = [h.tokens for nbest in found for h in [*nbest, *[nbest[0]] * (width - len(nbest))]]
    length = max(map(len, texts))
    rows = [[SOS, *text, EOS, *[PAD] * (length - len(text))] for text in texts]
    return torch.tensor(rows, device=device).view(len(found), width, -1)
