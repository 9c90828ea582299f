"""Decode by the CTC head alone: a prefix beam search of each utterance.

Legend: B utterances, S encoder steps, V vocabulary, N texts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import ctc_loss

from asr.decoding.ctc_prefix import BLANK
from asr.decoding.hypothesis import NO_SPEECH, Ended, Hypothesis
from asr.decoding.options import DecodingOptions
from asr.decoding.phrase_trie import PhraseTrie
from asr.decoding.prefix_beam import Found, PrefixBeam, TokenScorer
from asr.decoding.request import Request

_BLOCK = 64  # steps between two looks at whether a request is cancelled
# With hotwords the beam is wider by this share: prefixes whose match fails later take up places.
_WIDER = 0.5


def beam_texts(
    logp_BSV: Tensor,
    steps_B: Tensor,
    options: DecodingOptions,
    num_words_V: Tensor,
    lm: TokenScorer | None = None,
    requests: Sequence[Request] | None = None,
    hotwords: PhraseTrie | None = None,
) -> list[list[Hypothesis]]:
    """Return the n best texts of each utterance, best first; log P of each is over all its paths.

    An utterance whose request is cancelled ends within 64 steps and has `NO_SPEECH` alone.
    """
    words, results = num_words_V.tolist(), []
    beam_size = options.beam_size + (int(_WIDER * options.beam_size) if hotwords else 0)
    for b, n in enumerate(steps_B.tolist()):
        beam = PrefixBeam(
            beam_size, options.alpha, options.gamma, words, lm, options.lm_weight, hotwords,
            lm_bonus=options.lm_bonus,
        )  # fmt: skip
        request = requests[b] if requests else Request()
        logp_SV = logp_BSV[b, :n].cpu()
        for block_SV in logp_SV.split(_BLOCK):
            if request.is_cancelled:
                break
            beam.extend(block_SV)
            request.n_steps += 1
        found = [] if request.is_cancelled else beam.n_best()[: options.n_best]
        log_probs = _log_probs(logp_SV, [text.tokens for text in found]) if found else []
        nbest = [
            _hypothesis(text, log_prob, n, options, bool(lm), hotwords)
            for text, log_prob in zip(found, log_probs, strict=True)
        ]
        results.append(sorted(nbest, key=lambda h: -h.score) or [NO_SPEECH])
    return results


def _log_probs(logp_SV: Tensor, texts: Sequence[tuple[int, ...]]) -> list[float]:
    """Return log P of each text over all its paths, also over those that the beam dropped."""
    S, N = len(logp_SV), len(texts)
    used = sorted({token for text in texts for token in text})
    column = {token: i for i, token in enumerate(used, 1)}
    labels = torch.tensor([column[token] for text in texts for token in text], dtype=torch.long)
    lengths = torch.full((N,), S), torch.tensor([len(text) for text in texts])
    few_SNX = logp_SV[:, [BLANK, *used]].double()[:, None].expand(-1, N, -1)
    found: list[float] = (-ctc_loss(few_SNX, labels, *lengths, 0, "none")).tolist()
    return found


def _hypothesis(
    text: Found,
    log_prob: float,
    n_steps: int,
    options: DecodingOptions,
    has_lm: bool,
    hotwords: PhraseTrie | None,
) -> Hypothesis:
    """Return a text of the beam as a hypothesis, with `log_prob` in place of the beam's log P."""
    ended: Ended = "length" if len(text.tokens) == n_steps else "eos"
    return Hypothesis(
        text.tokens, text.score + options.alpha * (log_prob - text.log_prob), None, log_prob, ended,
        text.lm_log_prob if has_lm else None, text.length_score, text.confidences,
        hotword_score=hotwords.worth(text.tokens) if hotwords else 0.0,
    )  # fmt: skip
