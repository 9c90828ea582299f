"""Factorize linear maps and convolutions into low-rank pairs (Cahyawijaya 2021, sec. 3.1.1).

A map is a matrix from inputs I (for a convolution: channels times kernel size) to outputs O; with
rank R it is a pair of maps with R numbers between them. A grouped convolution has one matrix, and R
numbers, for each of its groups G.
"""

from collections import Counter
from typing import Any

from torch import Tensor, nn

from asr.errors import ConfigError
from asr.model.conv2d import Conv2d
from asr.model.projection import LowRank

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, Conv2d)


def factorable(network: nn.Module) -> dict[str, nn.Module]:
    """Return the linear maps, LEDs and convolutions of a network by name.

    Other subclasses are excluded, since they may use their weight in another way. So are modules
    with tied weights (such as an output projection and an embedding): the weight would remain.
    Depthwise convolutions are excluded too: with one input for each output, no rank is lower.
    """
    parts = network.modules()
    holders = Counter(p for part in parts for p in part.parameters(recurse=False))
    found: dict[str, nn.Module] = {}
    for name, module in network.named_modules(remove_duplicate=False):
        leds = [f"{led}.".lstrip(".") for led, m in found.items() if type(m) is LowRank]
        inside = any(name.startswith(led) for led in leds)
        if type(module) in (nn.Linear, LowRank, *_CONVOLUTIONS) and not inside:
            found[name] = module
    return {
        name: module
        for name, module in found.items()
        if all(holders[p] == 1 for p in module.parameters()) and not _is_depthwise(module)
    }


def _is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, _CONVOLUTIONS) and module.groups == module.in_channels > 1


def weight_matrices(module: nn.Module) -> Tensor:
    """Return the weights (G, O, I) of a factorable module; a linear map is one group."""
    assert isinstance(module.weight, Tensor)
    groups = module.groups if isinstance(module, _CONVOLUTIONS) else 1
    weight_GOI: Tensor = module.weight.detach().flatten(1).unflatten(0, (groups, -1))
    return weight_GOI


def low_rank_pair(module: nn.Module, rank: int) -> nn.Module:
    """Return a pair of maps of this rank in place of a factorable one, with new weights."""
    if isinstance(module, LowRank):
        module = nn.Linear(module.E.in_features, module.D.out_features)
    if isinstance(module, nn.Linear):
        has_bias = module.bias is not None
        return LowRank(module.in_features, module.out_features, rank, has_bias)
    assert isinstance(module, _CONVOLUTIONS)
    kind: Any = type(module)  # with one, two or three axes
    groups, has_bias = module.groups, module.bias is not None
    first = kind(
        module.in_channels, rank * groups, module.kernel_size, module.stride, module.padding,
        module.dilation, groups, bias=False, padding_mode=module.padding_mode,
    )  # fmt: skip
    second = kind(rank * groups, module.out_channels, 1, groups=groups, bias=has_bias)
    return nn.Sequential(first, second)


def factors_of(unit: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the two maps of a low-rank pair in the order in which data pass them."""
    first, second = unit.children()
    return first, second


def apply_ranks(network: nn.Module, ranks: dict[str, int]) -> None:
    """Replace modules of a network, by name, with low-rank pairs that have new weights.

    Raises ConfigError if the network has no such module.
    """
    found = factorable(network)
    for name, rank in ranks.items():
        if name not in found:  # it may be one half of a pair that an earlier name has made
            found = factorable(network)
        module = found.pop(name, None)
        if module is None:
            raise ConfigError(
                f"model.ranks: the network has no linear map or convolution {name}: remove it"
            )
        network.set_submodule(name, low_rank_pair(module, rank))
