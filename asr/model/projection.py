"""Plug point 1: what a linear map of the network is made of.

Every map of the front end's projection, the attention and the feed-forward is built by one of
these nodes; the embedding and the output projection are not (thesis 4.1).
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from asr.node import Node


class DenseConfig(Node):
    """The Transformer's own y = xW + b."""

    kind: Literal["dense"] = "dense"

    def build(self, d_in: int, d_out: int) -> nn.Module:
        """A map from (..., d_in) to (..., d_out)."""
        dense = nn.Linear(d_in, d_out)
        nn.init.xavier_uniform_(dense.weight)
        nn.init.zeros_(dense.bias)
        return dense


class LowRank(nn.Module):
    """Linear encoder-decoder unit, LED: y = (x E) D + b in place of y = x W + b (thesis 3.1.1).

    E is (d_in, rank), D is (rank, d_out): rank · (d_in + d_out) numbers in place of d_in · d_out.
    """

    def __init__(self, d_in: int, d_out: int, rank: int) -> None:
        super().__init__()
        self.E = nn.Linear(d_in, rank, bias=False)
        self.D = nn.Linear(rank, d_out)
        # The product starts with the variance of a Xavier-initialised W, whatever the rank.
        nn.init.normal_(self.E.weight, std=d_in**-0.5)
        nn.init.normal_(self.D.weight, std=(2 * d_in / (rank * (d_in + d_out))) ** 0.5)
        nn.init.zeros_(self.D.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) to (..., d_out), by two thin products."""
        return self.D(self.E(x))

    def product(self) -> Tensor:
        """The (d_out, d_in) weight of the dense map that this unit equals."""
        with torch.no_grad():
            return self.D.weight @ self.E.weight


class LowRankConfig(Node):
    """W ≈ E·D of the given rank."""

    kind: Literal["low_rank"] = "low_rank"
    rank: PositiveInt

    def build(self, d_in: int, d_out: int) -> nn.Module:
        """A map from (..., d_in) to (..., d_out)."""
        return LowRank(d_in, d_out, self.rank)


ProjectionConfig = Annotated[DenseConfig | LowRankConfig, Field(discriminator="kind")]
