"""More tokens for a trained network."""

import math

import torch
from torch import Tensor, nn

from asr.tokenizer import SPECIAL


@torch.no_grad()
def copy_with_more_tokens(old: nn.Module, new: nn.Module) -> None:
    """Copy weights into a network that has more tokens after those of the old one.

    The rows of the old tokens are equal. A new row is the mean of the old rows, without those of
    special tokens. A new bias is the mean of the old ones less log(number of new tokens). The
    exponential of a mean is at most the mean of the exponentials, so all new tokens together have
    at most the probability of an average old one, and the network writes what it wrote before.
    """
    found = old.state_dict()
    for name, tensor in new.state_dict().items():
        n_old = len(found[name]) if tensor.dim() else 0
        if tensor.shape == found[name].shape:
            tensor.copy_(found[name])
            continue
        tensor[:n_old] = found[name]
        tensor[n_old:] = _mean_row(found[name])
        if tensor.dim() == 1:  # a bias
            tensor[n_old:] -= math.log(len(tensor) - n_old)


def _mean_row(rows: Tensor) -> Tensor:
    return rows[len(SPECIAL) :].mean(0)
