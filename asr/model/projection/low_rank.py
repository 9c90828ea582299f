"""Low-rank maps: linear encoder-decoder units, LED (Winata 2020)."""

from typing import Literal

import torch
from torch import Tensor, nn

from asr.model.projection.dense import Projection
from asr.schema import Size


class LowRank(nn.Module):
    """Linear encoder-decoder unit, LED: y = (x E) D + b in place of y = x W + b.

    E is (d_in, rank), D is (rank, d_out): rank · (d_in + d_out) numbers in place of d_in · d_out
    (Winata 2020; Cahyawijaya 2021, sec. 3.1.1).
    """

    def __init__(self, d_in: int, d_out: int, rank: int, bias: bool = True) -> None:
        super().__init__()
        self.E = nn.Linear(d_in, rank, bias=False)
        self.D = nn.Linear(rank, d_out, bias)
        # The product starts with the variance of a Xavier-initialized W, whatever the rank.
        nn.init.normal_(self.E.weight, std=d_in**-0.5)
        nn.init.normal_(self.D.weight, std=(2 * d_in / (rank * (d_in + d_out))) ** 0.5)
        if bias:
            nn.init.zeros_(self.D.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d_in) to (..., d_out)."""
        y: Tensor = self.D(self.E(x))
        return y

    def product(self) -> Tensor:
        """Return the weight (d_out, d_in) of the equivalent dense map."""
        with torch.no_grad():
            return self.D.weight @ self.E.weight

    # As nn.Linear has them; torch's transformer layers read them in evaluation.
    weight = property(product)
    bias = property(lambda self: self.D.bias)


class LowRankConfig(Projection):
    """Low-rank maps W ≈ E·D of the given rank (LED)."""

    kind: Literal["low_rank"] = "low_rank"
    rank: Size

    def problem(self, largest_rank: int) -> str | None:
        """Return that the rank is too large, None if it is not."""
        if self.rank <= largest_rank:
            return None
        return (
            f"rank {self.rank} is above the smaller of d_model and d_inner: the "
            f"full rank is {largest_rank}"
        )

    def build(self, d_in: int, d_out: int) -> nn.Module:
        """Return a map from (..., d_in) to (..., d_out)."""
        return LowRank(d_in, d_out, self.rank)
