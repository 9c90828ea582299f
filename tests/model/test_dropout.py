"""Test dropout, and attention with dropout."""

import pytest
import torch

from asr.model.attention import FullAttention
from asr.model.dropout import Dropout, dropout
from asr.model.frontend import padding_mask


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_share_of_zeros_and_the_mean_are_right_in_every_place(p: float) -> None:
    torch.manual_seed(3)
    n = 400_000
    y = dropout(torch.ones(n), p)
    is_kept = (y != 0).double()
    sigma = (p * (1 - p) / n) ** 0.5
    assert is_kept.mean().item() == pytest.approx(1 - p, abs=4 * sigma)
    assert y.double().mean().item() == pytest.approx(1, abs=4 * sigma / (1 - p))
    assert len(y.unique()) == 2
    # Four masks come from one draw: each has its share, and none knows of another.
    lanes = is_kept.view(-1, 4).T
    torch.testing.assert_close(
        lanes.mean(1), torch.full((4,), 1 - p).double(), atol=8 * sigma, rtol=0
    )
    assert (torch.corrcoef(lanes) - torch.eye(4)).abs().max() < 5 * (4 / n) ** 0.5


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 7), (0, 4)])
def test_chance_follows_from_the_seed_and_the_gradient_from_the_mask(shape: tuple[int]) -> None:
    x = torch.ones(shape, requires_grad=True)
    torch.manual_seed(7)
    first, second = dropout(x, 0.4), dropout(x, 0.4)
    torch.manual_seed(7)
    assert dropout(x, 0.4).equal(first)
    if x.numel() > 10:
        assert not first.equal(second)
    first.sum().backward()
    assert x.grad is not None
    assert x.grad.equal(first.detach())


def test_nothing_is_dropped_outside_training() -> None:
    module, x = Dropout(0.9), torch.randn(50)
    assert module.eval()(x).equal(x)
    assert not module.train()(x).equal(x)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_dropout_is_torchs_where_nothing_falls_to_it(causal: bool) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 6, 8).unbind()
    mask = None if causal else padding_mask(torch.tensor([6, 2]), 6)
    kernel = FullAttention(causal, dropout=1e-9)
    expected = kernel.eval()(q, k, v, mask)
    torch.testing.assert_close(kernel.train()(q, k, v, mask), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_dropout_has_attention_as_its_mean(causal: bool) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 5, 4).unbind()
    mask = None if causal else torch.tensor([[True, True, True, False, False]])
    kernel = FullAttention(causal, dropout=0.3)
    expected = kernel.eval()(q, k, v, mask)
    many = [x.expand(20_000, 1, 5, 4) for x in (q, k, v)]
    found = kernel.train()(*many, None if mask is None else mask.expand(20_000, 5))
    torch.testing.assert_close(found.mean(0, keepdim=True), expected, atol=0.03, rtol=0)
    assert found.std(0).max() > 0.1
