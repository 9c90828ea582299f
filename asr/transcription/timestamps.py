"""When each token was said: CTC alignments as seconds.

Legend: B utterances, S encoder steps, U tokens.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from statistics import median

import torch
from torch.nn.utils.rnn import pad_sequence

from asr.decoding.ctc_alignment import align
from asr.decoding.ctc_prefix import steps_needed
from asr.decoding.decode import Encoded
from asr.decoding.hypothesis import Hypothesis
from asr.transcription.transcript import Token

# The encoder steps at which a token starts and ends.
Span = list[int]


def align_tokens(encoded: Encoded, best: Sequence[Hypothesis]) -> list[list[Span] | None]:
    """Return the spans of each utterance's tokens in encoder steps.

    An utterance has None where the model has no CTC head, or too few steps for the text.
    """
    if encoded.logp_BSV is None:
        return [None for _ in best]
    device, steps_B = encoded.logp_BSV.device, encoded.mask_BS.sum(1)
    tokens = [torch.tensor(h.tokens, dtype=torch.long) for h in best]
    labels_BU = pad_sequence(tokens, batch_first=True).to(device)
    lengths_B = torch.tensor([len(t) for t in tokens]).to(device)
    spans_BU2 = align(encoded.logp_BSV, steps_B, labels_BU, lengths_B).tolist()
    fits_B = (steps_needed(labels_BU, lengths_B) <= steps_B).tolist()
    return [
        spans[: len(t)] if fits else None
        for t, spans, fits in zip(tokens, spans_BU2, fits_B, strict=True)
    ]


def timed_tokens(
    texts: Sequence[str], spans: list[Span], step_seconds: float, start: float, end: float
) -> tuple[Token, ...]:
    """Return the tokens of a chunk from `start` to `end`, with times in seconds.

    CTC emits a token where it begins and blanks for the rest of it, so a token lasts until the
    next begins, but no longer than the chunk's median token: what follows then is a pause.
    """
    if not spans:
        return ()
    firsts = [first for first, _ in spans]
    usual = median(b - a for a, b in pairwise(firsts)) if len(firsts) > 1 else 0
    lasts = [
        min(max(last, first + usual), following)
        for (first, last), following in zip(spans, [*firsts[1:], inf], strict=True)
    ]
    return tuple(
        Token(text, min(start + first * step_seconds, end), min(start + last * step_seconds, end))
        for text, first, last in zip(texts, firsts, lasts, strict=True)
    )
