"""Test the degree distribution of sparse maps on graphs whose distribution is known."""

import math

import pytest
import torch

from asr.model.degrees import fit_degrees
from asr.model.projection import SetSparse


def hyperbola(n: int) -> torch.Tensor:
    """Return a map with a weight at (i, j) where i · j ≤ n, from 1.

    Node i has n / i weights, so that n / k nodes have k or more: a power law with exponent 2.
    """
    i = torch.arange(1, n + 1)
    return (i[:, None] * i <= n).float()


def test_degrees_of_a_power_law_are_told_from_a_random_graph() -> None:
    fit = fit_degrees([hyperbola(1000)])
    assert fit is not None
    assert fit.exponent == pytest.approx(2.0, abs=0.15) and fit.first < 10
    assert fit.power_law_distance < 0.02 and fit.random_distance > 0.3
    assert fit.largest == 1000
    assert fit.mean == pytest.approx(sum(1000 // i for i in range(1, 1001)) / 1000)


@pytest.mark.parametrize("shape", [(1000, 1000), (300, 1500)])
def test_degrees_of_a_random_graph_are_told_from_a_power_law(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    fit = fit_degrees(
        [SetSparse(*shape, 20.0, 0.3).product(), SetSparse(*shape, 5.0, 0.3).product()]
    )
    assert fit is not None
    assert fit.random_distance < 0.04 and fit.random_distance < fit.power_law_distance
    assert fit.tail >= 0.1


def test_the_exponent_is_the_most_likely_one_and_the_distance_that_of_its_sums() -> None:
    degrees = [1, 1, 1, 1, 1, 2, 2, 3, 5]
    weight = torch.zeros(9, 9)
    for row, degree in enumerate(degrees):
        weight[row, :degree] = 0.1
    fit = fit_degrees([weight])
    assert fit is not None
    nodes = [d for d in degrees + [int(n) for n in weight.count_nonzero(0)] if d >= fit.first]

    def likelihood(exponent: float) -> float:
        total = sum(k**-exponent for k in range(fit.first, 10))
        return sum(-exponent * math.log(d) - math.log(total) for d in nodes)

    best = max((step / 1000 for step in range(10_000)), key=likelihood)
    assert fit.exponent == pytest.approx(best, abs=1e-3)
    total = sum(k**-fit.exponent for k in range(fit.first, 10))
    differences = [
        sum(d <= k for d in nodes) / len(nodes)
        - sum(j**-fit.exponent for j in range(fit.first, k + 1)) / total
        for k in range(fit.first, 10)
    ]
    assert fit.power_law_distance == pytest.approx(max(map(abs, differences)))
    assert fit.tail == pytest.approx(len(nodes) / 18)


def test_where_all_nodes_are_alike_there_is_nothing_to_fit() -> None:
    assert fit_degrees([torch.ones(6, 6)]) is None
    assert fit_degrees([torch.zeros(6, 5)]) is None
