"""Plug point 1: what a linear map of the network is made of.

Every map of the front end's projection, the attention and the feed-forward is built by one of
these nodes; the embedding and the output projection are not (thesis 4.1).
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn.functional import linear

from asr.schema import FrozenModel, Size


class DenseConfig(FrozenModel):
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

    def __init__(self, d_in: int, d_out: int, rank: int, bias: bool = True) -> None:
        super().__init__()
        self.E = nn.Linear(d_in, rank, bias=False)
        self.D = nn.Linear(rank, d_out, bias)
        # The product starts with the variance of a Xavier-initialised W, whatever the rank.
        nn.init.normal_(self.E.weight, std=d_in**-0.5)
        nn.init.normal_(self.D.weight, std=(2 * d_in / (rank * (d_in + d_out))) ** 0.5)
        if bias:
            nn.init.zeros_(self.D.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) to (..., d_out), by two thin products."""
        return self.D(self.E(x))

    def product(self) -> Tensor:
        """The (d_out, d_in) weight of the dense map that this unit equals."""
        with torch.no_grad():
            return self.D.weight @ self.E.weight

    # Torch's own transformer layers read these of their maps in evaluation.
    weight = property(product)
    bias = property(lambda self: self.D.bias)


class LowRankConfig(FrozenModel):
    """W ≈ E·D of the given rank."""

    kind: Literal["low_rank"] = "low_rank"
    rank: Size

    def build(self, d_in: int, d_out: int) -> nn.Module:
        """A map from (..., d_in) to (..., d_out)."""
        return LowRank(d_in, d_out, self.rank)


class SetSparse(nn.Module):
    """Sparse evolutionary training, SET: y = x W + b, W an Erdős–Rényi graph (report 2.2, 3.1).

    Of the d_in · d_out places ε (d_in + d_out) hold a weight, the expected number of the report's
    p(W_ij) = ε (d_in + d_out) / (d_in · d_out); the number never changes. `places` (n,) are where
    in W (d_out, d_in), row by row, `values` (n,) stand: what is stored is what there is.
    """

    places: Tensor

    def __init__(self, d_in: int, d_out: int, epsilon: float, zeta: float) -> None:
        super().__init__()
        self.d_in, self.d_out, self.zeta = d_in, d_out, zeta
        n = max(1, min(round(epsilon * (d_in + d_out)), d_in * d_out))
        places = torch.randperm(d_in * d_out)[:n].sort().values
        self.register_buffer("places", places.int())
        # An output's sum starts with the variance that a dense Xavier-initialised W gives it.
        std = (2 / (d_in + d_out) / (n / (d_in * d_out))) ** 0.5
        self.values = nn.Parameter(torch.randn(n) * std)
        self.bias = nn.Parameter(torch.zeros(d_out))

    @property
    def density(self) -> float:
        """The share of the places that hold a weight."""
        return len(self.values) / (self.d_in * self.d_out)

    def is_sound(self) -> bool:
        """Whether each weight has a place of its own in W."""
        order = self.places.long().sort().values
        inside = bool(order[0] >= 0 and order[-1] < self.d_in * self.d_out)
        return inside and bool((order.diff() > 0).all())

    def product(self) -> Tensor:
        """W (d_out, d_in), zero where there is no weight."""
        empty = self.values.new_zeros(self.d_out * self.d_in)
        return empty.scatter(0, self.places.long(), self.values).view(self.d_out, self.d_in)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) to (..., d_out)."""
        return linear(x, self.product(), self.bias)

    @torch.no_grad()
    def rewire(self, generator: torch.Generator) -> Tensor:
        """Move the share ζ of the weights that are closest to zero to random free places, as 0.

        Returns which of `values` were moved: what an optimiser knows of these is void. A place
        that becomes free may be drawn again. `generator` is of the CPU.
        """
        n_moved = round(self.zeta * len(self.values))
        moved = self.values.abs().sort(stable=True).indices[:n_moved]
        is_free = torch.ones(self.d_in * self.d_out, dtype=torch.bool)
        is_free[self.places.long().cpu()] = False
        is_free[self.places[moved].long().cpu()] = True
        free = is_free.nonzero().flatten()
        drawn = free[torch.randperm(len(free), generator=generator)[:n_moved]]
        self.places[moved] = drawn.to(self.places)
        self.values[moved] = 0
        return moved


class SetSparseConfig(FrozenModel):
    """An Erdős–Rényi graph that evolves.

    `epsilon` sets its size; `zeta` is the share of the weights that is rewired after every epoch
    but the last (report, chapter 4: 20 and 0.3).
    """

    kind: Literal["set_sparse"] = "set_sparse"
    epsilon: PositiveFloat = 20.0
    zeta: Annotated[float, Field(ge=0, le=1)] = 0.3

    def build(self, d_in: int, d_out: int) -> nn.Module:
        """A map from (..., d_in) to (..., d_out)."""
        return SetSparse(d_in, d_out, self.epsilon, self.zeta)


ProjectionConfig = Annotated[
    DenseConfig | LowRankConfig | SetSparseConfig, Field(discriminator="kind")
]
