"""Recurrence over segments: Transformer-XL (Dai 2019) and Compressive Transformer (Rae 2020).

Legend: B batch, H heads, T queries, S keys, K head dimension; after blocking: N segments, L
positions in a segment, X keys of a segment.
"""

from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from asr.model.attention.blocks import (
    attend_in_blocks,
    earlier,
    from_blocks,
    to_blocks,
    valid_steps,
)
from asr.model.attention.full import AttentionConfig, Cache, Kernel, Stepped, attend
from asr.schema import Size


class SegmentAttention(Kernel):
    """A segment attends to itself and to the `memory` segments before it (Dai 2019, sec. 3.2).

    It also attends to `compressed` still earlier segments. Each `rate` keys and values of these are
    replaced by their mean, one of the paper's compressions (Rae 2020, sec. 3). The memory comes
    from inputs without a gradient (`layers.SegmentRecurrence`). Positions are those of the whole
    utterance, so the papers' relative ones are not needed. Within a segment, attention has both
    sides unless it is causal.
    """

    def __init__(
        self, config: "SegmentsConfig", causal: bool, dropout: float, rate: int, compressed: int
    ) -> None:
        super().__init__()
        self.segment, self.memory = config.segment, config.memory
        self.rate, self.compressed = rate, compressed
        self.causal, self.dropout = causal, dropout

    def forward(
        self,
        q_BHTK: Tensor,
        k_BHSK: Tensor,
        v_BHSK: Tensor,
        mask_BS: Tensor | None = None,
        memory: Cache | None = None,
    ) -> Tensor:
        """Attend; later segments see the keys and values in `memory`, or k and v if it is None."""
        if mask_BS is None:
            mask_BS = k_BHSK.new_ones(len(k_BHSK), k_BHSK.shape[2], dtype=torch.bool)
        S, p = k_BHSK.shape[2], self.dropout if self.training else 0.0
        L = min(self.segment, S)
        q, k, v = (to_blocks(x, L) for x in (q_BHTK, k_BHSK, v_BHSK))
        k_past, v_past = (self._past(to_blocks(x, L)) for x in memory or (k_BHSK, v_BHSK))
        valid_B1NL = valid_steps(mask_BS, L)
        own = valid_B1NL[..., None, :].expand(-1, -1, -1, L, -1)
        past = self._past(valid_B1NL[..., None])[..., None, :, 0].expand(-1, -1, -1, L, -1)
        seen = torch.cat((past, own.tril() if self.causal else own), -1)
        k, v = torch.cat((k_past, k), 3), torch.cat((v_past, v), 3)
        return from_blocks(attend_in_blocks(q, k, v, seen, p), S)

    def _past(self, x: Tensor) -> Tensor:
        """Return what each segment has in memory: (B, H, N, L, K) to (B, H, N, X, K)."""
        last = x.shape[2] - 1  # no segment has more before it
        first = min(self.memory, last)
        parts = [x[:, :, :, :0], *(earlier(x, by) for by in range(first, 0, -1))]
        if last > self.memory and self.compressed:
            smaller, furthest = self._compress(x), min(self.memory + self.compressed, last)
            parts += [earlier(smaller, by) for by in range(furthest, self.memory, -1)]
        return torch.cat(parts, 3)

    def _compress(self, x: Tensor) -> Tensor:
        """Return the means of each `rate` positions, axis -2; a mask: whether all are True."""
        groups: Tensor = x.unflatten(-2, (-1, self.rate))
        return groups.all(-2) if x.dtype == torch.bool else groups.mean(-2)

    def step(self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache) -> Stepped:
        """Attend to the cache: keys and values of memory and segment, and the compressed ones.

        Before the first position of a segment the oldest segment in the memory leaves it.
        """
        empty = k_BH1K[:, :, :0]
        k, v, k_small, v_small = (*cache, empty, empty)[:4] if cache else (empty,) * 4
        if k.shape[2] == (self.memory + 1) * self.segment:
            if self.compressed:
                most = self.compressed * (self.segment // self.rate)
                k_small, v_small = (
                    torch.cat((small, self._compress(x[:, :, : self.segment])), 2)[:, :, -most:]
                    for small, x in ((k_small, k), (v_small, v))
                )
            k, v = k[:, :, self.segment :], v[:, :, self.segment :]
        k, v = torch.cat((k, k_BH1K), 2), torch.cat((v, v_BH1K), 2)
        found = attend(q_BH1K, torch.cat((k_small, k), 2), torch.cat((v_small, v), 2))
        return found, (k, v, k_small, v_small) if self.compressed else (k, v)


class SegmentsConfig(AttentionConfig):
    """Options of both kinds; `memory` counts segments."""

    segment: Size = 32
    memory: Annotated[int, Field(gt=0, le=64)] = 1


class TransformerXlConfig(SegmentsConfig):
    """Segments of `segment` positions, each attending to the `memory` segments before it too."""

    kind: Literal["transformer_xl"]

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return SegmentAttention(self, causal, dropout, rate=1, compressed=0)


class CompressiveConfig(SegmentsConfig):
    """Like transformer_xl, with `compressed` earlier segments of one key for `rate` positions."""

    kind: Literal["compressive"]
    rate: Size = 4
    compressed: Annotated[int, Field(gt=0, le=64)] = 4

    @model_validator(mode="after")
    def _rate_divides(self) -> Self:
        if self.segment % self.rate:
            raise ValueError(
                f"rate {self.rate} does not divide the segment {self.segment}: make the segment a "
                "multiple of it"
            )
        return self

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return SegmentAttention(self, causal, dropout, self.rate, self.compressed)
