"""Rescore the hypotheses of a CTC beam search by the attention decoder.

Legend: B utterances, W hypotheses of each, U tokens.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

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
        rescored = []
        for h, row in zip(nbest, rows, strict=False):
            logp_U, log_prob = row[: len(h.tokens)], sum(row[: len(h.tokens) + 1])
            joint = att * log_prob + ctc * (h.ctc_log_prob or 0) + lm * (h.lm_log_prob or 0)
            mixed = torch.tensor(logp_U).exp() ** (1 - options.ctc_weight)
            mixed *= torch.tensor(h.confidences) ** options.ctc_weight
            score, confidences = joint + h.length_score + h.hotword_score, tuple(mixed.tolist())
            rescored.append(replace(h, score=score, log_prob=log_prob, confidences=confidences))
        results.append(sorted(rescored, key=lambda h: -h.score)[: options.n_best])
    return results


def with_limits(found: list[list[Hypothesis]], device: torch.device) -> Tensor:
    """Return the texts (B, W, U) between SOS and EOS, then PAD.

    Shorter lists of hypotheses are filled with their first one.
    """
    width = max(map(len, found))
    texts = [h.tokens for nbest in found for h in [*nbest, *[nbest[0]] * (width - len(nbest))]]
    tokens = [torch.tensor([SOS, *text, EOS], device=device) for text in texts]
    padded = pad_sequence(tokens, batch_first=True, padding_value=PAD)
    return padded.view(len(found), width, -1)
