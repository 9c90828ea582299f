"""Sliding-window, dilated and global attention (Beltagy 2020, sec. 3.1).

Legend: B batch, H heads, T queries, S keys, K head dimension; after blocking: D phases of the
dilation, N blocks of a phase, W positions in a block, X keys that a block can attend to, G global
positions.
"""

from typing import Literal

import torch
from pydantic import NonNegativeInt
from torch import Tensor
from torch.nn.functional import pad

from asr.model.attention.full import AttentionConfig, Cache, Kernel, Stepped, attend
from asr.schema import Size


class SlidingWindowAttention(Kernel):
    """Queries attend to `window` keys on each side, `dilation` steps apart, and to global ones.

    The first `global_tokens` positions attend to all, and all attend to them. If causal, no
    position attends to later ones. Blocks of `window` queries attend to their own and the
    neighboring blocks, so that memory is linear in the length.
    """

    def __init__(self, config: "SlidingWindowConfig", causal: bool, dropout: float) -> None:
        super().__init__()
        self.window, self.dilation = config.window, config.dilation
        self.n_global, self.causal, self.dropout = config.global_tokens, causal, dropout

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        B, _, S, _ = k_BHSK.shape
        if torch.compiler.is_exporting():  # of an encoder
            return attend(q_BHTK, k_BHSK, v_BHSK, self._all_pairs(mask_BS)[:, None])
        p, G = self.dropout if self.training else 0.0, min(self.n_global, S)
        W = min(self.window, -(-S // self.dilation))  # a wider one would only add padding
        q = self._blocks(q_BHTK, W)
        D, N = q.shape[2:4]
        k, v = (
            torch.cat(
                (self._windows(x, W), x[:, :, None, None, :G].expand(-1, -1, D, N, -1, -1)), 4
            )
            for x in (k_BHSK, v_BHSK)
        )
        mask = self._mask(mask_BS, W, D, N, G)
        # Each block of each phase is a row of the batch.
        q, k, v = (x.permute(0, 2, 3, 1, 4, 5).flatten(0, 2) for x in (q, k, v))
        found = attend(q, k, v, mask.flatten(0, 2)[:, None], p)
        found = found.unflatten(0, (B, D, N)).permute(0, 3, 2, 4, 1, 5).flatten(2, 4)[:, :, :S]
        if G and not self.causal:
            first = attend(q_BHTK[:, :, :G], k_BHSK, v_BHSK, mask_BS[:, None, None], p)
            found = torch.cat((first, found[:, :, G:]), 2)
        return found

    def _blocks(self, x: Tensor, W: int) -> Tensor:
        """Move step ((n W) + w) D + d of (B, H, S, …) to (B, H, D, N, W, …), with zero padding."""
        rest = -x.shape[2] % (W * self.dilation)
        padded: Tensor = pad(x, (*(0, 0) * (x.ndim - 3), 0, rest))
        blocks: Tensor = padded.unflatten(2, (-1, W, self.dilation))
        return blocks.movedim(4, 2)

    def _windows(self, x: Tensor, W: int) -> Tensor:
        """Return (B, H, D, N, X, …): each block, the one before and, unless causal, the next."""
        x = self._blocks(x, W)
        N, after = x.shape[3], 0 if self.causal else 1
        around = pad(x, (*(0, 0) * (x.ndim - 4), 1, after))
        return torch.cat([around[:, :, :, i : i + N] for i in range(2 + after)], 4)

    def _mask(self, mask_BS: Tensor, W: int, D: int, N: int, G: int) -> Tensor:
        """Return (B, D, N, W, X + G): the keys that each query attends to."""
        device = mask_BS.device
        index_S = torch.arange(mask_BS.shape[1], device=device)
        local_BS = mask_BS & (index_S >= G)
        seen = self._windows(local_BS[:, None, :, None], W)[:, 0, ..., 0]
        apart_WX = torch.arange(seen.shape[3], device=device) - W
        apart_WX = apart_WX - torch.arange(W, device=device)[:, None]
        near_WX = (apart_WX >= -W) & (apart_WX <= (0 if self.causal else W))
        # A query at padding attends to itself, so that its softmax is defined.
        seen = (seen[..., None, :] & near_WX) | (apart_WX == 0)
        index = self._blocks(index_S[None, None, :, None], W)[:, 0, ..., 0, None]
        is_global = (apart_WX == 0) & (index < G)
        first = mask_BS[:, None, None, None, :G].expand(-1, D, N, W, -1)
        if self.causal:
            first = first & (index >= index_S[:G])
        return torch.cat((seen & ~is_global, first), 4)

    def _all_pairs(self, mask_BS: Tensor) -> Tensor:
        """Return the keys (B, S, S) that each query attends to, for graphs of any length.

        The number of blocks cannot vary in a graph, so the graph has all pairs of steps.
        """
        index_S = torch.arange(mask_BS.shape[1], device=mask_BS.device)
        apart_SS = index_S - index_S[:, None]
        is_near = (apart_SS.abs() <= self.window * self.dilation) & (apart_SS % self.dilation == 0)
        is_global_S = index_S < self.n_global
        seen_SS = is_near | is_global_S | is_global_S[:, None]
        # As above, a query at padding attends to itself.
        return (mask_BS[:, None] & seen_SS) | ((apart_SS == 0) & ~is_global_S)

    def attend_seen(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, seen_BTS: Tensor
    ) -> Tensor:
        """Attend from the last T of S positions to those in the window where `seen_BTS` is True."""
        T, S = seen_BTS.shape[1:]
        index_S = torch.arange(S, device=seen_BTS.device)
        apart_TS = index_S - index_S[S - T :, None]
        near_TS = apart_TS.abs() <= self.window * self.dilation
        near_TS &= apart_TS % self.dilation == 0
        p = self.dropout if self.training else 0.0
        return attend(q_BHTK, k_BHSK, v_BHSK, (seen_BTS & near_TS)[:, None], p)

    def step(self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache) -> Stepped:
        """Attend to the cache: the global keys and values, and the latest within the window."""
        if cache:
            k_BH1K = torch.cat((cache[0], k_BH1K), 2)
            v_BH1K = torch.cat((cache[1], v_BH1K), 2)
        G, reach = self.n_global, self.window * self.dilation
        if k_BH1K.shape[2] > G + reach + 1:
            k_BH1K, v_BH1K = (
                torch.cat((x[:, :, :G], x[:, :, G + 1 :]), 2) for x in (k_BH1K, v_BH1K)
            )
        index_S = torch.arange(k_BH1K.shape[2], device=q_BH1K.device)
        before_S = index_S.flip(0)
        seen_S = (index_S < G) | ((before_S <= reach) & (before_S % self.dilation == 0))
        return attend(q_BH1K, k_BH1K, v_BH1K, seen_S[None]), (k_BH1K, v_BH1K)


class SlidingWindowConfig(AttentionConfig):
    """Attention to `window` keys on each side, `dilation` apart, and `global_tokens` first ones."""

    exports = True
    kind: Literal["sliding_window"]
    window: Size = 16
    dilation: Size = 1
    global_tokens: NonNegativeInt = 0

    @property
    def streams(self) -> bool:
        return self.global_tokens == 0  # a stream does not keep its first positions

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return SlidingWindowAttention(self, causal, dropout)
