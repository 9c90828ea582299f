"""Compare both Synthesizers with their definitions in numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from asr.errors import DataError
from asr.model.layers import MultiHeadAttention
from tests.helpers import build, tiny
from tests.model.attention.oracle import (
    LENGTH,
    MASK,
    S,
    each_head,
    kernel,
    node,
    qkv,
    softmax,
    with_random_weights,
)


def test_the_dense_one_is_two_maps_of_each_position() -> None:
    ours = with_random_weights(kernel("dense_synthesizer", length=40))
    W, b = ours.W_HKN.detach().numpy(), ours.b_H1N.detach().numpy()
    q, k, v = qkv()

    def one(h: int, q: Any, v: Any) -> np.ndarray:
        scores = np.maximum(q, 0) @ W[h, :, :LENGTH] + b[h, :, :LENGTH]
        return softmax(scores) @ v[:LENGTH]

    torch.testing.assert_close(ours(q, k, v, MASK), each_head(one, q, v))


def test_the_random_one_has_the_same_weights_for_every_input() -> None:
    ours = kernel("random_synthesizer", length=40)
    R = ours.R_HNN.detach().numpy()
    q, k, v = qkv()

    def one(h: int, v: Any) -> np.ndarray:
        return softmax(R[h, :S, :LENGTH]) @ v[:LENGTH]

    torch.testing.assert_close(ours(q, k, v, MASK), each_head(one, v))


@pytest.mark.parametrize(
    ("kind", "projected"),
    [("dense_synthesizer", {"query", "value", "output"}),
     ("random_synthesizer", {"value", "output"})],
)  # fmt: skip
def test_no_weight_is_without_a_gradient(kind: str, projected: set[str]) -> None:
    unit = build(tiny(attention=node(kind, length=9))).encoder.layers[0].self_attention
    assert isinstance(unit, MultiHeadAttention)
    names = {name.split(".")[0] for name, _ in unit.named_parameters()}
    assert names == projected | {"kernel", "residual"}
    unit(torch.randn(2, 9, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in unit.parameters())


@pytest.mark.parametrize("kind", ["dense_synthesizer", "random_synthesizer"])
def test_what_is_longer_than_its_weights_is_refused(kind: str) -> None:
    with pytest.raises(DataError, match=r"11 encoder steps .*attention\.length 10: cut it, or"):
        kernel(kind, length=10)(*qkv())
    assert node(kind, length=10).longest == 10
