"""Nyströmformer's attention: the matrix of weights from those of a few landmarks (slides' table).

Legend: B batch, H heads, T queries, S keys, K head dimension, M landmarks.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from asr.model.attention.full import Kernel
from asr.schema import FrozenModel, Size

_ITERATIONS = 6  # of the pseudo-inverse, as in the paper


class NystromAttention(Kernel):
    """Softmax(Q K̃ᵀ) Softmax(Q̃ K̃ᵀ)⁺ (Softmax(Q̃ Kᵀ) V), landmarks Q̃, K̃ means of segments.

    An utterance has M segments of its own length, so that padding is in none; one with fewer steps
    than M has a landmark at each.
    """

    def __init__(self, landmarks: int) -> None:
        super().__init__()
        self.landmarks = landmarks

    def forward(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor | None = None
    ) -> Tensor:
        """(B, H, T, K)."""
        if mask_BS is None:
            mask_BS = k_BHSK.new_ones(len(k_BHSK), k_BHSK.shape[2], dtype=torch.bool)
        mean_B1MS, real_BM = self._segments(mask_BS, q_BHTK.dtype)
        q_BHMK = mean_B1MS @ q_BHTK.masked_fill(~mask_BS[:, None, :, None], 0.0)
        k_BHMK = mean_B1MS @ k_BHSK.masked_fill(~mask_BS[:, None, :, None], 0.0)
        to_landmarks = _weights(q_BHTK, k_BHMK, real_BM)
        between = _weights(q_BHMK, k_BHMK, real_BM) * real_BM[:, None, :, None]
        from_landmarks = _weights(q_BHMK, k_BHSK, mask_BS)
        return (to_landmarks @ pseudo_inverse(between)) @ (from_landmarks @ v_BHSK)

    def _segments(self, mask_BS: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The matrix (B, 1, M, S) that takes means of segments, and which are of any step."""
        length_B1 = mask_BS.sum(1, keepdim=True).clamp(min=1)
        M = self.landmarks
        place_S = torch.arange(mask_BS.shape[1], device=mask_BS.device)
        segment_BS = place_S * length_B1.clamp(max=M) // length_B1
        number_M1 = torch.arange(M, device=mask_BS.device)[:, None]
        is_in_BMS = (segment_BS[:, None] == number_M1) & mask_BS[:, None]
        count_BM1 = is_in_BMS.sum(2, keepdim=True)
        return (is_in_BMS / count_BM1.clamp(min=1)).to(dtype)[:, None], count_BM1[..., 0] > 0


def _weights(q: Tensor, k: Tensor, keep: Tensor) -> Tensor:
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    return scores.masked_fill(~keep[:, None, None], -torch.inf).softmax(-1)


def pseudo_inverse(a: Tensor) -> Tensor:
    """Of the matrices (…, M, M), by products alone (Razavi et al. 2014)."""
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    rows, columns = (a.abs().sum(d).amax(-1)[..., None, None] for d in (-1, -2))
    z = a.transpose(-1, -2) / (rows * columns)
    for _ in range(_ITERATIONS):
        az = a @ z
        z = z @ (13 * one - az @ (15 * one - az @ (7 * one - az))) / 4
    return z


class NystromConfig(FrozenModel):
    """So many `landmarks`; with more, their pseudo-inverse alone costs more than full attention."""

    kind: Literal["nystrom"]
    landmarks: Annotated[Size, Field(le=256)] = 16

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        """A kernel for any heads."""
        return NystromAttention(self.landmarks)
