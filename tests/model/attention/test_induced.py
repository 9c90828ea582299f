"""Compare ISAB and Luna with their definitions in numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.model.attention.oracle import (
    LENGTH,
    MASK,
    S,
    attention,
    each_head,
    kernel,
    qkv,
    with_random_weights,
)


def test_luna_packs_and_unpacks() -> None:
    ours = kernel("luna", points=3)
    points = ours.points_HMK.detach().numpy()
    q, k, v = qkv()

    def one(h: int, q: Any, k: Any, v: Any) -> np.ndarray:
        packed = attention(points[h], k[:LENGTH], v[:LENGTH])
        return attention(q, packed, packed)

    torch.testing.assert_close(ours(q, k, v, MASK), each_head(one, q, k, v))


def normalized(x: np.ndarray, norm: Any) -> np.ndarray:
    gain, bias = (each.detach().numpy() for each in (norm.weight, norm.bias))
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps) * gain + bias


def test_isab_is_two_attention_blocks() -> None:
    ours = with_random_weights(kernel("isab", points=3))
    points = ours.points_HMK.detach().numpy()
    W, b = (x.detach().numpy() for x in (ours.feed_forward.weight, ours.feed_forward.bias))
    q, k, v = qkv()

    def one(h: int, q: Any, k: Any, v: Any) -> np.ndarray:
        inner = points[h] + attention(points[h], k[:LENGTH], v[:LENGTH])
        inner = normalized(inner, ours.first_norm)
        block = normalized(inner + np.maximum(inner @ W.T + b, 0), ours.last_norm)
        return attention(q, block, block)

    torch.testing.assert_close(ours(q, k, v, MASK), each_head(one, q, k, v))


@pytest.mark.parametrize("kind", ["luna", "isab"])
def test_the_order_of_the_keys_is_no_matter_and_that_of_the_queries_is_kept(kind: str) -> None:
    ours = with_random_weights(kernel(kind, points=5))
    q, k, v = qkv()
    order = torch.randperm(S)
    torch.testing.assert_close(ours(q, k[:, :, order], v[:, :, order]), ours(q, k, v))
    torch.testing.assert_close(ours(q[:, :, order], k, v), ours(q, k, v)[:, :, order])
