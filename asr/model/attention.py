"""Plug point 2: how queries meet keys.

A kernel sees queries, keys, values and a mask, never projections, so that any attention works
with any projection. Legend: B batch, H heads, T queries, S keys, K head dimension.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from asr.model.dropout import dropout
from asr.node import Node

# What a kernel remembers of the past while decoding; every tensor has the rows first.
Cache = tuple[Tensor, ...]


class FullAttention(nn.Module):
    """Softmax(Q Kᵀ / √d_k) V over all keys (thesis eq. 3.1), or over past ones if causal."""

    def __init__(self, causal: bool, dropout: float) -> None:
        super().__init__()
        self.causal = causal
        self.dropout = dropout

    def forward(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, keep_BS: Tensor | None = None
    ) -> Tensor:
        """Attend; keys where `keep_BS` is False are not seen. Returns (B, H, T, K)."""
        mask = None if keep_BS is None else keep_BS[:, None, None, :]
        p = self.dropout if self.training else 0.0
        if p and q_BHTK.is_cpu:
            return self._with_dropout(q_BHTK, k_BHSK, v_BHSK, mask)
        return scaled_dot_product_attention(
            q_BHTK, k_BHSK, v_BHSK, attn_mask=mask, dropout_p=p, is_causal=self.causal
        )

    def _with_dropout(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The same step by step: torch has no kernel for it on a CPU, and a slow dropout."""
        if self.causal:
            mask = torch.ones(q_BHTK.shape[2], k_BHSK.shape[2], dtype=torch.bool).tril()
        scores_BHTS = (q_BHTK * q_BHTK.shape[-1] ** -0.5) @ k_BHSK.transpose(-2, -1)
        if mask is not None:
            scores_BHTS = scores_BHTS.masked_fill(~mask, torch.finfo(scores_BHTS.dtype).min)
        return dropout(scores_BHTS.softmax(-1), self.dropout) @ v_BHSK

    def step(
        self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """One position of causal attention after those in `cache` (empty at the start)."""
        if cache:
            k_BH1K = torch.cat((cache[0], k_BH1K), dim=2)
            v_BH1K = torch.cat((cache[1], v_BH1K), dim=2)
        return scaled_dot_product_attention(q_BH1K, k_BH1K, v_BH1K), (k_BH1K, v_BH1K)


class FullAttentionConfig(Node):
    """Every query sees every key."""

    kind: Literal["full"] = "full"

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> FullAttention:  # noqa: ARG002
        """A kernel for `n_heads` heads of `d_head` numbers."""
        return FullAttention(causal, dropout)


# Kinds that cannot be causal join only the encoder's union: an illegal model cannot be written.
EncoderAttentionConfig = FullAttentionConfig
DecoderAttentionConfig = FullAttentionConfig
