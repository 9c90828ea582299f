"""Dropout that costs a CPU little: torch's own draws a float for every number."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as torch_dropout

# A 16-bit draw a number, four from each draw of the generator.
_LEVELS = 2**16


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each number of x with probability p (to 2^-17) and scale the rest, mean kept exactly.

    Chance comes from torch's default generator, as everywhere; on a GPU torch's own dropout does.
    """
    if not p or not x.is_cpu:
        return torch_dropout(x, p)
    kept = max(1, round((1 - p) * _LEVELS))
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = draws.view(torch.int16)[: x.numel()].view(x.shape) <= kept - 1 - _LEVELS // 2
    return x * keep.to(x.dtype).mul_(_LEVELS / kept)


class Dropout(nn.Module):
    """`dropout` in training, nothing otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x, with a share p of its numbers at zero while training."""
        return dropout(x, self.p) if self.training else x
