"""Compare Routing attention with a loop over clusters, its centroids with the mean of a group."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asr.model.attention import end_step, follow_step
from asr.model.frontend import padding_mask
from tests.model.attention.oracle import B, H, K, S, attention, each_head, kernel, qkv


def normalized(x: Any) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("clusters", [1, 3, 5, 30])
@pytest.mark.parametrize("length", [11, 7, 1])
def test_the_nearest_to_a_centroid_attend_to_each_other(clusters: int, length: int) -> None:
    ours = kernel("routing", clusters=clusters)
    centroids, size = ours.centroids_HMK.numpy(), math.ceil(length / clusters)

    def one(h: int, q: Any, k: Any, v: Any) -> np.ndarray:
        q, k, v = normalized(q[:length]), normalized(k[:length]), v[:length]
        results: list[list[np.ndarray]] = [[] for _ in range(length)]
        for centroid in centroids[h]:
            of_q, of_k = (np.argsort(-(x @ centroid), kind="stable")[:size] for x in (q, k))
            for i, row in zip(of_q, attention(q[of_q], k[of_k], v[of_k]), strict=True):
                results[i].append(row)
        return np.stack([np.mean(r, 0) if r else np.zeros(K) for r in results])

    q, k, v = qkv()
    found = ours(q, k, v, padding_mask(torch.tensor([length] * B), S))
    torch.testing.assert_close(found[:, :, :length], each_head(one, q, k, v))
    assert found.isfinite().all()


def test_centroids_move_to_the_means_of_their_groups_in_training_alone() -> None:
    ours = kernel("routing", clusters=3)
    before = ours.centroids_HMK.clone()
    q, k, v = qkv()
    mask = padding_mask(torch.tensor([7, 11]), S)
    ours(q, k, v, mask)
    with torch.no_grad():
        ours.train()(q, k, v, mask)
    follow_step([ours], 0)
    ours(q * math.nan, k, v, mask)  # of a step that is skipped
    follow_step([ours], 1)
    for row in range(B):  # two batches of a step
        ours(*(x[row : row + 1] for x in (q, k, v, mask)))
    assert torch.equal(ours.centroids_HMK, before), "nothing moves before a step ends"
    end_step([ours], lambda sums: 2 * sums)  # of two processes with the same batches
    for h in range(H):
        points = np.concatenate(
            [normalized(x[b, h, :n].numpy()) for x in (q, k) for b, n in ((0, 7), (1, 11))]
        )
        group = (points @ before[h].numpy().T).argmax(1)
        for m in range(3):
            expected = before[h, m].numpy()
            if (group == m).any():
                expected = 0.999 * expected + 0.001 * points[group == m].mean(0)
            torch.testing.assert_close(ours.centroids_HMK[h, m], torch.from_numpy(expected))
    assert set(ours.state_dict()) == {"centroids_HMK"} and not list(ours.parameters())
    assert isinstance(ours, nn.Module)


def test_centroids_find_clusters() -> None:
    torch.manual_seed(0)
    ours = kernel("routing", clusters=2).train()
    centers = torch.tensor([[3.0, -3, 0, 0], [0, 0, 3, -3]], dtype=torch.float64)
    x = centers[torch.arange(40) % 2] + 0.1 * torch.randn(1, 2, 40, 4, dtype=torch.float64)
    ours.centroids_HMK.copy_(ours.centroids_HMK + 0.3 * centers)  # each nearer to one
    for step in range(5000):
        follow_step([ours], step)
        ours._add(((x, ours._nearness(x, torch.ones(1, 40) > 0)),), torch.ones(1, 40) > 0)
        end_step([ours], lambda sums: sums)
    torch.testing.assert_close(ours.centroids_HMK[0], centers, atol=0.1, rtol=0)
