"""Attention through a few learned points: Set Transformer's ISAB (Lee 2019) and Luna (Ma 2021).

The points attend to the input, and the input attends to what they found, in time and memory linear
in the length. Legend: B batch, H heads, T queries, S keys, K head dimension, M points.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from asr.model.attention.full import AttentionConfig, Kernel, attend
from asr.schema import Size


class LunaAttention(Kernel):
    """Softmax(Q Pᵀ / √d_k) P with P = Softmax(P₀ Kᵀ / √d_k) V (Ma 2021, sec. 3.1).

    Three differences from Luna: each layer has its own learned P₀, while Luna's goes from layer to
    layer. Heads have their own P, while Luna's second attention projects all of them. P is both
    keys and values without projections: those of Q and of the output make them redundant in a head.
    """

    def __init__(self, points: int, n_heads: int, d_head: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.points_HMK = nn.Parameter(torch.randn(n_heads, points, d_head))

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        p = self.dropout if self.training else 0.0
        points_BHMK = self.points_HMK.to(k_BHSK.dtype).expand(k_BHSK.shape[0], -1, -1, -1)
        found_BHMK = self._pack(attend(points_BHMK, k_BHSK, v_BHSK, mask_BS[:, None, None], p))
        return attend(q_BHTK, found_BHMK, found_BHMK, p=p)

    def _pack(self, found_BHMK: Tensor) -> Tensor:
        return found_BHMK


class InducedAttention(LunaAttention):
    """MAB(X, MAB(I, X)) with inducing points I, a Set Transformer's ISAB.

    MAB(I, X) is H + relu(H W + b), normalized, and H is I + Attention(I, X, X), normalized (Lee
    2019, eq. 6, 7 and sec. 3.1); the residual connections and the feed-forward unit of the layer
    are those of MAB(X, ·). Points, W and both normalizations are within a head.
    """

    def __init__(self, points: int, n_heads: int, d_head: int, dropout: float) -> None:
        super().__init__(points, n_heads, d_head, dropout)
        self.first_norm, self.last_norm = nn.LayerNorm(d_head), nn.LayerNorm(d_head)
        self.feed_forward = nn.Linear(d_head, d_head)

    def _pack(self, found_BHMK: Tensor) -> Tensor:
        h_BHMK = self.first_norm(self.points_HMK + found_BHMK)
        packed_BHMK: Tensor = self.last_norm(h_BHMK + self.feed_forward(h_BHMK).relu())
        return packed_BHMK


class LunaConfig(AttentionConfig):
    """Attention through `points` learned queries."""

    exports = True
    kind: Literal["luna"]
    points: Size = 16

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return LunaAttention(self.points, n_heads, d_head, dropout)


class InducedConfig(AttentionConfig):
    """Attention through `points` inducing points."""

    exports = True
    kind: Literal["isab"]
    points: Size = 16

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return InducedAttention(self.points, n_heads, d_head, dropout)
