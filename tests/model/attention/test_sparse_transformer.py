"""Compare both patterns of the Sparse Transformer with masks of full attention."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from asr.model.frontend import padding_mask
from tests.model.attention.oracle import attention, each_head, full, kernel, node, qkv


def near_or_far(kind: str, n: int, stride: int, summary: int) -> np.ndarray:
    """Return which of n keys each of n queries attends to, both sides."""
    i, j = np.indices((n, n))
    if kind == "sparse_strided":
        return (abs(i - j) <= stride) | ((i - j) % stride == 0)
    return (i // stride == j // stride) | (j % stride >= stride - summary)


@pytest.mark.parametrize("kind", ["sparse_strided", "sparse_fixed"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("stride", "summary"), [(1, 1), (3, 1), (4, 2), (5, 5), (40, 3)])
@pytest.mark.parametrize("length", [23, 14])
def test_it_is_a_mask_of_full_attention(
    kind: str, causal: bool, stride: int, summary: int, length: int
) -> None:
    numbers = {"stride": stride} | ({"summary": summary} if kind == "sparse_fixed" else {})
    ours = kernel(kind, causal, **numbers)
    q, k, v = qkv(23)

    def one(_: int, q: Any, k: Any, v: Any) -> np.ndarray:
        seen = near_or_far(kind, length, stride, summary)
        seen = np.tril(seen) if causal else seen
        return attention(q[:length], k[:length], v[:length], seen)

    found = ours(q, k, v, padding_mask(torch.tensor([length, length]), 23))
    torch.testing.assert_close(found[:, :, :length], each_head(one, q, k, v))
    assert found.isfinite().all()


@pytest.mark.parametrize("kind", ["sparse_strided", "sparse_fixed"])
def test_a_stride_as_long_as_the_input_is_full_attention(kind: str) -> None:
    q, k, v = qkv()
    torch.testing.assert_close(kernel(kind, stride=11)(q, k, v), full(q, k, v))


def test_a_summary_longer_than_its_block_is_refused() -> None:
    with pytest.raises(ValidationError, match="summary 5 is more than the stride 4: make it 4"):
        node("sparse_fixed", stride=4, summary=5)
