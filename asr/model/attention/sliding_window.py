"""Attention to neighbours and to a few global positions (slides; thesis 2.2.2, Longformer).

Legend: B batch, H heads, T queries, S keys, K head dimension; after blocking: D phases of the
dilation, N blocks of a phase, W places of a block, X keys that a block can see, G global ones.
"""

from typing import Literal

import torch
from pydantic import NonNegativeInt
from torch import Tensor
from torch.nn.functional import pad

from asr.model.attention.full import Cache, Kernel, attend
from asr.schema import FrozenModel, Size


class SlidingWindowAttention(Kernel):
    """A query sees `window` keys on each side, `dilation` steps apart, itself and the globals.

    The first `global_tokens` positions are seen by all and see all; if causal, none sees what
    comes after it. Blocks of `window` queries meet their own and the neighbouring blocks' keys, so
    that memory is linear in the length.
    """

    def __init__(self, config: "SlidingWindowConfig", causal: bool, dropout: float) -> None:
        super().__init__()
        self.window, self.dilation = config.window, config.dilation
        self.n_global, self.causal, self.dropout = config.global_tokens, causal, dropout

    def forward(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor | None = None
    ) -> Tensor:
        """(B, H, T, K)."""
        B, _, S, _ = k_BHSK.shape
        if mask_BS is None:
            mask_BS = k_BHSK.new_ones(B, S, dtype=torch.bool)
        p, G = self.dropout if self.training else 0.0, min(self.n_global, S)
        W = min(self.window, -(-S // self.dilation))  # a wider one sees all, and pays for nothing
        q = self._blocks(q_BHTK, W)
        D, N = q.shape[2:4]
        k, v = (
            torch.cat(
                (self._windows(x, W), x[:, :, None, None, :G].expand(-1, -1, D, N, -1, -1)), 4
            )
            for x in (k_BHSK, v_BHSK)
        )
        mask = self._mask(mask_BS, W, D, N, G)
        # To the product a block of a phase is a row of the batch.
        q, k, v = (x.permute(0, 2, 3, 1, 4, 5).flatten(0, 2) for x in (q, k, v))
        found = attend(q, k, v, mask.flatten(0, 2)[:, None], p)
        found = found.unflatten(0, (B, D, N)).permute(0, 3, 2, 4, 1, 5).flatten(2, 4)[:, :, :S]
        if G and not self.causal:
            first = attend(q_BHTK[:, :, :G], k_BHSK, v_BHSK, mask_BS[:, None, None], p)
            found = torch.cat((first, found[:, :, G:]), 2)
        return found

    def _blocks(self, x: Tensor, W: int) -> Tensor:
        """(B, H, S, …) to (B, H, D, N, W, …), zeros behind; step ((n W) + w) D + d stands there."""
        rest = -x.shape[2] % (W * self.dilation)
        x = pad(x, (*(0, 0) * (x.ndim - 3), 0, rest))
        return x.unflatten(2, (-1, W, self.dilation)).movedim(4, 2)

    def _windows(self, x: Tensor, W: int) -> Tensor:
        """(B, H, S, …) to (B, H, D, N, X, …): a block behind the one before it, and the next."""
        x = self._blocks(x, W)
        N, after = x.shape[3], 0 if self.causal else 1
        around = pad(x, (*(0, 0) * (x.ndim - 4), 1, after))
        return torch.cat([around[:, :, :, i : i + N] for i in range(2 + after)], 4)

    def _mask(self, mask_BS: Tensor, W: int, D: int, N: int, G: int) -> Tensor:
        """(B, D, N, W, X + G): what each query sees."""
        device = mask_BS.device
        place_S = torch.arange(mask_BS.shape[1], device=device)
        local_BS = mask_BS & (place_S >= G)
        seen = self._windows(local_BS[:, None, :, None], W)[:, 0, ..., 0]
        apart_WX = torch.arange(seen.shape[3], device=device) - W
        apart_WX = apart_WX - torch.arange(W, device=device)[:, None]
        near_WX = (apart_WX >= -W) & (apart_WX <= (0 if self.causal else W))
        # A query that sees nothing else sees itself, and nobody sees it.
        seen = (seen[..., None, :] & near_WX) | (apart_WX == 0)
        place = self._blocks(place_S[None, None, :, None], W)[:, 0, ..., 0, None]
        is_global = (apart_WX == 0) & (place < G)
        first = mask_BS[:, None, None, None, :G].expand(-1, D, N, W, -1)
        if self.causal:
            first = first & (place >= place_S[:G])
        return torch.cat((seen & ~is_global, first), 4)

    def step(
        self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """The cache is the global and the latest keys and values, as far as a window reaches."""
        if cache:
            k_BH1K = torch.cat((cache[0], k_BH1K), 2)
            v_BH1K = torch.cat((cache[1], v_BH1K), 2)
        G, reach = self.n_global, self.window * self.dilation
        if k_BH1K.shape[2] > G + reach + 1:
            k_BH1K, v_BH1K = (
                torch.cat((x[:, :, :G], x[:, :, G + 1 :]), 2) for x in (k_BH1K, v_BH1K)
            )
        place_S = torch.arange(k_BH1K.shape[2], device=q_BH1K.device)
        before_S = place_S.flip(0)
        seen_S = (place_S < G) | ((before_S <= reach) & (before_S % self.dilation == 0))
        return attend(q_BH1K, k_BH1K, v_BH1K, seen_S[None]), (k_BH1K, v_BH1K)


class SlidingWindowConfig(FrozenModel):
    """`window` keys on each side, every `dilation`-th step; the first `global_tokens` see all."""

    kind: Literal["sliding_window"]
    window: Size = 16
    dilation: Size = 1
    global_tokens: NonNegativeInt = 0

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        """A kernel for any heads."""
        return SlidingWindowAttention(self, causal, dropout)
