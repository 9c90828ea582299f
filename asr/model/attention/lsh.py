"""Reformer's attention: each position sees those that a hash puts near it (thesis 2.2.2).

Legend: B batch, H heads, S positions, K head dimension, R rounds of hashing, N chunks, C places of
a chunk, X keys that a chunk can see.
"""

from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn.functional import normalize, pad

from asr.model.attention.full import Kernel
from asr.node import Node

# Reformer's own: a position sees itself only where there is nothing else.
_ITSELF, _NEVER = -1e5, -1e9


class LshAttention(Kernel):
    """Positions sorted by hash and cut into chunks; a chunk sees itself and the one before it.

    Queries and keys are the same, the mean of what the projections give, keys of length 1. The
    hash is the nearest of ± random directions; rounds are joined by what each summed up.
    """

    directions: Tensor

    def __init__(self, config: "LshConfig", d_head: int) -> None:
        super().__init__()
        self.chunk = config.chunk
        rng = torch.Generator("cpu").manual_seed(0)
        shape = (config.rounds, 1, d_head, config.buckets)
        directions = torch.randn(shape, generator=rng, device="cpu")
        self.register_buffer("directions", directions)

    def forward(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, keep_BS: Tensor | None = None
    ) -> Tensor:
        """(B, H, S, K)."""
        B, H, S, K = v_BHSK.shape
        x_BHSK = (q_BHTK + k_BHSK) / 2
        if keep_BS is None:
            keep_BS = x_BHSK.new_ones(B, S, dtype=torch.bool)
        order = self._order(x_BHSK.detach(), keep_BS)
        place_B11S1 = torch.arange(S, device=order.device).expand(B, 1, 1, S)[..., None]
        q, v, real, place = (
            self._chunks(x.expand(-1, order.shape[1], H, -1, -1).take_along_dim(order, 3))
            for x in (
                x_BHSK[:, None], v_BHSK[:, None], keep_BS[:, None, None, :, None],
                place_B11S1,
            )
        )  # fmt: skip
        # What fills the last chunk is padding too: `_chunks` writes zeros.
        k, v, seen, key_place = (_and_before(x) for x in (normalize(q, dim=-1), v, real, place))
        scores = q @ k.transpose(-1, -2) * K**-0.5
        scores = scores.masked_fill(place == key_place.transpose(-1, -2), _ITSELF)
        scores = scores.masked_fill(~seen.transpose(-1, -2), _NEVER)
        sums = scores.logsumexp(-1, keepdim=True)
        found = (scores - sums).exp() @ v
        back = order.argsort(3)
        found, sums = (x.flatten(3, 4)[:, :, :, :S].take_along_dim(back, 3) for x in (found, sums))
        return (found * sums.softmax(1)).sum(1)

    def _order(self, x_BHSK: Tensor, keep_BS: Tensor) -> Tensor:
        """(B, R, H, S, 1): positions by their hash, then in time; padding behind all."""
        along = x_BHSK[:, None] @ self.directions.to(x_BHSK.dtype)
        bucket_BRHS = torch.cat((along, -along), -1).argmax(-1)
        last = 2 * along.shape[-1]
        bucket_BRHS = bucket_BRHS.masked_fill(~keep_BS[:, None, None], last)
        return bucket_BRHS.argsort(dim=-1, stable=True)[..., None]

    def _chunks(self, x: Tensor) -> Tensor:
        """(B, R, H, S, …) to (B, R, H, N, C, …)."""
        return pad(x, (0, 0, 0, -x.shape[3] % self.chunk)).unflatten(3, (-1, self.chunk))


def _and_before(x: Tensor) -> Tensor:
    """(B, R, H, N, C, …) to (B, R, H, N, X, …): each chunk behind the one before it."""
    before = pad(x[:, :, :, :-1], (0, 0, 0, 0, 1, 0))
    return torch.cat((before, x), 4)


class LshConfig(Node):
    """Chunks of `chunk` positions, hashed `rounds` times to the nearest of 2 · `buckets`."""

    kind: Literal["lsh"]
    chunk: PositiveInt = 16
    buckets: PositiveInt = 8
    rounds: PositiveInt = 2

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        """A kernel for heads of `d_head` numbers."""
        return LshAttention(self, d_head)
