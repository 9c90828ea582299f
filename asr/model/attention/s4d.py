"""A structured state-space layer in place of attention: a recurrence that is a convolution.

Nothing is asked of anything here, so there are no queries and keys (see `layers.StateSpace`).
Legend: B batch, T positions, D channels, N pairs of states, R directions of time.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from asr.model.attention.full import Cache
from asr.schema import FrozenModel, Size


class S4D(nn.Module):
    """x' = A x + B u, y = C x + D u for each channel, with a diagonal A (slides, SSM; S4D-Lin).

    A step of its channel's Δ is held between samples (zero-order hold), of which the slides'
    Ā = I + Δ A is the first term. B is 1: C carries its scale. Without `causal`, a second system
    reads from the end.
    """

    def __init__(self, d_model: int, states: int, causal: bool) -> None:
        super().__init__()
        R, N = 1 if causal else 2, states
        low, high = math.log(1e-3), math.log(1e-1)
        self.log_step_RD = nn.Parameter(torch.rand(R, d_model) * (high - low) + low)
        self.log_decay_RDN = nn.Parameter(torch.full((R, d_model, N), math.log(0.5)))
        self.frequency_RDN = nn.Parameter((math.pi * torch.arange(N)).repeat(R, d_model, 1))
        self.C_RDN2 = nn.Parameter(torch.randn(R, d_model, N, 2) * 0.5**0.5)
        self.D_D = nn.Parameter(torch.randn(d_model))

    def discrete(self) -> tuple[Tensor, Tensor]:
        """log Ā and C̄ = C B̄, complex (R, D, N); a state's conjugate is not stored."""
        A = torch.complex(-self.log_decay_RDN.exp(), self.frequency_RDN)
        log_A = A * self.log_step_RD.exp()[..., None]
        return log_A, torch.view_as_complex(self.C_RDN2) * (log_A.exp() - 1) / A

    def kernel(self, length: int) -> Tensor:
        """K̄ = (C̄, C̄ Ā, …, C̄ Ā^(T-1)) (slides, convolution view), (R, D, T)."""
        log_A, C = self.discrete()
        # Step t = a m + b: only √T powers of each are formed, in place of T for every state.
        m = math.isqrt(length - 1) + 1
        b = torch.arange(m, device=log_A.device)
        early = (log_A[..., None] * b).exp()
        late = (log_A[..., None] * (m * b)).exp() * C[..., None]
        late, early = torch.cat((late.real, -late.imag), 2), torch.cat((early.real, early.imag), 2)
        with torch.autocast(log_A.device.type, enabled=False):  # a filter of 8 bits is noise
            return 2 * (late.transpose(2, 3) @ early).flatten(2)[..., :length]

    def forward(self, u_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, D) by a convolution in the frequency domain; steps not kept are zero."""
        T, dtype = u_BTD.shape[1], self.D_D.dtype
        if mask_BT is not None:
            u_BTD = u_BTD.masked_fill(~mask_BT[..., None], 0.0)
        u_BDT = u_BTD.transpose(1, 2).to(dtype)
        from_start, *from_end = self.kernel(T)
        y_BDT = _convolve(u_BDT, from_start) + self.D_D[:, None] * u_BDT
        for kernel_DT in from_end:
            y_BDT = y_BDT + _convolve(u_BDT.flip(2), kernel_DT).flip(2)
        return y_BDT.transpose(1, 2)

    def step(self, u_B1D: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """x_k = Ā x_(k-1) + u_k, y_k = C̄ x_k + D u_k (slides, recurrent view); causal only."""
        log_A, C = self.discrete()
        u_BD = u_B1D[:, 0].to(self.D_D.dtype)
        x_BDN = u_BD[..., None] + (log_A[0].exp() * cache[0] if cache else 0j)
        y_BD = 2 * (C[0] * x_BDN).sum(-1).real + self.D_D * u_BD
        return y_BD[:, None], (x_BDN,)


def _convolve(u_BDT: Tensor, kernel_DT: Tensor) -> Tensor:
    n = 2 * u_BDT.shape[2]  # room for all, so that the end never meets the beginning
    spectrum = torch.fft.rfft(u_BDT, n=n) * torch.fft.rfft(kernel_DT, n=n)
    return torch.fft.irfft(spectrum, n=n)[..., : u_BDT.shape[2]]


class S4dConfig(FrozenModel):
    """So many pairs of `states` a channel."""

    kind: Literal["s4d"]
    states: Size = 16

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> S4D:
        """A layer of `n_heads` · `d_head` channels."""
        return S4D(n_heads * d_head, self.states, causal)
