"""A linear map or a convolution as two thin ones: the LED of thesis 3.1.1, and its convolution.

A map is a matrix from its inputs I (of a convolution: channels times the kernel's places) to its
outputs O; of rank R it is two maps with R numbers between them.
"""

from typing import Any

from torch import Tensor, nn

from asr.errors import ConfigError
from asr.model.projection import LowRank

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def factorable(network: nn.Module) -> dict[str, nn.Module]:
    """The linear maps, LEDs and convolutions (without groups) below `network`, by name.

    Subclasses are left alone: they, or who holds them, may use their weight in another way.
    """
    found: dict[str, nn.Module] = {}
    for name, module in network.named_modules(remove_duplicate=False):
        inside = any(name.startswith(f"{led}.") for led, m in found.items() if type(m) is LowRank)
        is_convolution = type(module) in _CONVOLUTIONS and module.groups == 1
        if is_convolution or (type(module) in (nn.Linear, LowRank) and not inside):
            found[name] = module
    return found


def matrix(module: nn.Module) -> Tensor:
    """The weight (O, I) of a factorable module."""
    assert isinstance(module.weight, Tensor)
    return module.weight.detach().flatten(1)


def thin(module: nn.Module, rank: int) -> nn.Module:
    """Two maps of this rank in the shape of a factorable one, with new weights."""
    if isinstance(module, LowRank):
        module = nn.Linear(module.E.in_features, module.D.out_features)
    if isinstance(module, nn.Linear):
        has_bias = module.bias is not None
        return LowRank(module.in_features, module.out_features, rank, has_bias)
    assert isinstance(module, _CONVOLUTIONS)
    kind: Any = type(module)  # of one, two or three axes
    first = kind(
        module.in_channels, rank, module.kernel_size, module.stride, module.padding,
        module.dilation, bias=False, padding_mode=module.padding_mode,
    )  # fmt: skip
    return nn.Sequential(first, kind(rank, module.out_channels, 1, bias=module.bias is not None))


def ends(unit: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The two maps of what `thin` made, in the order of the data's way."""
    if isinstance(unit, LowRank):
        return unit.E, unit.D
    first, second = unit.children()
    return first, second


def make_thin(network: nn.Module, ranks: dict[str, int]) -> None:
    """Give modules of a network their rank, by name, in the order given; weights are new.

    Raises ConfigError where the network has no such module.
    """
    for name, rank in ranks.items():
        module = factorable(network).get(name)
        if module is None:
            raise ConfigError(
                f"model.ranks: the network has no linear map or convolution {name}: remove it"
            )
        network.set_submodule(name, thin(module, rank))
