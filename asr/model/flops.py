"""The floating-point operations of training, by PyTorch's counter."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from asr.model.transformer import SpeechTransformer


def operations_of_step(model: SpeechTransformer, n_freqs: int) -> Callable[[int, int, int], float]:
    """Return a function of a batch's utterances, frames and tokens: the operations of its step.

    Matrix products and convolutions are counted, forward and backward, padding included; the
    operations between them (activations, normalization, losses) are not. PyTorch counts a copy of
    the network on the first batch of each octave of lengths (64 to 127 frames, 128 to 255, …);
    the other batches of the octave are assumed to cost the same per padded frame. Such a batch's
    number is within 15 % of PyTorch's count for it, and a run's total within 5 %.
    """
    per_frame: dict[int, float] = {}

    def operations(utterances: int, frames: int, tokens: int) -> float:
        octave = frames.bit_length()
        if octave not in per_frame:
            per_frame[octave] = _count(model, n_freqs, frames, tokens) / frames
        return utterances * frames * per_frame[octave]

    return operations


def _count(model: SpeechTransformer, n_freqs: int, frames: int, tokens: int) -> int:
    """Return the operations of one utterance; neither the model nor random states change."""
    copied = deepcopy(model).cpu().train()
    feats_1TF, tokens_1U = torch.zeros(1, frames, n_freqs), torch.zeros(1, tokens).long()
    # The counter knows the products of attention only where they are done one by one.
    with (
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        logits_1UV, ctc_1SV, _ = copied(feats_1TF, torch.tensor([frames]), tokens_1U)
        torch.autograd.backward(logits_1UV.sum() + (0 if ctc_1SV is None else ctc_1SV.sum()))
    return int(counter.get_total_flops())
