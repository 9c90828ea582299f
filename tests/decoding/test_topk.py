"""Compare the k largest with torch.topk."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.decoding.topk import top_k


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(20, 3000), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_they_are_the_indices_of_the_largest(seed, rows, width, k) -> None:
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, width, generator=rng)
    scores[torch.rand(rows, width, generator=rng) < 0.1] = -torch.inf
    scores = (scores * 20).round() / 20  # ties
    indices = top_k(scores, k)
    assert torch.equal(scores.gather(1, indices), scores.topk(k).values)
    assert all(len(set(row)) == k for row in indices.tolist())


def test_rows_that_are_all_impossible() -> None:
    scores = torch.full((2, 1000), -torch.inf)
    scores[0, 7] = 1.0
    indices = top_k(scores, 3)
    assert indices[0, 0] == 7
    assert all(len(set(row)) == 3 for row in indices.tolist())
