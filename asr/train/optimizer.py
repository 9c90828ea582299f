"""What of an optimizer step depends on the kind of a weight: learning rate and decay."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from asr.model.projection import LowRank, SetSparse

_WITH_WEIGHT = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d)


def rate_groups(network: nn.Module, trained: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Return Adam's groups of weights by factor of the learning rate, those with 1 first."""
    factors = {p: led.rate for led in _leds(network) for p in (led.E.weight, led.D.weight)}
    groups: dict[float, list[nn.Parameter]] = {1.0: []}
    for weight in trained:
        groups.setdefault(factors.get(weight, 1.0), []).append(weight)
    return [{"params": weights, "lr": factor} for factor, weights in groups.items()]


@torch.no_grad()
def decay(network: nn.Module, amount: float) -> None:
    """Make weights smaller by a gradient step of ½ ‖W‖² (AdamW, Loshchilov and Hutter 2019).

    An LED whose product decays has the gradient of ½ ‖E·D‖² (Khodak 2021, Frobenius decay).
    Biases, normalization and what is frozen stay.
    """
    apart: set[Tensor] = set()
    for led in _leds(network):
        E, D = led.E.weight, led.D.weight
        if led.decays_product and E.requires_grad:
            apart |= {E, D}
            of_E, of_D = D.T @ D @ E, D @ (E @ E.T)
            E.sub_(amount * of_E)
            D.sub_(amount * of_D)
    for weight in _weights(network):
        if weight.requires_grad and weight not in apart:
            weight.mul_(1 - amount)


def _leds(network: nn.Module) -> Iterator[LowRank]:
    return (module for module in network.modules() if isinstance(module, LowRank))


def _weights(network: nn.Module) -> Iterator[Tensor]:
    for module in network.modules():
        if isinstance(module, SetSparse):
            yield module.values
        elif isinstance(module, _WITH_WEIGHT):
            yield module.weight
