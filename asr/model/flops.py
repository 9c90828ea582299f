"""TODO: flops."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from asr.model.transformer import SpeechTransformer

# Frames and tokens of the utterances whose operations are counted.
_SHAPES = ((32, 4), (64, 4), (96, 4), (32, 8), (64, 8), (32, 12))


def operations_of_step(model: SpeechTransformer, n_freqs: int) -> Callable[[int, int, int], float]:
    """How many operations a training step does: a function of utterances, frames and tokens.

    Matrix products and convolutions, forward and backward, padding included; what stands between
    them (activations, normalisation, the losses) is not counted. PyTorch counts a copy of the
    network at a few small shapes; the number is a polynomial of frames and tokens, and what it
    says of other shapes is within 1 % of PyTorch's count there.
    """
    copied = deepcopy(model).cpu().train()
    with torch.random.fork_rng(devices=[]), sdpa_kernel(SDPBackend.MATH):
        counts = [_count(copied, n_freqs, *shape) for shape in _SHAPES]
    terms = torch.tensor([_terms(*shape) for shape in _SHAPES], dtype=torch.float64)
    count_1 = torch.tensor(counts, dtype=torch.float64)[:, None]
    # Relative errors are what is made small.
    weights = torch.linalg.lstsq(terms / count_1, torch.ones_like(count_1)).solution[:, 0].tolist()

    def operations(utterances: int, frames: int, tokens: int) -> float:
        return utterances * sum(w * t for w, t in zip(weights, _terms(frames, tokens), strict=True))

    return operations


def _terms(frames: int, tokens: int) -> tuple[float, ...]:
    """Convolutions and projections are linear in the lengths, attention is square."""
    return frames, frames**2, tokens, tokens**2, frames * tokens


def _count(model: SpeechTransformer, n_freqs: int, frames: int, tokens: int) -> int:
    feats_1TF, tokens_1U = torch.zeros(1, frames, n_freqs), torch.zeros(1, tokens).long()
    with FlopCounterMode(display=False) as counter:
        logits_1UV, ctc_1SV, _ = model(feats_1TF, torch.tensor([frames]), tokens_1U)
        (logits_1UV.sum() + (0 if ctc_1SV is None else ctc_1SV.sum())).backward()
    return counter.get_total_flops()
