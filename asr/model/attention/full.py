"""What every kernel is, and the first of them: softmax attention over all keys."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from asr.model.dropout import dropout
from asr.schema import FrozenModel

# What a kernel remembers of the past while decoding; every tensor has the rows first.
Cache = tuple[Tensor, ...]


class Kernel(nn.Module):
    """How queries meet keys: sees no projections, so that each works with all of them."""

    def forward(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor | None = None
    ) -> Tensor:
        """Attend; keys where `mask_BS` is False are not seen. Returns (B, H, T, K)."""
        raise NotImplementedError

    def step(
        self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """One position after those in `cache` (empty at the start); of causal kinds only."""
        raise NotImplementedError


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, p: float = 0.0,
    causal: bool = False,
) -> Tensor:  # fmt: skip
    """Softmax(Q Kᵀ / √d_k) V, each weight dropped with probability p; where `mask`, it is seen."""
    if not p or not q.is_cpu:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, is_causal=causal)
    # Step by step: torch has no kernel for it on a CPU, and a slow dropout.
    if causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return dropout(scores.softmax(-1), p) @ v


class FullAttention(Kernel):
    """Softmax(Q Kᵀ / √d_k) V over all keys (thesis eq. 3.1), or over past ones if causal."""

    def __init__(self, causal: bool, dropout: float) -> None:
        super().__init__()
        self.causal = causal
        self.dropout = dropout

    def forward(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor | None = None
    ) -> Tensor:
        """(B, H, T, K); a matrix of T × S is formed only where a CPU drops weights."""
        mask = None if mask_BS is None else mask_BS[:, None, None, :]
        p = self.dropout if self.training else 0.0
        return attend(q_BHTK, k_BHSK, v_BHSK, mask, p, self.causal)

    def step(
        self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """The cache is all keys and all values."""
        if cache:
            k_BH1K = torch.cat((cache[0], k_BH1K), dim=2)
            v_BH1K = torch.cat((cache[1], v_BH1K), dim=2)
        return scaled_dot_product_attention(q_BH1K, k_BH1K, v_BH1K), (k_BH1K, v_BH1K)


class FullAttentionConfig(FrozenModel):
    """Every query sees every key."""

    kind: Literal["full"] = "full"

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        """A kernel for `n_heads` heads of `d_head` numbers."""
        return FullAttention(causal, dropout)
