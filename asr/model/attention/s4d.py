"""A diagonal state-space model in place of attention, S4D (Gu 2022): recurrence and convolution.

It has no queries and keys (see `layers.StateSpace`).
Legend: B batch, T positions, D channels, N pairs of states, R directions of time.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from asr.model.attention.full import AttentionConfig, Cache
from asr.schema import Size

SYSTEM_STEPS = (1e-3, 1e-1)  # the least and the largest Δ at first


class StateSpaceSystem(nn.Module):
    """y = K̄ ∗ u + D u for each channel, in one or two directions; a subclass has the filter K̄."""

    D_D: nn.Parameter

    def kernel(self, length: int) -> Tensor:
        """Return the filter (R, D, T), from the start and, if R = 2, from the end."""
        raise NotImplementedError

    def step(self, u_B1D: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Compute one position after those in `cache`; causal only."""
        raise NotImplementedError

    def forward(self, u_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Convolve (B, T, D) in the frequency domain; padding is zero."""
        T, dtype = u_BTD.shape[1], self.D_D.dtype
        if mask_BT is not None:
            u_BTD = u_BTD.masked_fill(~mask_BT[..., None], 0.0)
        u_BDT = u_BTD.transpose(1, 2).to(dtype)
        from_start, *from_end = self.kernel(T)
        y_BDT = _convolve(u_BDT, from_start) + self.D_D[:, None] * u_BDT
        for kernel_DT in from_end:
            y_BDT = y_BDT + _convolve(u_BDT.flip(2), kernel_DT).flip(2)
        return y_BDT.transpose(1, 2)


class S4D(StateSpaceSystem):
    """x' = A x + B u, y = C x + D u for each channel, with a diagonal A (Gu 2022, S4D-Lin).

    It is discretized by zero-order hold with a step Δ for each channel; Ā = I + Δ A (Zaytsev) is
    its first-order approximation. B is 1, since C has its scale. Without `causal`, a second system
    reads from the end.
    """

    def __init__(self, d_model: int, states: int, causal: bool) -> None:
        super().__init__()
        R, N = 1 if causal else 2, states
        low, high = (math.log(step) for step in SYSTEM_STEPS)
        self.log_step_RD = nn.Parameter(torch.rand(R, d_model) * (high - low) + low)
        self.log_decay_RDN = nn.Parameter(torch.full((R, d_model, N), math.log(0.5)))
        self.frequency_RDN = nn.Parameter((math.pi * torch.arange(N)).repeat(R, d_model, 1))
        self.C_RDN2 = nn.Parameter(torch.randn(R, d_model, N, 2) * 0.5**0.5)
        self.D_D = nn.Parameter(torch.randn(d_model))

    def discrete(self) -> tuple[Tensor, Tensor]:
        """Return log Ā and C̄ = C B̄, complex (R, D, N); conjugate states are not stored."""
        A = torch.complex(-self.log_decay_RDN.exp(), self.frequency_RDN)
        log_A = A * self.log_step_RD.exp()[..., None]
        return log_A, torch.view_as_complex(self.C_RDN2) * (log_A.exp() - 1) / A

    def kernel(self, length: int) -> Tensor:
        """Return the filter K̄ = (C̄, C̄ Ā, …, C̄ Ā^(T-1)), (R, D, T) (Gu 2022, sec. 2)."""
        log_A, C = self.discrete()
        # With t = a m + b, only √T powers are formed for each of a and b.
        m = math.isqrt(length - 1) + 1
        b = torch.arange(m, device=log_A.device)
        early = (log_A[..., None] * b).exp()
        late = (log_A[..., None] * (m * b)).exp() * C[..., None]
        late, early = torch.cat((late.real, -late.imag), 2), torch.cat((early.real, early.imag), 2)
        with torch.autocast(log_A.device.type, enabled=False):  # half precision is too coarse
            return 2 * (late.transpose(2, 3) @ early).flatten(2)[..., :length]

    def step(self, u_B1D: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Compute x_k = Ā x_(k-1) + u_k, y_k = C̄ x_k + D u_k; causal only."""
        log_A, C = self.discrete()
        u_BD = u_B1D[:, 0].to(self.D_D.dtype)
        x_BDN = u_BD[..., None] + (log_A[0].exp() * cache[0] if cache else 0j)
        y_BD = 2 * (C[0] * x_BDN).sum(-1).real + self.D_D * u_BD
        return y_BD[:, None], (x_BDN,)


def _convolve(u_BDT: Tensor, kernel_DT: Tensor) -> Tensor:
    n = 2 * u_BDT.shape[2]  # zeros behind the input, so that the convolution is not circular
    spectrum = torch.fft.rfft(u_BDT, n=n) * torch.fft.rfft(kernel_DT, n=n)
    y_BDT: Tensor = torch.fft.irfft(spectrum, n=n)
    return y_BDT[..., : u_BDT.shape[2]]


class S4dConfig(AttentionConfig):
    """A state-space model with `states` conjugate pairs of states for each channel."""

    maps = ("value", "output")
    kind: Literal["s4d"]
    states: Size = 16

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> S4D:
        """Return a layer of `n_heads` · `d_head` channels."""
        return S4D(n_heads * d_head, self.states, causal)
