"""Compare Sinkhorn attention with a loop over blocks."""

from typing import Any

import numpy as np
import pytest
import torch

from asr.errors import DataError
from asr.model.frontend import padding_mask
from tests.model.attention.oracle import (
    B,
    S,
    attention,
    each_head,
    kernel,
    node,
    qkv,
    with_random_weights,
)


def normalized(scores: np.ndarray) -> np.ndarray:
    R = np.exp(scores / 0.75)
    for _ in range(8):
        R = R / R.sum(1, keepdims=True)
        R = R / R.sum(0, keepdims=True)
    return R


@pytest.mark.parametrize("length", [11, 8, 7, 3, 1])
def test_a_block_attends_to_itself_and_to_the_block_sorted_to_its_place(length: int) -> None:
    C, n_blocks = 3, -(-length // 3)
    ours = with_random_weights(kernel("sinkhorn", block=C, length=40))
    inner, bias, outer = (x.detach().numpy() for x in ours.parameters())

    def one(h: int, q: Any, k: Any, v: Any) -> np.ndarray:
        def blocks(x: Any) -> np.ndarray:
            whole = np.zeros((n_blocks * C, x.shape[1]))
            whole[:length] = x[:length]
            return whole.reshape(n_blocks, C, -1)

        kb, vb = blocks(k), blocks(v)
        scores = np.maximum(kb.sum(1) @ inner[h] + bias[h], 0) @ outer[h][:, :n_blocks]
        R = normalized(scores)
        rows = []
        for n in range(n_blocks):
            end, held = min(length, n * C + C), min(C, length)
            sorted_k, sorted_v = (
                sum(R[n, m] * xb[m] for m in range(n_blocks))[:held] for xb in (kb, vb)
            )
            keys = np.concatenate((k[n * C : end], sorted_k))
            values = np.concatenate((v[n * C : end], sorted_v))
            rows.append(attention(q[n * C : end], keys, values))
        return np.concatenate(rows)

    q, k, v = qkv()
    found = ours(q, k, v, padding_mask(torch.tensor([length] * B), S))
    torch.testing.assert_close(found[:, :, :length], each_head(one, q, k, v))
    assert found.isfinite().all()


def test_the_permutation_is_doubly_stochastic_and_follows_its_scores() -> None:
    ours = with_random_weights(kernel("sinkhorn", block=1, length=3))
    with torch.no_grad():
        ours.inner_HKK.copy_(torch.eye(4))
        ours.bias_H1K.zero_()
        # Block n holds the unit vector n; block n + 1 comes to its place.
        ours.outer_HKN.copy_(2 * torch.eye(4)[:, [2, 0, 1]])
    sums = torch.eye(4, dtype=torch.float64)[:3].expand(2, 2, 3, 4)
    valid = torch.ones(2, 1, 3, dtype=torch.bool)
    R = ours._permutation(sums, valid)
    torch.testing.assert_close(R.sum(2), torch.ones(2, 2, 3).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(R.sum(3), torch.ones(2, 2, 3).double(), atol=1e-4, rtol=0)
    scores = (sums[0, 0] @ ours.outer_HKN[0]).detach().numpy()
    torch.testing.assert_close(R[0, 0], torch.from_numpy(normalized(scores)))
    assert R[0, 0].argmax(1).tolist() == [1, 2, 0]
    ours.train()
    assert not torch.allclose(ours._permutation(sums, valid), R), "training adds noise"


def test_what_is_longer_than_its_places_is_refused() -> None:
    with pytest.raises(DataError, match=r"11 encoder steps .*attention\.length 10: cut it, or"):
        kernel("sinkhorn", length=10, block=2)(*qkv())
    assert node("sinkhorn", length=10).longest == 10
