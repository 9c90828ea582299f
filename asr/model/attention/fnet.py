"""FNet: a Fourier transform in place of attention (Lee-Thorp 2022).

It has no queries, keys and weights (see `layers.FourierMixing`).
Legend: B batch, T positions, D channels.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from asr.model.attention.full import AttentionConfig


class Fourier(nn.Module):
    """Re(F_time(F_channels(x))) (Lee-Thorp 2022, sec. 3.2).

    Both transforms are unitary, so that the scale of the result is that of x at any length; the
    paper's are not scaled. The one over time has each utterance's own length, without padding.
    """

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Map (B, T, D) to (B, T, D); zero at padding."""
        if mask_BT is None:
            mask_BT = x_BTD.new_ones(x_BTD.shape[:2], dtype=torch.bool)
        x_BTD = x_BTD.to(torch.promote_types(x_BTD.dtype, torch.float32))
        x_BTD = x_BTD.masked_fill(~mask_BT[..., None], 0.0)
        spectrum_BTD = transform_time(torch.fft.fft(x_BTD, dim=2, norm="ortho"), mask_BT.sum(1))
        return spectrum_BTD.real.masked_fill(~mask_BT[..., None], 0.0)


def transform_time(x_BTD: Tensor, length_B: Tensor) -> Tensor:
    """Return the unitary Fourier transform of the first `length_B` steps, the others being zero.

    With w_m = exp(iπ m² / n), exp(-2πi jk / n) is the product of conjugates of w_j and w_k with
    w_(k-j): a convolution, the same operations for every length n (Bluestein 1970).
    """
    T, n_B1 = x_BTD.shape[1], length_B.clamp(min=1)[:, None]
    dtype = x_BTD.real.dtype
    step_T = torch.arange(T, device=x_BTD.device)

    def chirp(m: Tensor) -> Tensor:
        # The remainder is exact, the square in floating point is not.
        angle = (m.square() % (2 * n_B1)).to(dtype) * math.pi / n_B1
        return torch.polar(torch.ones_like(angle), angle)[..., None]

    own_BT1 = chirp(step_T).conj()
    both_sides = torch.cat((step_T, T - step_T))  # |m| of a circular convolution of 2 T
    spectrum = torch.fft.fft(x_BTD * own_BT1, n=2 * T, dim=1) * torch.fft.fft(
        chirp(both_sides), dim=1
    )
    y_BTD: Tensor = torch.fft.ifft(spectrum, dim=1)[:, :T] * own_BT1
    return y_BTD * n_B1[..., None].to(dtype) ** -0.5


class FnetConfig(AttentionConfig):
    """A Fourier transform over time and channels, without weights."""

    maps = ()
    kind: Literal["fnet"]

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Fourier:
        return Fourier()
