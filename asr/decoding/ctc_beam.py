"""Decode by the CTC head alone: a prefix beam search of each utterance.

Legend: B utterances, S encoder steps, V vocabulary.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from asr.decoding.hypothesis import NO_SPEECH, Ended, Hypothesis
from asr.decoding.options import DecodingOptions
from asr.decoding.prefix_beam import Found, PrefixBeam, TokenScorer
from asr.decoding.request import Request

_BLOCK = 64  # steps until it is looked up whether a request is cancelled


def beam_texts(
    logp_BSV: Tensor,
    steps_B: Tensor,
    options: DecodingOptions,
    num_words_V: Tensor,
    lm: TokenScorer | None = None,
    requests: Sequence[Request] | None = None,
) -> list[list[Hypothesis]]:
    """Return the n best texts of each utterance, best first.

    Their log-probabilities lack the paths that have left the beam, and so are never too high. An
    utterance whose request is cancelled ends within 64 steps and has `NO_SPEECH` alone.
    """
    words, results = num_words_V.tolist(), []
    for b, n in enumerate(steps_B.tolist()):
        beam = PrefixBeam(
            options.beam_size, options.alpha, options.gamma, words, lm, options.lm_weight
        )
        request = requests[b] if requests else Request()
        for block_SV in logp_BSV[b, :n].cpu().split(_BLOCK):
            if request.is_cancelled:
                break
            beam.extend(block_SV)
            request.n_steps += 1
        found = [] if request.is_cancelled else beam.n_best()[: options.n_best]
        results.append([_hypothesis(text, n, options, words, bool(lm)) for text in found])
    return [nbest or [NO_SPEECH] for nbest in results]


def _hypothesis(
    text: Found, n_steps: int, options: DecodingOptions, words: list[float], has_lm: bool
) -> Hypothesis:
    length_score = options.gamma * math.sqrt(sum(words[token] for token in text.tokens))
    ended: Ended = "length" if len(text.tokens) == n_steps else "eos"
    return Hypothesis(
        text.tokens, text.score, None, text.log_prob, ended,
        text.lm_log_prob if has_lm else None, length_score, text.confidences,
    )  # fmt: skip
