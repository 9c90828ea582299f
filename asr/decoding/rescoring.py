"""TODO: rescoring."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import DecodingOptions
from asr.tokenizer import EOS, PAD, SOS


def rescore(
    step: Callable[[Tensor, Any], Tensor], state: Any, found: list[list[Hypothesis]],
    config: DecodingOptions, device: torch.device,
) -> list[list[Hypothesis]]:  # fmt: skip
    """Judge the hypotheses of a first pass by the decoder too; the n best of each, best first.

    `state` is at its start. A token's confidence is the decoder's and the first pass's, mixed as
    their scores are.
    """
    logp_BWU = teacher_forced_log_probs(step, state, found, device)
    att, ctc, lm = config.weights
    results = []
    for nbest, rows in zip(found, logp_BWU.tolist(), strict=True):
        judged = []
        for h, row in zip(nbest, rows, strict=False):
            logp_U, log_prob = row[: len(h.tokens)], sum(row[: len(h.tokens) + 1])
            parts = att * log_prob + ctc * (h.ctc_log_prob or 0) + lm * (h.lm_log_prob or 0)
            mixed = torch.tensor(logp_U).exp() ** (1 - config.ctc_weight)
            mixed *= torch.tensor(h.confidences) ** config.ctc_weight
            score, confidences = parts + h.length_score, tuple(mixed.tolist())
            judged.append(replace(h, score=score, log_prob=log_prob, confidences=confidences))
        results.append(sorted(judged, key=lambda h: -h.score)[: config.n_best])
    return results


def teacher_forced_log_probs(
    step: Callable[[Tensor, Any], Tensor], state: Any, found: list[list[Hypothesis]],
    device: torch.device,
) -> Tensor:  # fmt: skip
    """(B, W, U): the log-probability of each token of each hypothesis and, after them, of EOS."""
    width = max(map(len, found))
    texts = [h.tokens for nbest in found for h in [*nbest, *[nbest[0]] * (width - len(nbest))]]
    tokens = [torch.tensor([SOS, *text, EOS], device=device) for text in texts]
    tokens_BWU = pad_sequence(tokens, batch_first=True, padding_value=PAD).unflatten(0, (-1, width))
    logp = [
        step(tokens_BWU[..., u], state).gather(2, tokens_BWU[..., u + 1, None]).squeeze(2)
        for u in range(tokens_BWU.shape[-1] - 1)
    ]
    return torch.stack(logp, -1)
