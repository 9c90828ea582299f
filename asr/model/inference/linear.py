"""Linear maps as a decoding step uses them: stacked where they read the same, in int8 on request.

Legend: R rows, I inputs, O outputs.
"""

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from asr.errors import ConfigError
from asr.model.projection import LowRank

# A product in int8 quantises its input first, which costs more than a small one takes.
_INT8_WEIGHTS = 1 << 17
# What computes them, the best first: fbgemm is of x86 alone.
_INT8_ENGINES = ("fbgemm", "qnnpack")


class Scratch:
    """Room that steps write to again and again: fresh memory would cost page faults each time."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._held: dict[str, Tensor] = {}
        self._views: dict[tuple[object, ...], Tensor] = {}
        self._with_one: dict[tuple[str, int, int], tuple[Tensor, Tensor]] = {}

    def with_one(self, slot: str, rows: int, width: int) -> tuple[Tensor, Tensor]:
        """A tensor (rows, width), and the same with a column of ones at its end."""
        both = self._with_one.get((slot, rows, width))
        if both is None:
            whole = self._like.new_ones(rows, width + 1)
            both = self._with_one[slot, rows, width] = whole[:, :width], whole
        return both

    def __call__(self, slot: str, *shape: int) -> Tensor:
        """A tensor of this shape; what the slot held before is lost."""
        key = (slot, *shape)
        view = self._views.get(key)
        if view is None:
            size = math.prod(shape)
            held = self._held.get(slot)
            if held is None or len(held) < size:
                held = self._held[slot] = self._like.new_empty(2 * size)
                self._views = {k: v for k, v in self._views.items() if k[0] != slot}
            view = self._views[key] = held[:size].view(shape)
        return view


class Map(Protocol):
    """A linear map of rows, of so many outputs."""

    n_out: int

    def __call__(self, x_RI: Tensor, scratch: Scratch, slot: str) -> Tensor:
        """(R, I) to (R, O), written to the slot."""

    def add_to(self, total_RO: Tensor, x_RI: Tensor, scratch: Scratch) -> None:
        """Add what it makes of x to `total_RO`, in place."""


class Product:
    """x W + b, W as the product reads it."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self.weight_IO = weight_OI.detach().t().contiguous()
        self.bias_O = None if bias_O is None else bias_O.detach()
        self.n_out = len(weight_OI)

    def __call__(self, x_RI: Tensor, scratch: Scratch, slot: str) -> Tensor:
        """(R, I) to (R, O), written to the slot."""
        return self.into(scratch(slot, len(x_RI), self.n_out), x_RI)

    def into(self, y_RO: Tensor, x_RI: Tensor) -> Tensor:
        """(R, I) to (R, O), written to `y_RO`."""
        if self.bias_O is None:
            return torch.mm(x_RI, self.weight_IO, out=y_RO)
        return torch.addmm(self.bias_O, x_RI, self.weight_IO, out=y_RO)

    def add_to(self, total_RO: Tensor, x_RI: Tensor, scratch: Scratch) -> None:  # noqa: ARG002
        """Add what it makes of x to `total_RO`, in place."""
        total_RO.addmm_(x_RI, self.weight_IO)
        if self.bias_O is not None:
            total_RO.add_(self.bias_O)


class _Int8Product:
    """A map with weights of 8 bits, a scale for each output; x is quantised as it comes."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        torch.backends.quantized.engine = engine = _int8_engine()
        self._reduce_range = engine == "fbgemm"  # whose sums could overflow
        scale_O = (weight_OI.detach().abs().amax(1) / 127).clamp(min=1e-12)
        with warnings.catch_warnings():  # torch's successor needs a compiler, or another package
            warnings.simplefilter("ignore", UserWarning)
            quantised = torch.quantize_per_channel(
                weight_OI.detach(), scale_O, torch.zeros(len(scale_O), dtype=torch.long), 0,
                torch.qint8,
            )  # fmt: skip
        self._packed = torch.ops.quantized.linear_prepack(quantised, bias_O)
        self.n_out = len(weight_OI)

    def __call__(self, x_RI: Tensor, scratch: Scratch, slot: str) -> Tensor:  # noqa: ARG002
        return torch.ops.quantized.linear_dynamic(x_RI, self._packed, self._reduce_range)

    def add_to(self, total_RO: Tensor, x_RI: Tensor, scratch: Scratch) -> None:
        total_RO.add_(self(x_RI, scratch, ""))


def _int8_engine() -> str:
    found = [e for e in _INT8_ENGINES if e in torch.backends.quantized.supported_engines]
    if not found:
        raise ConfigError(
            f"int8: this torch has none of {', '.join(_INT8_ENGINES)} for this processor: leave "
            "--int8 out"
        )
    return found[0]


class Led:
    """(x E) D + b, b as the last row of D: what is thin between them has a one at its end."""

    def __init__(self, weight_RI: Tensor, weight_OR: Tensor, bias_O: Tensor) -> None:
        self._E = weight_RI.detach().t().contiguous()
        self._D = torch.cat((weight_OR.detach().t(), bias_O.detach()[None]))
        self._rank, self.n_out = len(weight_RI), len(weight_OR)

    def _inner(self, x_RI: Tensor, scratch: Scratch) -> Tensor:
        thin, with_one = scratch.with_one("thin", len(x_RI), self._rank)
        torch.mm(x_RI, self._E, out=thin)
        return with_one

    def __call__(self, x_RI: Tensor, scratch: Scratch, slot: str) -> Tensor:
        """(R, I) to (R, O), written to the slot."""
        y_RO = scratch(slot, len(x_RI), self.n_out)
        return torch.mm(self._inner(x_RI, scratch), self._D, out=y_RO)

    def add_to(self, total_RO: Tensor, x_RI: Tensor, scratch: Scratch) -> None:
        """Add what it makes of x to `total_RO`, in place."""
        total_RO.addmm_(self._inner(x_RI, scratch), self._D)


class _Leds:
    """LEDs of the same input, their outputs side by side: one thin product, then each its own."""

    def __init__(self, leds: Sequence[LowRank], int8: bool) -> None:
        self._inner = _product([led.E for led in leds], int8)
        self._outer = [Product(led.D.weight, led.D.bias) for led in leds]
        self._thin = _columns([led.E.out_features for led in leds])
        self._wide = _columns([led.D.out_features for led in leds])
        self.n_out = self._wide[-1].stop

    def __call__(self, x_RI: Tensor, scratch: Scratch, slot: str) -> Tensor:
        thin, wide = self._inner(x_RI, scratch, "thin"), scratch(slot, len(x_RI), self.n_out)
        for product, inputs, outputs in zip(self._outer, self._thin, self._wide, strict=True):
            product.into(wide[:, outputs], thin[:, inputs])
        return wide

    def add_to(self, total_RO: Tensor, x_RI: Tensor, scratch: Scratch) -> None:
        thin = self._inner(x_RI, scratch, "thin")
        for product, inputs, outputs in zip(self._outer, self._thin, self._wide, strict=True):
            product.add_to(total_RO[:, outputs], thin[:, inputs], scratch)


def _columns(widths: list[int]) -> list[slice]:
    ends = [sum(widths[:i]) for i in range(len(widths) + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


def compile_maps(maps: Sequence[nn.Module], int8: bool = False) -> Map:
    """Projections of the same input as one map, their outputs side by side."""
    leds = [each for each in maps if isinstance(each, LowRank) and _is_cheaper(each)]
    if len(leds) == len(maps):
        if len(leds) == 1 and not (int8 and leds[0].E.weight.numel() >= _INT8_WEIGHTS):
            led = leds[0]
            return Led(led.E.weight, led.D.weight, led.D.bias)
        return _Leds(leds, int8)
    return _product([_multiplied_out(each) for each in maps], int8)


def _is_cheaper(led: LowRank) -> bool:
    """Whether its two products cost less than the one of its product."""
    rank, n_in, n_out = led.E.out_features, led.E.in_features, led.D.out_features
    return rank * (n_in + n_out) < n_in * n_out


def _multiplied_out(module: nn.Module) -> nn.Linear:
    if isinstance(module, nn.Linear):
        return module
    assert isinstance(module, LowRank)
    return _as_linear(module.product(), module.D.bias)


def _as_linear(weight_OI: Tensor, bias_O: Tensor | None) -> nn.Linear:
    """A layer of these numbers, which no training changes."""
    linear = nn.Linear(weight_OI.shape[1], len(weight_OI), bias_O is not None, device="meta")
    linear.weight = nn.Parameter(weight_OI.detach(), requires_grad=False)
    if bias_O is not None:
        linear.bias = nn.Parameter(bias_O.detach(), requires_grad=False)
    return linear


def _bias(linear: nn.Linear) -> Tensor:
    if linear.bias is None:  # mypy believes that there is always one
        return linear.weight.detach().new_zeros(linear.out_features)
    return linear.bias.detach()


def _product(maps: Sequence[nn.Linear], int8: bool) -> Map:
    weight_OI = torch.cat([each.weight.detach() for each in maps])
    bias_O = None
    if any(each.bias is not None for each in maps):
        bias_O = torch.cat([_bias(each) for each in maps])
    if int8 and weight_OI.numel() >= _INT8_WEIGHTS:
        return _Int8Product(weight_OI, bias_O)
    return Product(weight_OI, bias_O)
