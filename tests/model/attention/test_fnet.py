"""Compare FNet with numpy's transform of each utterance."""

import numpy as np
import pytest
import torch

from asr.model.attention.fnet import Fourier, transform_time
from asr.model.frontend import padding_mask
from asr.model.layers import FourierMixing
from tests.helpers import build, tiny
from tests.model.attention.oracle import node


@pytest.mark.parametrize("lengths", [[9, 9], [1, 9], [8, 3], [7, 5]])
def test_it_is_numpys_transform_of_each_utterances_own_steps(lengths: list[int]) -> None:
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    found = Fourier()(x, padding_mask(torch.tensor(lengths), 9))
    for b, length in enumerate(lengths):
        expected = np.fft.fft2(x[b, :length].numpy(), norm="ortho").real
        torch.testing.assert_close(found[b, :length], torch.from_numpy(expected))
        assert not found[b, length:].any()
    whole = torch.from_numpy(np.fft.fft2(x.numpy(), norm="ortho").real)
    torch.testing.assert_close(Fourier()(x), whole)


def test_a_long_transform_in_single_precision_is_accurate() -> None:
    x = torch.randn(1, 4999, 2)
    found = transform_time(x.to(torch.complex64), torch.tensor([4999]))
    expected = torch.from_numpy(np.fft.fft(x.double().numpy(), axis=1, norm="ortho"))
    torch.testing.assert_close(found.to(expected.dtype), expected, atol=2e-5, rtol=0)


def test_what_stands_at_padding_changes_nothing_and_gets_no_gradient() -> None:
    mask = padding_mask(torch.tensor([4, 6]), 6)
    x = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    noise = torch.where(mask[..., None], x, 1e3)
    torch.testing.assert_close(Fourier()(noise, mask), Fourier()(x, mask), atol=0, rtol=0)
    assert torch.autograd.gradcheck(lambda x: Fourier()(x, mask), x)
    Fourier()(x, mask).square().sum().backward()
    assert x.grad is not None and not x.grad[0, 4:].any() and x.grad[mask].all()


def test_its_unit_has_a_normalization_alone() -> None:
    model = build(tiny(attention=node("fnet")))
    units = [layer.self_attention for layer in model.encoder.layers]
    assert all(isinstance(unit, FourierMixing) for unit in units)
    names = [name for unit in units for name, _ in unit.named_parameters()]
    assert names == ["residual.norm.weight", "residual.norm.bias"] * 2
    x = torch.randn(1, 7, 16)
    unit = units[0].eval()
    expected = unit.residual.norm(x + Fourier()(x))
    torch.testing.assert_close(unit(x), expected)
