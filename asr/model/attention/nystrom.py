"""Nyströmformer: approximate the matrix of attention weights by a few landmarks (Xiong 2021).

Legend: B batch, H heads, T queries, S keys, K head dimension, M landmarks.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from asr.model.attention.full import AttentionConfig, Kernel
from asr.schema import Size

_ITERATIONS = 6  # of the pseudo-inverse, as in the paper


class NystromAttention(Kernel):
    """Softmax(Q K̃ᵀ) Softmax(Q̃ K̃ᵀ)⁺ (Softmax(Q̃ Kᵀ) V), landmarks Q̃, K̃ means of segments.

    The valid steps of an utterance, without padding, are divided into M segments. If there are
    fewer than M steps, each step is a landmark.
    """

    def __init__(self, landmarks: int) -> None:
        super().__init__()
        self.landmarks = landmarks

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        mean_B1MS, real_BM = self._segments(mask_BS, q_BHTK.dtype)
        q_BHMK = mean_B1MS @ q_BHTK.masked_fill(~mask_BS[:, None, :, None], 0.0)
        k_BHMK = mean_B1MS @ k_BHSK.masked_fill(~mask_BS[:, None, :, None], 0.0)
        to_landmarks = _weights(q_BHTK, k_BHMK, real_BM)
        between = _weights(q_BHMK, k_BHMK, real_BM) * real_BM[:, None, :, None]
        from_landmarks = _weights(q_BHMK, k_BHSK, mask_BS)
        return (to_landmarks @ pseudo_inverse(between)) @ (from_landmarks @ v_BHSK)

    def _segments(self, mask_BS: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the matrix (B, 1, M, S) of means over segments, and which have a step (B, M)."""
        length_B1 = mask_BS.sum(1, keepdim=True).clamp(min=1)
        M = self.landmarks
        index_S = torch.arange(mask_BS.shape[1], device=mask_BS.device)
        segment_BS = index_S * length_B1.clamp(max=M) // length_B1
        segment_M1 = torch.arange(M, device=mask_BS.device)[:, None]
        is_in_BMS = (segment_BS[:, None] == segment_M1) & mask_BS[:, None]
        count_BM1 = is_in_BMS.sum(2, keepdim=True)
        return (is_in_BMS / count_BM1.clamp(min=1)).to(dtype)[:, None], count_BM1[..., 0] > 0


def _weights(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    scores: Tensor = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    return scores.masked_fill(~mask[:, None, None], -torch.inf).softmax(-1)


def pseudo_inverse(a: Tensor) -> Tensor:
    """Approximate the pseudo-inverse of (…, M, M) by products (Razavi 2014; Xiong 2021)."""
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    rows, columns = (a.abs().sum(d).amax(-1)[..., None, None] for d in (-1, -2))
    z = a.transpose(-1, -2) / (rows * columns)
    for _ in range(_ITERATIONS):
        az = a @ z
        z = z @ (13 * one - az @ (15 * one - az @ (7 * one - az))) / 4
    return z


class NystromConfig(AttentionConfig):
    """Attention by `landmarks`; the pseudo-inverse of over 256 costs more than full attention."""

    exports = True
    kind: Literal["nystrom"]
    landmarks: Annotated[Size, Field(le=256)] = 16

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return NystromAttention(self.landmarks)
