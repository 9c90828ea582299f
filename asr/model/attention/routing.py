"""Routing Transformer: attention within clusters of queries and keys (Roy 2021).

Legend: B batch, H heads, T queries, S keys, K head dimension, M clusters, W positions in a cluster.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, one_hot

from asr.model.attention.blocks import attend_in_blocks
from asr.model.attention.full import AttentionConfig, Kernel
from asr.schema import Size

_DECAY = 0.999  # of the centroids' moving average, as in the paper


class RoutingAttention(Kernel):
    """The queries and keys nearest to each of M centroids attend to each other (Roy 2021, alg. 1).

    Queries and keys have layer normalization without weights. A cluster has the ⌈n / M⌉ nearest of
    an utterance's n queries, and of its n keys. A query in several clusters gets the mean of their
    results, a query in none gets zero. After each step of training the centroids move towards the
    means of the queries and keys nearest to them, without a gradient. All heads route; in the paper
    half of them are local.
    """

    centroids_HMK: Tensor

    def __init__(self, clusters: int, n_heads: int, d_head: int, dropout: float) -> None:
        super().__init__()
        self.clusters, self.dropout = clusters, dropout
        centroids_HMK = layer_norm(torch.randn(n_heads, clusters, d_head), (d_head,))
        self.register_buffer("centroids_HMK", centroids_HMK)
        self._sums: tuple[Tensor, Tensor] | None = None

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        S, K = k_BHSK.shape[2:]
        q, k = (layer_norm(x, (K,)) for x in (q_BHTK, k_BHSK))
        near_q, near_k = (self._nearness(x, mask_BS) for x in (q, k))
        W = -(-S // self.clusters)
        own_B = -(-mask_BS.sum(1) // self.clusters)
        is_in_B11W = (torch.arange(W, device=q.device) < own_B[:, None])[:, None, None]
        of_q, of_k = (near.topk(W, 3).indices for near in (near_q, near_k))
        if self.training and torch.is_grad_enabled():
            self._add(((q, near_q), (k, near_k)), mask_BS)
        p = self.dropout if self.training else 0.0
        k, v = _gather(k, of_k), _gather(v_BHSK, of_k)
        seen = is_in_B11W[..., None, :].expand(-1, -1, self.clusters, -1, -1)
        found = attend_in_blocks(_gather(q, of_q), k, v, seen, p)
        return _mean_by_position(found, of_q, is_in_B11W, S)

    def _nearness(self, x_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        """Return the products with the centroids (B, H, M, S), the least number at padding."""
        near_BHMS = self.centroids_HMK.to(x_BHSK.dtype) @ x_BHSK.detach().mT
        return near_BHMS.masked_fill(~mask_BS[:, None, None], torch.finfo(near_BHMS.dtype).min)

    def start_step(self) -> None:
        """Forget the queries and keys of the step before."""
        zero_HMK = torch.zeros_like(self.centroids_HMK)
        self._sums = zero_HMK, zero_HMK[..., :1].clone()

    @torch.no_grad()
    def _add(self, groups: tuple[tuple[Tensor, Tensor], ...], mask_BS: Tensor) -> None:
        """Add valid queries and keys to the sums of the centroids nearest to them."""
        if self._sums is None:
            self.start_step()
        assert self._sums is not None
        sums_HMK, count_HM1 = self._sums
        for x_BHSK, near_BHMS in groups:
            nearest_BHS = near_BHMS.argmax(2)
            is_of_BHSM = one_hot(nearest_BHS, self.clusters) * mask_BS[:, None, :, None]
            is_of_BHMS = is_of_BHSM.to(sums_HMK.dtype).mT
            sums_HMK += (is_of_BHMS @ x_BHSK.to(sums_HMK.dtype)).sum(0)
            count_HM1 += is_of_BHMS.sum((0, 3))[..., None]

    @torch.no_grad()
    def end_step(self, sum_up: Callable[[Tensor], Tensor]) -> None:
        """Move each centroid towards the mean of the step's queries and keys nearest to it.

        `sum_up` adds those of all processes.
        """
        assert self._sums is not None, "the step has not started"
        sums_HMK, count_HM1 = map(sum_up, self._sums)
        old_HMK = self.centroids_HMK
        moved_HMK = _DECAY * old_HMK + (1 - _DECAY) * sums_HMK / count_HM1.clamp(min=1)
        old_HMK.copy_(torch.where(count_HM1 > 0, moved_HMK, old_HMK))


def _gather(x_BHSK: Tensor, index_BHMW: Tensor) -> Tensor:
    """Return the steps of each cluster, (B, H, M, W, K)."""
    rows = x_BHSK.take_along_dim(index_BHMW.flatten(2)[..., None], 2)
    found: Tensor = rows.unflatten(2, index_BHMW.shape[2:])
    return found


def _mean_by_position(
    found_BHMWK: Tensor, index_BHMW: Tensor, is_in_B11W: Tensor, S: int
) -> Tensor:
    """Return the mean (B, H, S, K) of what each position has in its clusters, zero without any."""
    B, H, _, _, K = found_BHMWK.shape
    is_in = is_in_B11W.expand_as(index_BHMW)[..., None].to(found_BHMWK.dtype)
    index = index_BHMW.flatten(2)[..., None]
    sums = found_BHMWK.new_zeros(B, H, S, K)
    sums = sums.scatter_add(2, index.expand(-1, -1, -1, K), (found_BHMWK * is_in).flatten(2, 3))
    counts = found_BHMWK.new_zeros(B, H, S, 1).scatter_add(2, index, is_in.flatten(2, 3))
    return sums / counts.clamp(min=1)


class RoutingConfig(AttentionConfig):
    """Attention within `clusters` clusters."""

    kind: Literal["routing"]
    clusters: Size = 8

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return RoutingAttention(self.clusters, n_heads, d_head, dropout)
