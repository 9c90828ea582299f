"""A linear map or a convolution as two thin ones: the LED of thesis 3.1.1, and its convolution.

A map is a matrix from its inputs I (of a convolution: channels times the kernel's places) to its
outputs O; of rank R it is two maps with R numbers between them. A convolution in groups has a
matrix and R numbers for each of its groups G.
"""

from collections import Counter
from typing import Any

from torch import Tensor, nn

from asr.errors import ConfigError
from asr.model.projection import LowRank

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def factorable(network: nn.Module) -> dict[str, nn.Module]:
    """The linear maps, LEDs and convolutions below `network`, by name.

    Subclasses are left alone: they, or who holds them, may use their weight in another way. So are
    tied modules, whose weight another holds too (an output's that is the embedding's): the weight
    would stay beside its factors.
    """
    parts = network.modules()
    holders = Counter(p for part in parts for p in part.parameters(recurse=False))
    found: dict[str, nn.Module] = {}
    for name, module in network.named_modules(remove_duplicate=False):
        leds = [f"{led}.".lstrip(".") for led, m in found.items() if type(m) is LowRank]
        inside = any(name.startswith(led) for led in leds)
        if type(module) in (nn.Linear, LowRank, *_CONVOLUTIONS) and not inside:
            found[name] = module
    return {n: m for n, m in found.items() if all(holders[p] == 1 for p in m.parameters())}


def weight_matrices(module: nn.Module) -> Tensor:
    """The weights (G, O, I) of a factorable module; what is no convolution is one group."""
    assert isinstance(module.weight, Tensor)
    groups = module.groups if isinstance(module, _CONVOLUTIONS) else 1
    return module.weight.detach().flatten(1).unflatten(0, (groups, -1))


def low_rank_pair(module: nn.Module, rank: int) -> nn.Module:
    """Two maps of this rank in the shape of a factorable one, with new weights."""
    if isinstance(module, LowRank):
        module = nn.Linear(module.E.in_features, module.D.out_features)
    if isinstance(module, nn.Linear):
        has_bias = module.bias is not None
        return LowRank(module.in_features, module.out_features, rank, has_bias)
    assert isinstance(module, _CONVOLUTIONS)
    kind: Any = type(module)  # of one, two or three axes
    groups, has_bias = module.groups, module.bias is not None
    first = kind(
        module.in_channels, rank * groups, module.kernel_size, module.stride, module.padding,
        module.dilation, groups, bias=False, padding_mode=module.padding_mode,
    )  # fmt: skip
    second = kind(rank * groups, module.out_channels, 1, groups=groups, bias=has_bias)
    return nn.Sequential(first, second)


def factors_of(unit: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The two maps of what `thin` made, in the order of the data's way."""
    if isinstance(unit, LowRank):
        return unit.E, unit.D
    first, second = unit.children()
    return first, second


def apply_ranks(network: nn.Module, ranks: dict[str, int]) -> None:
    """Give modules of a network their rank, by name, in the order given; weights are new.

    Raises ConfigError where the network has no such module.
    """
    for name, rank in ranks.items():
        module = factorable(network).get(name)
        if module is None:
            raise ConfigError(
                f"model.ranks: the network has no linear map or convolution {name}: remove it"
            )
        network.set_submodule(name, low_rank_pair(module, rank))
