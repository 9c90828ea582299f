"""Choose the tokens of a frame that a search by the CTC head looks at.

Legend: S encoder steps, V vocabulary, R steps with many tokens.
"""

import math

import numpy as np
import torch
from torch import Tensor

from asr.decoding.ctc_prefix import BLANK
from asr.decoding.topk import top_k
from asr.tokenizer import SPECIAL

Frame = tuple[float, list[int], list[float]]  # log P of the blank; tokens and their P, falling

_MANY = 256  # a frame with more tokens is cut to the likeliest before they are sorted


def frames(logp_SV: Tensor, threshold: float, most: int) -> list[Frame]:
    """Return log P of each step's blank, and its likeliest tokens whose P reaches `threshold`.

    A step has `most` tokens at most. A threshold of 0 allows all. Special tokens are left out.
    """
    x_SV = logp_SV.detach().float().cpu().numpy()
    S, V = x_SV.shape
    is_token_SV = x_SV >= (math.log(threshold) if threshold else -math.inf)
    is_token_SV[:, : len(SPECIAL)] = False
    flat = np.flatnonzero(is_token_SV)
    counts_S = np.bincount(flat // V, minlength=S)
    many = np.flatnonzero(counts_S > max(_MANY, most))
    if len(many):
        x_RV = np.where(is_token_SV[many], x_SV[many], -np.inf)
        kth_R1 = top_k(torch.from_numpy(x_RV), most).numpy()[:, -1:]
        is_token_SV[many] &= x_RV >= np.take_along_axis(x_RV, kth_R1, 1)
        flat = np.flatnonzero(is_token_SV)
        counts_S = np.bincount(flat // V, minlength=S)
    steps, p = flat // V, np.exp(x_SV.reshape(-1)[flat].astype(np.float64))
    order = np.argsort(4 * steps - p, kind="stable")  # by step, then by falling P
    if (counts_S > most).any():
        before_S = counts_S.cumsum() - counts_S
        order = order[np.arange(len(flat)) - before_S[steps] < most]
        counts_S = np.minimum(counts_S, most)
    tokens, probs = (flat[order] % V).tolist(), p[order].tolist()
    found: list[Frame] = []
    end = 0
    for log_blank, count in zip(x_SV[:, BLANK].tolist(), counts_S.tolist(), strict=True):
        found.append((log_blank, tokens[end : end + count], probs[end : end + count]))
        end += count
    return found
