"""BigBird: blocks attend to their neighbors, to global and to random blocks (Zaheer 2020).

Legend: B batch, H heads, T queries, S keys, K head dimension, N blocks, C positions in a block, R
random blocks, J blocks of keys for a block of queries.
"""

from typing import Literal

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from asr.model.attention.blocks import attend_in_blocks, from_blocks, to_blocks, valid_steps
from asr.model.attention.full import AttentionConfig, Kernel, attend
from asr.schema import Size

_ROWS = 1024  # blocks with draws of their own; later blocks repeat them


class BigBirdAttention(Kernel):
    """Each block attends to itself, both neighbors, global blocks and R random ones.

    The first blocks are global: they attend to all, too (Zaheer 2020, sec. 2 and appendix D, ITC).
    Random blocks are the same in all layers and other ones for each head; they are among the
    utterance's own blocks, so that padding changes none. A block that is chosen twice counts once.
    """

    draws_HNR: Tensor

    def __init__(self, config: "BigBirdConfig", n_heads: int, dropout: float) -> None:
        super().__init__()
        self.block, self.n_global, self.dropout = config.block, config.global_blocks, dropout
        rng, shape = torch.Generator("cpu").manual_seed(0), (n_heads, _ROWS, config.random_blocks)
        draws_HNR = torch.rand(*shape, generator=rng, device="cpu")
        self.register_buffer("draws_HNR", draws_HNR, persistent=False)

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        S, p = k_BHSK.shape[2], self.dropout if self.training else 0.0
        C = min(self.block, S)
        q = to_blocks(q_BHTK, C)
        valid_B1NC = valid_steps(mask_BS, C)
        index_BHNJ, counts_BHNJ = self.chosen(valid_B1NC[:, 0].any(2).sum(1), q.shape[2])

        def gather(x_BHNX: Tensor) -> Tensor:  # to (B, H, N, J, X)
            H, N = q.shape[1:3]
            flat = index_BHNJ.flatten(2)[..., None]
            rows = x_BHNX.expand(-1, H, -1, -1).take_along_dim(flat, 2)
            found: Tensor = rows.unflatten(2, (N, -1))
            return found

        k, v = (
            gather(to_blocks(x, C).flatten(3)).unflatten(4, (C, -1)).flatten(3, 4)
            for x in (k_BHSK, v_BHSK)
        )
        seen = (gather(valid_B1NC) & counts_BHNJ[..., None]).flatten(3)[..., None, :]
        found = from_blocks(attend_in_blocks(q, k, v, seen, p), S)
        if not self.n_global:
            return found
        G = min(self.n_global * C, S)
        first = attend(q_BHTK[:, :, :G], k_BHSK, v_BHSK, mask_BS[:, None, None], p)
        return torch.cat((first, found[:, :, G:]), 2)

    def chosen(self, blocks_B: Tensor, N: int) -> tuple[Tensor, Tensor]:
        """Return the blocks of keys (B, H, N, J) of each block of queries, and which count.

        `blocks_B` are the blocks of each utterance that have a valid step.
        """
        device, blocks_B111 = blocks_B.device, blocks_B[:, None, None, None]
        own_N1 = torch.arange(N, device=device)[:, None]
        near_NJ = own_N1 + torch.arange(-1, 2, device=device)
        first_NJ = torch.arange(min(self.n_global, N), device=device).expand(N, -1)
        random_BHNR = (self.draws_HNR[:, own_N1[:, 0] % _ROWS] * blocks_B111).long()
        fixed_NJ = torch.cat((near_NJ, first_NJ), 1)
        fixed = fixed_NJ.expand(*random_BHNR.shape[:2], -1, -1)
        index = torch.cat((fixed, random_BHNR), 3)
        is_again = (index[..., None] == index[..., None, :]).tril(-1).any(-1)
        counts = (index >= 0) & (index < blocks_B111) & ~is_again
        return index.clamp(0, N - 1), counts


class BigBirdConfig(AttentionConfig):
    """Blocks of `block` positions; the first `global_blocks` are global."""

    kind: Literal["bigbird"]
    block: Size = 8
    global_blocks: NonNegativeInt = 1
    random_blocks: NonNegativeInt = 2

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return BigBirdAttention(self, n_heads, dropout)
