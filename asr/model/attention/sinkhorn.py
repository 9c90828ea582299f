"""Sparse Sinkhorn attention: blocks attend to themselves and to a learned other block (Tay 2020).

Legend: B batch, H heads, T queries, S keys, K head dimension, N blocks, C positions in a block.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from asr.model.attention.blocks import attend_in_blocks, from_blocks, to_blocks, valid_steps
from asr.model.attention.full import Kernel, LimitedConfig, check_length
from asr.schema import Size

_ITERATIONS = 8  # of normalizing rows and columns
_TEMPERATURE = 0.75
_NEVER = -1e9


class SinkhornAttention(Kernel):
    """Softmax over the own block and the block that a soft permutation R puts in its place.

    A small network scores, from the sum of a block's keys, the blocks that may take its place. The
    scores' rows and columns are normalized in turn, which gives R, doubly stochastic (Tay 2020,
    sec. 3). Training adds Gumbel noise to the scores. Padding is zero in sums and in sorted blocks.
    The paper's network reads the unit's input, this one its keys. The causal form is left out.
    """

    def __init__(self, config: "SinkhornConfig", n_heads: int, d_head: int, dropout: float) -> None:
        super().__init__()
        self.block, self.length, self.dropout = config.block, config.length, dropout
        places, scale = -(-config.length // config.block), d_head**-0.5
        self.inner_HKK = nn.Parameter(torch.randn(n_heads, d_head, d_head) * scale)
        self.bias_H1K = nn.Parameter(torch.zeros(n_heads, 1, d_head))
        self.outer_HKN = nn.Parameter(torch.randn(n_heads, d_head, places) * scale)

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        S, p = k_BHSK.shape[2], self.dropout if self.training else 0.0
        check_length(S, self.length)
        C = min(self.block, S)
        valid_B1NC = valid_steps(mask_BS, C)
        q, k, v = (to_blocks(x, C) for x in (q_BHTK, k_BHSK, v_BHSK))
        k, v = (x.masked_fill(~valid_B1NC[..., None], 0.0) for x in (k, v))
        R_BHNN = self._permutation(k.sum(3), valid_B1NC.any(3))
        k, v = (
            torch.cat((x, (R_BHNN @ x.flatten(3)).unflatten(3, x.shape[3:])), 3) for x in (k, v)
        )
        # In a sorted block, a position counts if any block has it, that is if the first block does.
        first_B1NC = valid_B1NC[:, :, :1].expand_as(valid_B1NC)
        seen = torch.cat((valid_B1NC, first_B1NC), 3)[..., None, :]
        return from_blocks(attend_in_blocks(q, k, v, seen, p), S)

    def _permutation(self, sums_BHNK: Tensor, valid_B1N: Tensor) -> Tensor:
        """Return R (B, H, N, N) among the blocks that have a valid step, zero elsewhere."""
        N = sums_BHNK.shape[2]
        inner_BHNK = (sums_BHNK @ self.inner_HKK + self.bias_H1K).relu()
        scores = inner_BHNK @ self.outer_HKN[..., :N]
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.training:
            scores = scores - torch.empty_like(scores).exponential_().log()
        both = valid_B1N[..., None] & valid_B1N[..., None, :]
        scores = (scores / _TEMPERATURE).masked_fill(~both, _NEVER)
        for _ in range(_ITERATIONS):
            for axis in (3, 2):
                scores = scores - scores.logsumexp(axis, keepdim=True)
                scores = scores.masked_fill(~both, _NEVER)
        return scores.exp().to(sums_BHNK.dtype)


class SinkhornConfig(LimitedConfig):
    """Blocks of `block` positions, sorted among the places of `length` steps."""

    kind: Literal["sinkhorn"]
    block: Size = 16

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return SinkhornAttention(self, n_heads, d_head, dropout)
