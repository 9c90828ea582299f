"""Reformer's attention by locality-sensitive hashing (Kitaev 2020; Cahyawijaya 2021, sec. 2.2.2).

Legend: B batch, R rounds of hashing, H heads, S positions, K head dimension, N chunks, C positions
in a chunk.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from asr.model.attention.full import AttentionConfig, Kernel
from asr.model.start import is_drawn
from asr.schema import Size

# A position attends to itself only if there is no other key (Kitaev 2020, sec. 2).
_ITSELF, _NEVER = -1e5, -1e9


class LshAttention(Kernel):
    """Positions sorted by hash, in chunks that attend to themselves and the chunk before them.

    Queries and keys are the same, the mean of both projections; keys are scaled to length 1. The
    hash is the nearest of ± random directions, which are the same in all heads and layers. Each
    round has directions of its own, and its result is weighted by its sum of exp(score).

    Padding is masked, and so is a position's own key if it sees another key. Unlike in the paper
    (sec. 2 and appendix A), a position sees all keys of both chunks, whatever their hash, and a key
    that it sees in several rounds counts in each. The paper's causal form is left out.
    """

    directions: Tensor

    def __init__(self, config: "LshConfig", d_head: int) -> None:
        super().__init__()
        self.chunk = config.chunk
        directions = torch.empty(config.rounds, 1, d_head, config.buckets)
        if is_drawn():
            rng = torch.Generator("cpu").manual_seed(0)
            directions = torch.randn(directions.shape, generator=rng, device="cpu")
        self.register_buffer("directions", directions)

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        H, S, K = v_BHSK.shape[1:]
        x_BHSK = (q_BHTK + k_BHSK) / 2
        mask_B1S1 = mask_BS[:, None, :, None]
        along = x_BHSK.detach()[:, None] @ self.directions.to(x_BHSK.dtype)
        bucket = torch.cat((along, -along), -1).argmax(-1, keepdim=True)
        bucket = bucket.masked_fill(~mask_B1S1[:, None], 2 * along.shape[-1])  # sorted behind all
        order = bucket.argsort(dim=3, stable=True)

        C = min(self.chunk, S)

        def chunks(x_BRHSX: Tensor) -> Tensor:  # to (B, R, H, N, C, X)
            blocks: Tensor = pad(x_BRHSX, (0, 0, 0, -S % C)).unflatten(3, (-1, C))
            return blocks

        R = len(self.directions)
        rows = [x[:, None].expand(-1, R, H, -1, -1) for x in (x_BHSK, v_BHSK, mask_B1S1)]
        q, v, valid, index = *(chunks(x.take_along_dim(order, 3)) for x in rows), chunks(order)
        k, v, valid, key_index = (
            torch.cat((pad(x[:, :, :, :-1], (0, 0, 0, 0, 1, 0)), x), 4)
            for x in (normalize(q, dim=-1), v, valid, index)
        )
        scores = q @ k.mT * K**-0.5
        scores = scores.masked_fill(index == key_index.mT, _ITSELF).masked_fill(~valid.mT, _NEVER)
        sums = scores.logsumexp(-1, keepdim=True)
        outs, back = ((scores - sums).exp() @ v, sums), order.argsort(3)
        found, sums = (x.flatten(3, 4)[:, :, :, :S].take_along_dim(back, 3) for x in outs)
        mixed_BHSK: Tensor = (found * sums.softmax(1)).sum(1)
        return mixed_BHSK


class LshConfig(AttentionConfig):
    """Chunks of `chunk` positions, hashed `rounds` times, each time to one of 2 · `buckets`."""

    kind: Literal["lsh"]
    chunk: Size = 16
    buckets: Size = 8
    rounds: Size = 2

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return LshAttention(self, d_head)
