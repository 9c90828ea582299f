"""Low-rank maps: linear encoder-decoder units, LED (Winata 2020)."""

import math
from typing import Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from asr.model.projection.dense import Projection
from asr.model.start import is_drawn
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
        self.decays_product, self.rate = False, 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d_in) to (..., d_out)."""
        y: Tensor = self.D(self.E(x))
        return y

    def product(self) -> Tensor:
        """Return the weight (d_out, d_in) of the equivalent dense map."""
        with torch.no_grad():
            return self.D.weight @ self.E.weight

    @torch.no_grad()
    def start_spectral(self) -> None:
        """Start as the best approximation of a Xavier-initialized W = U S Vᵀ (Khodak 2021).

        Both factors are scaled by the square roots of the singular values.
        """
        W = nn.init.xavier_uniform_(torch.empty_like(self.product()))
        U, S, V = torch.linalg.svd(W, full_matrices=False)
        rank, roots = self.E.out_features, S.sqrt()
        self.D.weight.copy_((U * roots)[:, :rank])
        self.E.weight.copy_((roots[:, None] * V)[:rank])

    # As nn.Linear has them; torch's transformer layers read them in evaluation.
    weight = property(product)
    bias = property(lambda self: self.D.bias)


def product_rate(d_in: int, d_out: int, rank: int) -> float:
    """Return the factor of Adam's learning rate η that lets E·D move at first as a dense W does.

    A first step changes each weight by η: W by η · √(d_in · d_out), E·D by about η · √(d_in ‖D‖² +
    d_out ‖E‖²). At the start ‖W‖² = ‖E·D‖² = ‖D‖² = 2 d_in d_out / (d_in + d_out), and ‖E‖² = rank.
    """
    square = 2 * d_in * d_out / (d_in + d_out)
    return math.sqrt(d_in * d_out / (d_in * square + d_out * rank))


class LowRankConfig(Projection):
    """Low-rank maps W ≈ E·D of the given rank (LED).

    `init: spectral` starts E and D as the best approximation of a dense map. `decay: product` lets
    `training.weight_decay` act on E·D in place of E and D (both Khodak 2021). `rate: product`
    scales the learning rate so that E·D moves at first as a dense map does; with a spectral start
    it nearly does so by itself.
    """

    kind: Literal["low_rank"] = "low_rank"
    rank: Size
    init: Literal["normal", "spectral"] = "normal"
    decay: Literal["factors", "product"] = "factors"
    rate: Literal["factors", "product"] = "factors"

    @model_validator(mode="after")
    def _rate_is_of_the_start(self) -> Self:
        if self.init == "spectral" and self.rate == "product":
            raise ValueError("rate: product is for init: normal; a spectral start does without it")
        return self

    def problem(self, largest_rank: int) -> str | None:
        """Return a message if the rank is too large, else None."""
        if self.rank <= largest_rank:
            return None
        return (
            f"rank {self.rank} is above the smaller of d_model and d_inner: the "
            f"full rank is {largest_rank}"
        )

    def build(self, d_in: int, d_out: int) -> nn.Module:
        """Return a map from (..., d_in) to (..., d_out)."""
        led = LowRank(d_in, d_out, self.rank)
        if self.init == "spectral" and is_drawn():
            led.start_spectral()
        led.decays_product = self.decay == "product"
        if self.rate == "product":
            led.rate = product_rate(d_in, d_out, self.rank)
        return led
