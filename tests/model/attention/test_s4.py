"""Compare S4 with simulations of its system, and its start with HiPPO-LegS."""

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete, dlsim
from torch import Tensor

from asr.model.attention.s4 import S4, hippo_legs
from asr.model.frontend import padding_mask
from tests.model.attention.oracle import node, step_by_step, with_random_weights

D = 3


def s4(causal: bool, states: int = 3) -> S4:
    torch.manual_seed(5)
    ours: S4 = node("s4", causal, states=states).build(1, D, causal, 0.0).double().eval()
    return ours


def legs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B of HiPPO-LegS by their definition, entry by entry."""
    A, B = np.zeros((n, n)), np.sqrt(2 * np.arange(n) + 1.0)
    for i in range(n):
        for j in range(i + 1):
            A[i, j] = -(i + 1) if i == j else -np.sqrt((2 * i + 1) * (2 * j + 1))
    return A, B[:, None]


def test_it_starts_as_hippo_legs() -> None:
    eigenvalues, P, B = (torch.cat((x, x.conj())).to(torch.complex128) for x in hippo_legs(3))
    assert (eigenvalues.imag[:3] > 0).all() and torch.allclose(
        eigenvalues.real, eigenvalues.real[0]
    )
    A = torch.diag(eigenvalues) - torch.outer(P, P.conj())
    found = np.sort(np.linalg.eigvals(A.numpy()).real)
    np.testing.assert_allclose(found, [-6, -5, -4, -3, -2, -1], atol=1e-3)
    assert B.abs().square().sum().item() == pytest.approx((legs(6)[1] ** 2).sum(), rel=1e-5)


def test_at_first_its_output_is_that_of_the_real_legs_system() -> None:
    """With C = P*, the same vector as P of the real system, no change of basis is needed."""
    ours = s4(causal=True)
    with torch.no_grad():
        ours.C_RDN2.copy_(ours.P_RDN2 * torch.tensor([1, -1]))
    A, B = legs(6)
    C = np.sqrt(np.arange(6) + 0.5)[None]
    u = torch.randn(1, 20, D, dtype=torch.float64)
    found = ours(u)[0] - ours.D_D * u[0]
    for d in range(D):
        step = ours.log_step_RD.exp()[0, d].item()
        Ad, Bd = cont2discrete((A, B, C, np.zeros((1, 1))), step, "bilinear")[:2]
        # scipy's states do not hold the input of the same step, ours do: x_k = Ad x_(k-1) + Bd u_k.
        expected = dlsim((Ad, Bd, C @ Ad, C @ Bd, step), u[0, :, d].numpy())[1][:, 0]
        np.testing.assert_allclose(found[:, d].detach(), expected, atol=1e-5, rtol=1e-4)


def simulated(ours: S4, direction: int, u_TD: Tensor) -> Tensor:
    """Solve each step's bilinear equation with the dense A."""
    eigenvalues, P, B, C = (x[direction].detach() for x in ours.system())
    y = torch.zeros_like(u_TD)
    for d in range(D):
        half = ours.log_step_RD.exp()[direction, d].item() / 2
        A = torch.diag(eigenvalues[d]) - torch.outer(P[d], P[d].conj())
        eye, x = torch.eye(len(A)), torch.zeros(len(A), dtype=A.dtype)
        for t in range(len(u_TD)):
            x = torch.linalg.solve(
                eye - half * A, (eye + half * A) @ x + 2 * half * B[d] * u_TD[t, d]
            )
            y[t, d] = (C[d] @ x).real
    return y


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 16, 17])
def test_it_is_the_systems_simulation(causal: bool, length: int) -> None:
    ours = with_random_weights(s4(causal))
    u = torch.randn(length, D, dtype=torch.float64)
    expected = simulated(ours, 0, u) + u * ours.D_D.detach()
    if not causal:
        expected = expected + simulated(ours, 1, u.flip(0)).flip(0)
    torch.testing.assert_close(ours(u[None])[0], expected)


def test_its_recurrence_is_its_convolution() -> None:
    ours = with_random_weights(s4(causal=True))
    u = torch.randn(2, 30, D, dtype=torch.float64)
    torch.testing.assert_close(step_by_step(ours, u), ours(u))


@pytest.mark.parametrize("causal", [True, False])
def test_its_gradients_are_right_in_float64_and_reach_all_weights(causal: bool) -> None:
    ours = s4(causal)
    u = torch.randn(2, 6, D, dtype=torch.float64, requires_grad=True)
    mask = padding_mask(torch.tensor([4, 6]), 6)
    parameters = list(ours.parameters())
    assert torch.autograd.gradcheck(lambda u, *_: ours(u, mask), [u, *parameters], fast_mode=True)
    ours(u, mask).square().sum().backward()
    assert all(p.grad is not None and p.grad.all() for p in parameters)


def test_a_long_filter_in_single_precision_is_that_in_double() -> None:
    ours = s4(causal=True, states=16)
    double = ours.kernel(999)
    single = ours.float().kernel(999)
    assert (single - double).abs().max() < 1e-4 * double.abs().max()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(ours.kernel(999), single, atol=0, rtol=0)
