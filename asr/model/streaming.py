"""Options and state of an encoder that takes a stream chunk by chunk.

Legend: B sessions or utterances, S encoder steps, C steps of a chunk, L steps before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import model_validator
from torch import Tensor

from asr.model.attention import Cache
from asr.schema import FrozenModel, Size

# Dynamic chunk training (Zhang et al. 2020, U2, sec. 3.2): half of the batches have whole
# utterances. If streams have chunks of 16 steps, the other batches have chunks of 4 (U2: 1) to 25.
_P_WHOLE, _CHUNK, _LEAST, _MOST = 0.5, 16, 4, 25

# Rotary positions: the angle of a step shrinks from one pair of numbers to the next, down to about
# 1 / _SLOWEST radian. With the 10,000 of Su et al. 2021, most pairs hardly turn within the steps
# that a chunk sees.
_SLOWEST = 100.0
_MOST_LEFT = 1 << 16  # steps that each layer of a stream keeps


class StreamingConfig(FrozenModel):
    """Steps see their own chunk of `chunk` steps and the `left_chunks` · `chunk` steps before it.

    A step is four frames. One set of weights works on whole utterances and on chunks of any length.
    `chunk` is the length in a stream; training draws others in proportion to it. A chunk of any
    length sees the same number of steps before it, so that the cache is the same. With `rotary`
    attention knows how far steps are apart (see `rotate`), otherwise it has no positions.
    """

    chunk: Size = 16
    left_chunks: Size = 4
    rotary: bool = False

    @model_validator(mode="after")
    def _is_kept(self) -> Self:
        if self.left > _MOST_LEFT:
            raise ValueError(
                f"a chunk of {self.chunk} steps sees {self.left_chunks} chunks before it, "
                f"{self.left} steps, which a stream keeps: {_MOST_LEFT} at most"
            )
        return self

    @property
    def left(self) -> int:
        """Return the number of steps that a chunk sees before it."""
        return self.chunk * self.left_chunks

    def draw(self) -> int | None:
        """Draw a training batch's chunk in steps with torch's generator; None: whole utterances."""
        if float(torch.rand(())) < _P_WHOLE:
            return None
        least, most = (self.chunk * n // _CHUNK for n in (_LEAST, _MOST))
        return int(torch.randint(max(1, least), most + 1, ()))


def seen_in_chunks(mask_BS: Tensor, chunk: int, left: int) -> Tensor:
    """Return (B, S, S), True where a step sees another one.

    It sees the valid steps of its chunk and of the `left` steps before the chunk. Every step sees
    itself, so that the softmax is defined at padding.
    """
    index_S = torch.arange(mask_BS.shape[1], device=mask_BS.device)
    start_S1 = (index_S // chunk * chunk)[:, None]
    within_SS = (index_S >= start_S1 - left) & (index_S < start_S1 + chunk)
    return (mask_BS[:, None] & within_SS) | (index_S == index_S[:, None])


def rotate(x_BHSK: Tensor, start: int = 0) -> Tensor:
    """Turn pairs of each head's numbers by angles that grow with the position, from `start` on.

    The product of a query and a key then depends on the distance between them, not on where they
    are (rotary position embedding; Su et al. 2021, eq. 34).
    """
    (S, K), device = x_BHSK.shape[2:], x_BHSK.device
    rate = torch.exp(torch.arange(K // 2, device=device) * (-2 * math.log(_SLOWEST) / K))
    angle = torch.arange(start, start + S, device=device)[:, None] * rate
    cos, sin = angle.cos(), angle.sin()
    one, two, rest = x_BHSK.float().split((K // 2, K // 2, K % 2), -1)
    return torch.cat((one * cos - two * sin, one * sin + two * cos, rest), -1).type_as(x_BHSK)


@dataclass
class EncoderState:
    """What a stream's next chunk sees of the past: a cache for each layer, B rows in each tensor.

    `valid_BL` is True where a cached step exists: at the start of a stream there is none.
    """

    caches: list[Cache]
    valid_BL: Tensor

    def seen(self, mask_BC: Tensor) -> Tensor:
        """Return (B, C, L + C), True where a chunk's step sees a cached one or one of its own."""
        L, C = self.valid_BL.shape[1], mask_BC.shape[1]
        valid_BS = torch.cat((self.valid_BL, mask_BC), 1)
        index_S = torch.arange(L + C, device=mask_BC.device)
        return valid_BS[:, None] | (index_S == index_S[L:, None])

    def advance(self, mask_BC: Tensor, caches: list[Cache]) -> None:
        """Add a chunk's steps to the past."""
        valid_BS = torch.cat((self.valid_BL, mask_BC), 1)
        self.valid_BL = valid_BS[:, mask_BC.shape[1] :]
        self.caches = caches

    def select(self, indices: Tensor) -> "EncoderState":
        """Return the state of these sessions only."""
        caches: list[Cache] = [tuple(t[indices] for t in cache) for cache in self.caches]
        return EncoderState(caches, self.valid_BL[indices])

    @classmethod
    def join(cls, states: Sequence["EncoderState"]) -> "EncoderState":
        """Return one state with the sessions of several states, one after the other."""
        layers = zip(*(state.caches for state in states), strict=True)
        caches = [tuple(map(torch.cat, zip(*layer, strict=True))) for layer in layers]
        return cls(caches, torch.cat([state.valid_BL for state in states]))
