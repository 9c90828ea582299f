"""The degrees of sparse maps beside a power law and an Erdős–Rényi graph.

SET is said to evolve a random graph into a scale-free one, whose degrees follow a power law (Mocanu
2018; Brouns 2019, sec. 2.2). A map (d_out, d_in) is a graph of d_in + d_out nodes; the degree of a
node is the number of its weights that are not zero. Legend: K possible degrees, from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# The tail that a power law is fitted to has this share of all nodes at least.
_SMALLEST_TAIL = 0.1
_LARGEST_EXPONENT, _HALVINGS = 100.0, 50


@dataclass(frozen=True)
class DegreeFit:
    """The power law p(k) ∝ k^-exponent that fits the degrees k from `first` best.

    `tail` is the share of the nodes with such degrees. Both distances are the largest difference
    of two cumulative distributions on this tail (Kolmogorov-Smirnov): to the power law, and to the
    random graphs of as many weights. The smaller distance tells the better description.
    """

    mean: float
    largest: int
    exponent: float
    first: int
    tail: float
    power_law_distance: float
    random_distance: float


def fit_degrees(weights: Sequence[Tensor]) -> DegreeFit | None:
    """Fit all degrees of maps (d_out, d_in); None where all nodes have the same degree.

    The exponent is the most likely one, and `first` has the smallest distance (Clauset, Shalizi and
    Newman 2009, sec. 3), with the degrees of a map bounded by its size.
    """
    size = 1 + max(max(weight.shape) for weight in weights)
    counts_K, random_K = (torch.zeros(size, dtype=torch.float64) for _ in range(2))
    for weight in weights:
        for axis in (0, 1):
            degrees = (weight != 0).sum(axis).cpu()
            counts_K += degrees.bincount(minlength=size)
            density = float((weight != 0).double().mean())
            random_K += len(degrees) * _binomial(weight.shape[axis], density, size)
    present = counts_K.nonzero().flatten()
    fits = [
        _fit_tail(counts_K, random_K, first)
        for first in present[:-1].tolist()
        if first and counts_K[first:].sum() >= _SMALLEST_TAIL * counts_K.sum()
    ]
    return min(fits, key=lambda fit: fit.power_law_distance) if fits else None


def _fit_tail(counts_K: Tensor, random_K: Tensor, first: int) -> DegreeFit:
    """Fit the degrees from `first` on; at least two are present."""
    k = torch.arange(len(counts_K), dtype=torch.float64)
    tail_K, logs = counts_K[first:], k[first:].log()
    target = (tail_K * logs).sum() / tail_K.sum()
    low, high = 0.0, _LARGEST_EXPONENT
    for _ in range(_HALVINGS):  # the mean logarithm falls with the exponent
        exponent = (low + high) / 2
        is_too_flat = ((-exponent * logs).softmax(0) * logs).sum() > target
        low, high = (exponent, high) if is_too_flat else (low, exponent)
    return DegreeFit(
        mean=float((counts_K * k).sum() / counts_K.sum()),
        largest=int(counts_K.nonzero().max()),
        exponent=exponent,
        first=first,
        tail=float(tail_K.sum() / counts_K.sum()),
        power_law_distance=_distance(tail_K, (-exponent * logs).softmax(0)),
        random_distance=_distance(tail_K, random_K[first:]),
    )


def _distance(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference of two cumulative distributions, given as any multiples."""
    difference = found / found.sum() - expected / expected.sum()
    return float(difference.cumsum(0).abs().max())


def _binomial(n: int, p: float, size: int) -> Tensor:
    """Return the probabilities of 0 … size - 1 successes in n trials."""
    trials = torch.distributions.Binomial(n, torch.tensor(p, dtype=torch.float64))
    k = torch.arange(n + 1, dtype=torch.float64)
    return torch.nn.functional.pad(trials.log_prob(k).exp(), (0, size - n - 1))
