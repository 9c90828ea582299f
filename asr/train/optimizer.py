"""The parts of an optimizer step that depend on the kind of a weight: method, rate and decay.

Legend: N matrices of one size, I inputs, O outputs, R rank.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from asr.config import Config
from asr.errors import ConfigError
from asr.model.projection import LowRank, LowRankConfig, SetSparse
from asr.runtime.devices import has_bfloat16
from asr.training_config import AdamConfig, MuonConfig

_WITH_WEIGHT = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d)
# Those of Vaswani et al. 2017, section 5.3.
_ADAM: dict[str, Any] = {"betas": (0.9, 0.98), "eps": 1e-9, "fused": True}
# Muon's (Jordan 2024): the polynomial A x + B x³ + C x⁵, applied five times, draws x to about 1.
_MOMENTUM, _ITERATIONS, _A, _B, _C = 0.95, 5, 3.4445, -4.7750, 2.0315
_TOGETHER = 1 << 22  # weights, in matrices of one size, that are moved at once


class MuonWithAdam(Adam):
    """One optimizer: Muon for the groups that have a momentum, Adam for the others.

    Both methods are in one optimizer, so that a schedule and a saved state know of a single one.
    torch's own Muon is not used: it always computes in bfloat16, which is many times slower where
    that is emulated.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a saved state. Adam's own method expects a step count in every weight's state."""
        Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change all weights that have a gradient; Muon's weights have no gradient afterwards."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if "momentum" in group:
                self._step_by_muon(group)
        super().step()
        return loss

    def _step_by_muon(self, group: dict[str, Any]) -> None:
        """Move matrices along their orthogonalized momentum, as far as Adam (Liu 2025, eq. 4)."""
        alike = defaultdict[torch.Size, list[Tensor]](list)
        for weight in group["params"]:
            if weight.grad is not None:
                alike[weight.shape].append(weight)
        for shape, weights in alike.items():
            rate = group["lr"] * 0.2 * math.sqrt(max(shape))
            size = max(1, _TOGETHER // shape.numel())
            for start in range(0, len(weights), size):
                self._move(weights[start : start + size], rate, group["momentum"])

    def _move(self, weights: list[Tensor], rate: float, inertia: float) -> None:
        """Move matrices of one size along their momenta."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for weight, gradient in zip(weights, gradients, strict=True):
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(gradient)
        momenta = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - inertia)
        ahead = torch._foreach_lerp(gradients, momenta, inertia)  # as Nesterov's
        moves_NOI = nearest_orthogonal(torch.stack(ahead))
        torch._foreach_add_(weights, moves_NOI.float().unbind(), alpha=-rate)
        for weight in weights:
            weight.grad = None  # Adam leaves it alone


def nearest_orthogonal(matrices_NOI: Tensor) -> Tensor:
    """Return N matrices with the singular vectors of the given ones and singular values of about 1.

    Five Newton-Schulz iterations (Jordan 2024) bring each singular value to 0.7 to 1.2, unless it
    is thousands of times smaller than the largest. Products are in bfloat16 on devices that compute
    faster in it, which is exact enough.
    """
    is_tall = matrices_NOI.shape[1] > matrices_NOI.shape[2]
    device = matrices_NOI.device
    x = matrices_NOI.to(torch.bfloat16 if has_bfloat16(device) else torch.float32)
    x = x.mT if is_tall else x
    x = x / x.flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]
    # The Gram matrix of a wide x is smaller than x, but bfloat16's 8 bits are too few for it.
    is_faster = x.shape[2] >= 2 * x.shape[1] and x.dtype == torch.float32
    x = _drawn_by_gram(x) if is_faster else _drawn(x)
    return x.mT if is_tall else x


def _drawn(x: Tensor) -> Tensor:
    """Return x after all iterations."""
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x


def _drawn_by_gram(x: Tensor) -> Tensor:
    """Return the result of `_drawn` to three digits; it is faster where x is wide.

    An iteration multiplies x by a polynomial of its Gram matrix x xᵀ. The two commute, so that the
    next Gram matrix is polynomial · matrix · polynomial. So x is multiplied by the product of all
    polynomials, once.
    """
    gram = x @ x.mT
    product = factor = _factor(gram)
    for _ in range(_ITERATIONS - 1):
        gram = factor @ gram @ factor
        factor = _factor(gram)
        product = factor @ product
    return product @ x


def _factor(gram: Tensor) -> Tensor:
    """Return the polynomial A + B G + C G² of Gram matrices."""
    factor = torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C)
    factor.diagonal(dim1=1, dim2=2).add_(_A)
    return factor


def build_optimizer(
    config: AdamConfig | MuonConfig, network: nn.Module, trained: Iterable[nn.Parameter]
) -> Adam:
    """Return the optimizer of a recipe; the `lr` of a group is a factor of the learning rate."""
    trained = list(trained)
    if isinstance(config, AdamConfig):
        return Adam(rate_groups(network, trained), **_ADAM)
    matrices = set(_matrices(network))
    factors = {weight for led in _leds(network) for weight in (led.E.weight, led.D.weight)}
    groups = rate_groups(network, [weight for weight in trained if weight not in matrices])
    # E and D both move their product, so each gets half the rate.
    for rate, chosen in (
        (config.rate, matrices - factors),
        (config.rate / 2, matrices & factors),
    ):
        params = [weight for weight in trained if weight in chosen]
        groups.append({"params": params, "lr": rate, "momentum": _MOMENTUM})
    return MuonWithAdam(groups, **_ADAM)


def check_rates(config: Config) -> None:
    """Raise ConfigError where low-rank maps have rates for Adam, but the optimizer is Muon."""
    maps = [config.model.projection, *config.model.projections.values()]
    has_rates = any(isinstance(each, LowRankConfig) and each.rate == "product" for each in maps)
    if has_rates and isinstance(config.training.optimizer, MuonConfig):
        raise ConfigError(
            "projection.rate: product scales Adam's learning rate, and training.optimizer is muon: "
            "leave one of the two out"
        )


def rate_groups(network: nn.Module, trained: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Return Adam's groups of weights by factor of the learning rate, those with 1 first."""
    factors = {p: led.rate for led in _leds(network) for p in (led.E.weight, led.D.weight)}
    groups: dict[float, list[nn.Parameter]] = {1.0: []}
    for weight in trained:
        groups.setdefault(factors.get(weight, 1.0), []).append(weight)
    return [{"params": weights, "lr": factor} for factor, weights in groups.items()]


@torch.no_grad()
def decay(network: nn.Module, amount: float) -> None:
    """Make weights smaller by a gradient step on ½ ‖W‖² (AdamW, Loshchilov and Hutter 2019).

    For an LED whose product decays, the step is on ½ ‖E·D‖² (Khodak 2021, Frobenius decay).
    Biases, normalization and frozen weights stay.
    """
    alike = defaultdict[tuple[torch.Size, torch.Size], list[tuple[Tensor, Tensor]]](list)
    for led in _leds(network):
        E, D = led.E.weight, led.D.weight
        if led.decays_product and E.requires_grad:
            alike[E.shape, D.shape].append((E, D))
    for factors in alike.values():
        of_E, of_D = zip(*factors, strict=True)
        E_NRI, D_NOR = torch.stack(of_E), torch.stack(of_D)
        torch._foreach_add_(of_E, (D_NOR.mT @ D_NOR @ E_NRI).unbind(), alpha=-amount)
        torch._foreach_add_(of_D, (D_NOR @ (E_NRI @ E_NRI.mT)).unbind(), alpha=-amount)
    apart = {weight for factors in alike.values() for pair in factors for weight in pair}
    alone = [each for each in _weights(network) if each.requires_grad and each not in apart]
    if alone:
        torch._foreach_mul_(alone, 1 - amount)


def _matrices(network: nn.Module) -> Iterator[Tensor]:
    """Yield the linear maps of all layers and of the front end, not those from or to tokens."""
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear) and {"layers", "project"} & set(name.split(".")):
            yield module.weight


def _leds(network: nn.Module) -> Iterator[LowRank]:
    return (module for module in network.modules() if isinstance(module, LowRank))


def _weights(network: nn.Module) -> Iterator[Tensor]:
    for module in network.modules():
        if isinstance(module, SetSparse):
            yield module.values
        elif isinstance(module, _WITH_WEIGHT):
            yield module.weight
