"""`factorize` against `greenformer`, the thesis author's own package, on the same network."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asr.compression.compress import factorize
from asr.compression.solvers import Method


@pytest.fixture
def auto_fact(monkeypatch: pytest.MonkeyPatch):
    """Its one function. It wants transformers for the name of one class, so it gets the name."""
    stand_in = ModuleType("transformers.modeling_utils")
    stand_in.Conv1D = type("Conv1D", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", stand_in)
    from greenformer import auto_fact

    return auto_fact


def network(*, positive: bool = False) -> nn.Module:
    """What both factorize: a convolution and two maps, in one part."""
    torch.manual_seed(0)
    part = nn.Sequential(
        nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(),
        nn.Linear(64, 48),
    )  # fmt: skip
    if positive:
        for parameter in part.parameters():
            parameter.data.abs_()
    return nn.Sequential(part)


def products(module: nn.Module) -> list[np.ndarray]:
    """Multiply each low-rank pair into one matrix (outputs, inputs)."""
    weights = [p.detach().flatten(1).double().numpy() for p in module.parameters() if p.ndim > 1]
    return [second @ first for first, second in zip(weights[::2], weights[1::2], strict=True)]


def errors(module: nn.Module, approximation: list[np.ndarray]) -> list[float]:
    exact = [p.detach().flatten(1).double().numpy() for p in module.parameters() if p.ndim > 1]
    return [
        float(np.linalg.norm(W - A) / np.linalg.norm(W))
        for W, A in zip(exact, approximation, strict=True)
    ]


def test_svd_gives_the_same_maps_of_the_same_size(auto_fact) -> None:
    whole = network()
    theirs = auto_fact(whole, 4, "svd", num_iter=400, deepcopy=True)
    ours, _ = factorize(whole, "svd", rank=4)
    for expected, found in zip(products(theirs), products(ours), strict=True):
        # Its SVD is a randomised one.
        assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)
    x_BCHW = torch.randn(5, 8, 6, 6)
    assert torch.allclose(ours(x_BCHW), theirs(x_BCHW), atol=1e-3)
    assert sum(map(Tensor.numel, ours.parameters())) == sum(map(Tensor.numel, theirs.parameters()))


def test_a_share_of_the_rank_is_the_same_rank_of_a_linear_map(auto_fact) -> None:
    whole = nn.Sequential(nn.Sequential(nn.Linear(256, 64), nn.Linear(64, 48)))
    theirs = auto_fact(whole, 0.5, "svd", deepcopy=True)
    ours, _ = factorize(whole, "svd", rank=0.5)
    shapes = [[p.shape for p in module.parameters() if p.ndim > 1] for module in (ours, theirs)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("theirs", "ours", "positive"), [("snmf", "semi_nmf", False), ("nmf", "nmf", True)]
)
def test_non_negative_factors_are_as_near_as_its_own(
    auto_fact, theirs: str, ours: Method, positive: bool
) -> None:
    whole = network(positive=positive)
    expected = errors(whole, products(auto_fact(whole, 4, theirs, num_iter=100, deepcopy=True)))
    found = errors(whole, products(factorize(whole, ours, rank=4)[0]))
    assert all(a < 1.01 * b for a, b in zip(found, expected, strict=True)), (found, expected)


def test_signed_weights_are_nearer_where_either_sign_has_factors_of_its_own(auto_fact) -> None:
    whole = network()
    there = errors(whole, products(auto_fact(whole, 4, "nmf", num_iter=100, deepcopy=True)))
    here = errors(whole, products(factorize(whole, "nmf", rank=4)[0]))
    assert max(here) < 1 and all(a < b for a, b in zip(here, there, strict=True)), (here, there)


def test_convolutions_in_groups_are_nearer_with_no_more_weights(auto_fact) -> None:
    torch.manual_seed(0)
    whole, x_BCS = (
        nn.Sequential(nn.Sequential(nn.Conv1d(64, 64, 3, groups=4))),
        torch.randn(5, 64, 20),
    )
    theirs = auto_fact(whole, 8, "svd", num_iter=100, deepcopy=True)
    ours, layers = factorize(whole, "svd", rank=2)  # of each group: 8 channels in between as well
    there, here = (float((each(x_BCS) - whole(x_BCS)).detach().norm()) for each in (theirs, ours))
    assert len(layers) == 1 and here < there
    assert sum(map(Tensor.numel, ours.parameters())) < sum(map(Tensor.numel, theirs.parameters()))


def test_random_is_the_same_shape_and_nothing_of_the_weights(auto_fact) -> None:
    whole = network()
    theirs = auto_fact(whole, 4, "random", deepcopy=True)
    ours, _ = factorize(whole, "random", rank=4)
    assert [p.shape for p in ours.parameters() if p.ndim > 1] == [
        p.shape for p in theirs.parameters() if p.ndim > 1
    ]
    assert min(errors(whole, products(ours))) > 0.9
