"""Compare BigBird with a mask of full attention."""

from typing import Any

import numpy as np
import pytest
import torch

from asr.model.attention.bigbird import draws
from asr.model.frontend import padding_mask
from tests.model.attention.oracle import H, attention, each_head, full, kernel, qkv


@pytest.mark.parametrize(
    ("block", "n_global", "n_random"), [(2, 1, 2), (3, 0, 0), (3, 0, 1), (1, 2, 3), (5, 9, 1)]
)
@pytest.mark.parametrize("length", [23, 14])
def test_it_is_a_mask_of_full_attention(
    block: int, n_global: int, n_random: int, length: int
) -> None:
    ours = kernel("bigbird", block=block, global_blocks=n_global, random_blocks=n_random)
    q, k, v = qkv(23)
    n_blocks, drawn = -(-length // block), draws(H, 23, n_random, torch.device("cpu"))

    def one(h: int, q: Any, k: Any, v: Any) -> np.ndarray:
        seen = np.zeros((length, length), dtype=bool)
        for i in range(length):
            own = i // block
            picked = {int(u * n_blocks) for u in drawn[h, own].tolist()}
            for j in range(length):
                other = j // block
                near = abs(own - other) <= 1
                seen[i, j] = near or min(own, other) < n_global or other in picked
        return attention(q[:length], k[:length], v[:length], seen)

    found = ours(q, k, v, padding_mask(torch.tensor([length, length]), 23))
    torch.testing.assert_close(found[:, :, :length], each_head(one, q, k, v))
    assert found.isfinite().all()


def test_random_blocks_differ_by_head_and_block_and_are_within_the_utterance() -> None:
    ours = kernel("bigbird", block=2, global_blocks=0, random_blocks=4)
    index, counts = ours.chosen(torch.tensor([40, 7]), 2, 40)
    random = index[..., 3:]
    assert len({tuple(row) for row in random[0].flatten(0, 1).tolist()}) > 70  # of 2 heads, 40 each
    assert random[0].unique().numel() == 40 and random[1].max() == 6
    picked = [set(row[c].tolist()) for row, c in zip(index[1, 0], counts[1, 0], strict=True)]
    assert all(len(p) == c for p, c in zip(picked, counts[1, 0].sum(1).tolist(), strict=True))
    fewer = ours.chosen(torch.tensor([40]), 2, 50)[0]
    torch.testing.assert_close(fewer[0, :, :40, 3:], random[0], atol=0, rtol=0)


def test_its_draws_are_uniform_and_those_of_neighbors_independent() -> None:
    u = draws(4, 1000, 4, torch.device("cpu")).double()
    assert u.min() >= 0 and u.max() < 1
    counts = torch.histc(u, 20)
    assert ((counts - 800).square() / 800).sum() < 45  # chi-squared of 19, p = 0.0007
    for a, b in ((u[:, 1:], u[:, :-1]), (u[1:], u[:-1]), (u[..., 1:], u[..., :-1])):
        assert abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) < 0.03


def test_with_every_block_global_it_is_full_attention() -> None:
    q, k, v = qkv()
    ours = kernel("bigbird", block=2, global_blocks=6, random_blocks=0)
    torch.testing.assert_close(ours(q, k, v), full(q, k, v))
