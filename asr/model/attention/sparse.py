"""Sparse Transformer: near positions, and far ones of a fixed pattern (Child 2019).

Legend: B batch, H heads, T queries, S keys, K head dimension, L the stride; after blocking: N
blocks of L positions, X keys nearby, F keys far away.
"""

from typing import Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from asr.model.attention.blocks import earlier, from_blocks, to_blocks, valid_steps
from asr.model.attention.full import AttentionConfig, Cache, Kernel, Stepped, attend
from asr.model.dropout import dropout as drop
from asr.schema import Size


class SparseAttention(Kernel):
    """A head attends to both sets of a pattern, near and far, in one softmax.

    This is the paper's merged head (Child 2019, sec. 5.1). The paper's attention is causal; in an
    encoder both sets have later positions too. With a stride of √S, time and memory are O(S √S).
    """

    def __init__(self, stride: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.stride, self.causal, self.dropout = stride, causal, dropout

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        S, K = k_BHSK.shape[2:]
        L = min(self.stride, S)
        q, k, v = (to_blocks(x, L) for x in (q_BHTK * K**-0.5, k_BHSK, v_BHSK))
        valid_B1NL = valid_steps(mask_BS, L)
        near = q @ self._near(k).mT
        is_near = self._near(valid_B1NL)[..., None, :] & self._in_reach(L, q.device)
        near = near.masked_fill(~is_near, torch.finfo(near.dtype).min)
        far = self._far_scores(q, k)
        far = far.masked_fill(~self._is_far(valid_B1NL), torch.finfo(near.dtype).min)
        weights = torch.cat((near, far), -1).softmax(-1)
        if self.training:
            weights = drop(weights, self.dropout)
        of_near, of_far = weights.split((near.shape[-1], far.shape[-1]), -1)
        return from_blocks(of_near @ self._near(v) + self._far_sum(of_far, v), S)

    def step(self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache) -> Stepped:
        """Attend to this position and some of the cache, which has all keys and values so far."""
        if cache:
            k_BH1K = torch.cat((cache[0], k_BH1K), 2)
            v_BH1K = torch.cat((cache[1], v_BH1K), 2)
        index_S = torch.arange(k_BH1K.shape[2], device=q_BH1K.device)
        seen = self._seen_last(index_S, k_BH1K.shape[2] - 1).nonzero()[:, 0]
        return attend(q_BH1K, k_BH1K[:, :, seen], v_BH1K[:, :, seen]), (k_BH1K, v_BH1K)

    def _near(self, x: Tensor) -> Tensor:
        """Return what a block may attend to nearby, (B, H, N, L, …) to (B, H, N, X, …)."""
        raise NotImplementedError

    def _in_reach(self, L: int, device: torch.device) -> Tensor:
        """Return which of the X keys nearby each position of a block attends to, (L, X)."""
        raise NotImplementedError

    def _far_scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return q · k for the keys far away, (B, H, N, L, F)."""
        raise NotImplementedError

    def _far_sum(self, weights: Tensor, v: Tensor) -> Tensor:
        """Return the sum of the values far away, (B, H, N, L, K)."""
        raise NotImplementedError

    def _is_far(self, valid_B1NL: Tensor) -> Tensor:
        """Return which of the F keys far away count: valid, not nearby, earlier if causal."""
        raise NotImplementedError

    def _seen_last(self, index_S: Tensor, i: int) -> Tensor:
        """Return which of the positions up to the last one, i, that one attends to, (S,)."""
        raise NotImplementedError


class StridedAttention(SparseAttention):
    """The L positions before, and every L-th position (Child 2019, sec. 4.3, strided)."""

    def _near(self, x: Tensor) -> Tensor:
        around = (1, 0) if self.causal else (1, 0, -1)
        return torch.cat([earlier(x, by) for by in around], 3)

    def _in_reach(self, L: int, device: torch.device) -> Tensor:
        key_X = torch.arange((2 if self.causal else 3) * L, device=device) - L
        apart_LX = key_X - torch.arange(L, device=device)[:, None]
        return (apart_LX >= -L) & (apart_LX <= (0 if self.causal else L))

    def _far_scores(self, q: Tensor, k: Tensor) -> Tensor:
        # Position l of each block, to position l of all blocks: F = N.
        return (q.transpose(2, 3) @ k.transpose(2, 3).mT).transpose(2, 3)

    def _far_sum(self, weights: Tensor, v: Tensor) -> Tensor:
        return (weights.transpose(2, 3) @ v.transpose(2, 3)).transpose(2, 3)

    def _is_far(self, valid_B1NL: Tensor) -> Tensor:
        block_N = torch.arange(valid_B1NL.shape[2], device=valid_B1NL.device)
        before_NN = block_N[:, None] - block_N
        far_NN = before_NN > 1 if self.causal else before_NN.abs() > 1
        return valid_B1NL.transpose(2, 3)[:, :, None] & far_NN[:, None]

    def _seen_last(self, index_S: Tensor, i: int) -> Tensor:
        return (index_S >= i - self.stride) | ((i - index_S) % self.stride == 0)


class FixedAttention(SparseAttention):
    """The own block of L positions, and the last few of every block (Child 2019, sec. 4.3, fixed).

    These are `summary` positions, which can collect what their block holds.
    """

    def __init__(self, stride: int, summary: int, causal: bool, dropout: float) -> None:
        super().__init__(stride, causal, dropout)
        self.summary = summary

    def _near(self, x: Tensor) -> Tensor:
        return x

    def _in_reach(self, L: int, device: torch.device) -> Tensor:
        reach_LL = torch.ones(L, L, dtype=torch.bool, device=device)
        return reach_LL.tril() if self.causal else reach_LL

    def _last(self, x: Tensor) -> Tensor:
        """Return the last positions of all blocks, (B, H, 1, F, …)."""
        return x[:, :, :, -self.summary :].flatten(2, 3)[:, :, None]

    def _far_scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ self._last(k).mT

    def _far_sum(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ self._last(v)

    def _is_far(self, valid_B1NL: Tensor) -> Tensor:
        last_B11F = self._last(valid_B1NL)
        N = valid_B1NL.shape[2]
        block_N = torch.arange(N, device=valid_B1NL.device)
        of_F = block_N.repeat_interleave(last_B11F.shape[3] // N)
        far_NF = block_N[:, None] > of_F if self.causal else block_N[:, None] != of_F
        return last_B11F[..., None, :] & far_NF[:, None]

    def _seen_last(self, index_S: Tensor, i: int) -> Tensor:
        is_own = index_S >= i // self.stride * self.stride
        return is_own | (index_S % self.stride >= self.stride - self.summary)


class StridedConfig(AttentionConfig):
    """Attention to `stride` positions nearby and to those a multiple of `stride` away."""

    kind: Literal["sparse_strided"]
    stride: Size = 16

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return StridedAttention(self.stride, causal, dropout)


class FixedConfig(AttentionConfig):
    """Attention to the own block of `stride` positions and the last `summary` of each block."""

    kind: Literal["sparse_fixed"]
    stride: Size = 16
    summary: Size = 2

    @model_validator(mode="after")
    def _summary_fits(self) -> Self:
        if self.summary > self.stride:
            raise ValueError(
                f"summary {self.summary} is more than the stride {self.stride}: make it "
                f"{self.stride} at most"
            )
        return self

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return FixedAttention(self.stride, self.summary, causal, dropout)
