"""Fast dropout on a CPU: torch draws a float for every number, this draws 16 bits."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as torch_dropout

# Levels of a 16-bit random number; each draw of the generator gives four of them.
_LEVELS = 2**16


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each number of x with probability p (within 2^-17), and scale the rest to keep the mean.

    It uses torch's default generator; on a GPU it is torch's own dropout.
    """
    if not p or not x.is_cpu:
        return torch_dropout(x, p)
    kept = max(1, round((1 - p) * _LEVELS))
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    is_kept = draws.view(torch.int16)[: x.numel()].view(x.shape) <= kept - 1 - _LEVELS // 2
    return x * is_kept.to(x.dtype).mul_(_LEVELS / kept)


class Dropout(nn.Module):
    """`dropout` in training, the identity otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout while training."""
        return dropout(x, self.p) if self.training else x
