"""A structured state-space model in place of attention, S4 (Gu, Goel and Ré 2022).

It has no queries and keys (see `layers.StateSpace`).
Legend: B batch, T positions, D channels, N pairs of states, R directions of time; S = 2 N states.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from asr.model.attention.full import AttentionConfig, Cache
from asr.model.attention.s4d import SYSTEM_STEPS, StateSpaceSystem
from asr.schema import Size


class S4(StateSpaceSystem):
    """x' = A x + B u, y = C x + D u for each channel, A = Λ - P P* (Gu, Goel and Ré 2022).

    A is normal plus low rank and starts as HiPPO-LegS; the low-rank part is P P* instead of P Q*,
    so that A stays stable (Goel 2022). Discretization is bilinear, with a step Δ for each channel.
    States are in conjugate pairs, of which one is stored. Without `causal`, a second system reads
    from the end.
    """

    def __init__(self, d_model: int, states: int, causal: bool) -> None:
        super().__init__()
        R, D, N = 1 if causal else 2, d_model, states
        low, high = (math.log(step) for step in SYSTEM_STEPS)
        self.log_step_RD = nn.Parameter(torch.rand(R, D) * (high - low) + low)
        eigenvalues_N, P_N, B_N = hippo_legs(N)
        self.log_decay_RDN = nn.Parameter((-eigenvalues_N.real).log().repeat(R, D, 1))
        self.frequency_RDN = nn.Parameter(eigenvalues_N.imag.repeat(R, D, 1))
        self.P_RDN2 = nn.Parameter(torch.view_as_real(P_N).repeat(R, D, 1, 1))
        self.B_RDN2 = nn.Parameter(torch.view_as_real(B_N).repeat(R, D, 1, 1))
        self.C_RDN2 = nn.Parameter(torch.randn(R, D, N, 2) * 0.5**0.5)
        self.D_D = nn.Parameter(torch.randn(D))

    def system(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return Λ, P, B, C with both states of each pair, complex (R, D, S)."""
        eigenvalues = torch.complex(-self.log_decay_RDN.exp(), self.frequency_RDN)
        vectors = (torch.view_as_complex(x) for x in (self.P_RDN2, self.B_RDN2, self.C_RDN2))
        both = (torch.cat((x, x.conj()), -1) for x in (eigenvalues, *vectors))
        eigenvalues, P, B, C = both
        return eigenvalues, P, B, C

    def discrete(self) -> tuple[Tensor, Tensor]:
        """Return Ā = (I - Δ/2 A)⁻¹ (I + Δ/2 A), (R, D, S, S), and B̄ = (I - Δ/2 A)⁻¹ Δ B."""
        eigenvalues, P, B, _ = self.system()
        half_RD1 = self.log_step_RD.exp()[..., None] / 2
        # (I - Δ/2 A)⁻¹ = E - E P (2/Δ + P* E P)⁻¹ P* E with E = (I - Δ/2 Λ)⁻¹.
        E = 1 / (1 - half_RD1 * eigenvalues)
        scale = 1 / (1 / half_RD1 + (P.conj() * E * P).sum(-1, keepdim=True))
        inverse = torch.diag_embed(E) - _outer(E * P * scale, P.conj() * E)
        A = torch.diag_embed(eigenvalues) - _outer(P, P.conj())
        forward = torch.eye(A.shape[-1], device=A.device) + half_RD1[..., None] * A
        return inverse @ forward, (inverse @ (2 * half_RD1 * B)[..., None])[..., 0]

    def kernel(self, length: int) -> Tensor:
        """Return the filter K̄ = (C B̄, C Ā B̄, …, C Ā^(T-1) B̄), (R, D, T), without powers of Ā.

        Its transform at the roots of unity is C (I - Ā^T) (I - Ā z)⁻¹ B̄. By Woodbury's identity
        this is four sums of 1 / (g(z) - Λ) (appendix C). The divisor 1 + z, which is zero for
        z = -1, is multiplied out.
        """
        with torch.autocast(self.D_D.device.type, enabled=False):  # half precision is too coarse
            eigenvalues, P, B, C = self.system()
            power = torch.linalg.matrix_power(self.discrete()[0], length)
            C = C - (C[..., None, :] @ power)[..., 0, :]
            k = torch.arange(length // 2 + 1, device=C.device, dtype=self.D_D.dtype)
            z = torch.polar(torch.ones_like(k), k * (-2 * math.pi / length))
            step_RD11 = self.log_step_RD.exp()[..., None, None]
            cauchy = 1 / (
                2 / step_RD11 * (1 - z) - (1 + z) * eigenvalues[..., None]
            )  # (R, D, S, …)

            def sums(left: Tensor, right: Tensor) -> Tensor:
                return ((left * right)[..., None, :] @ cauchy)[..., 0, :]

            through = sums(C, P) * sums(P.conj(), B) / (1 + (1 + z) * sums(P.conj(), P))
            K: Tensor = torch.fft.irfft(2 * (sums(C, B) - (1 + z) * through), n=length)
            return K

    def step(self, u_B1D: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Compute x_k = Ā x_(k-1) + B̄ u_k, y_k = C x_k + D u_k; causal only."""
        (A_DSS,), (B_DS,) = self.discrete()
        C_DS = self.system()[3][0]
        u_BD = u_B1D[:, 0].to(self.D_D.dtype)
        x_BDS = B_DS * u_BD[..., None]
        if cache:
            x_BDS = x_BDS + (A_DSS @ cache[0][..., None])[..., 0]
        y_BD = (C_DS * x_BDS).sum(-1).real + self.D_D * u_BD
        return y_BD[:, None], (x_BDS,)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a[..., None] * b[..., None, :]


def hippo_legs(pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return Λ, P, B (N,) of HiPPO-LegS in the basis where its normal part is diagonal.

    A_nk is -√(2n + 1) √(2k + 1) for n > k, -(n + 1) for n = k, 0 for n < k, and B_n √(2n + 1) (Gu,
    Goel and Ré 2022, eq. 2); A + P Pᵀ with P_n = √(n + 1/2) is skew-symmetric less a half of I. Of
    each conjugate pair the one with the positive frequency is returned.
    """
    n = torch.arange(2 * pairs, dtype=torch.float64, device="cpu")
    B, P = (2 * n + 1).sqrt(), (n + 0.5).sqrt()
    A = -torch.outer(B, B).tril(-1) - torch.diag(n + 1)
    skew = A + torch.outer(P, P) + 0.5 * torch.eye(2 * pairs, dtype=n.dtype, device="cpu")
    frequencies, basis = torch.linalg.eigh(-1j * skew)
    to_basis = basis[:, pairs:].mH  # eigenvalues ascend
    eigenvalues = torch.complex(torch.full_like(frequencies, -0.5), frequencies)[pairs:]
    found = (eigenvalues, to_basis @ P.to(to_basis), to_basis @ B.to(to_basis))
    return tuple(x.to(torch.complex64) for x in found)  # type: ignore[return-value]


class S4Config(AttentionConfig):
    """A state-space model with `states` conjugate pairs of states for each channel."""

    maps = ("value", "output")
    kind: Literal["s4"]
    states: Annotated[Size, Field(le=256)] = 16

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> S4:
        """Return a layer of `n_heads` · `d_head` channels."""
        return S4(n_heads * d_head, self.states, causal)
