"""BigBird: blocks attend to their neighbors, to global and to random blocks (Zaheer 2020).

Legend: B batch, H heads, T queries, S keys, K head dimension, N blocks, C positions in a block, R
random blocks, J blocks of keys for a block of queries.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from asr.model.attention.blocks import attend_in_blocks, from_blocks, to_blocks, valid_steps
from asr.model.attention.full import AttentionConfig, Kernel, attend
from asr.schema import Size


class BigBirdAttention(Kernel):
    """Each block attends to itself, both neighbors, global blocks and R random ones.

    The first blocks are global: they attend to all, too (Zaheer 2020, sec. 2, ITC). Random blocks
    differ between heads and are the same in all layers. They are among the utterance's own blocks,
    so that padding changes none. A block that is chosen twice counts once.
    """

    def __init__(self, config: "BigBirdConfig", dropout: float) -> None:
        super().__init__()
        self.block, self.n_global, self.dropout = config.block, config.global_blocks, dropout
        self.n_random = config.random_blocks

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        S, p = k_BHSK.shape[2], self.dropout if self.training else 0.0
        C = min(self.block, S)
        q = to_blocks(q_BHTK, C)
        valid_B1NC = valid_steps(mask_BS, C)
        index_BHNJ, counts_BHNJ = self.chosen(valid_B1NC[:, 0].any(2).sum(1), *q.shape[1:3])

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

    def chosen(self, blocks_B: Tensor, H: int, N: int) -> tuple[Tensor, Tensor]:
        """Return the blocks of keys (B, H, N, J) of each block of queries, and which count.

        `blocks_B` is the number of blocks of each utterance that have a valid step.
        """
        device, blocks_B111 = blocks_B.device, blocks_B[:, None, None, None]
        own_N1 = torch.arange(N, device=device)[:, None]
        near_NJ = own_N1 + torch.arange(-1, 2, device=device)
        first_NJ = torch.arange(min(self.n_global, N), device=device).expand(N, -1)
        random_BHNR = (draws(H, N, self.n_random, device) * blocks_B111).long()
        fixed_NJ = torch.cat((near_NJ, first_NJ), 1)
        fixed = fixed_NJ.expand(*random_BHNR.shape[:2], -1, -1)
        index = torch.cat((fixed, random_BHNR), 3)
        is_again = (index[..., None] == index[..., None, :]).tril(-1).any(-1)
        counts = (index >= 0) & (index < blocks_B111) & ~is_again
        return index.clamp(0, N - 1), counts


def draws(H: int, N: int, R: int, device: torch.device) -> Tensor:
    """Return (H, N, R) numbers in [0, 1) that look random; each depends on its place alone."""
    h, n, r = (torch.arange(size, device=device) for size in (H, N, R))
    x = (h[:, None, None] * 1_000_003 + n[:, None]) * 1_000_033 + r + 1
    for _ in range(3):  # a multiplicative hash of 32 bits
        x = ((x ^ (x >> 15)) * 0x9E3779B1) & 0xFFFFFFFF
    return (x >> 8) / 2**24


class BigBirdConfig(AttentionConfig):
    """Blocks of `block` positions; the first `global_blocks` are global."""

    kind: Literal["bigbird"]
    block: Size = 8
    global_blocks: NonNegativeInt = 1
    random_blocks: Annotated[int, Field(ge=0, le=64)] = 2

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return BigBirdAttention(self, dropout)
