"""Update kernels at each step of training in ways other than by gradients."""

from collections.abc import Callable, Iterable

from torch import Tensor, nn

from asr.model.attention.linear import PerformerAttention
from asr.model.attention.routing import RoutingAttention


def stepped_kernels(network: nn.Module, frozen: Iterable[nn.Module] = ()) -> list[nn.Module]:
    """Return the kernels that `follow_step` and `end_step` update, without those of frozen parts.

    A training finds them only once, because a walk through all modules takes milliseconds.
    """
    kinds = PerformerAttention, RoutingAttention
    left = {module for part in frozen for module in part.modules()}
    return [each for each in network.modules() if isinstance(each, kinds) and each not in left]


def follow_step(modules: Iterable[nn.Module], step: int) -> None:
    """Start a step: use the random features of its number, and empty the sums for centroids."""
    for module in modules:
        if isinstance(module, PerformerAttention):
            module.follow(step)
        elif isinstance(module, RoutingAttention):
            module.start_step()


def end_step(modules: Iterable[nn.Module], sum_up: Callable[[Tensor], Tensor]) -> None:
    """End a step that changed the weights; `sum_up` adds up a tensor over all processes."""
    for module in modules:
        if isinstance(module, RoutingAttention):
            module.end_step(sum_up)
