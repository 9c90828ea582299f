"""Compile linear maps for decoding steps: maps of the same input are stacked, perhaps in int8.

Legend: R rows, I inputs, O outputs.
"""

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from asr.errors import ConfigError
from asr.model.projection import LowRank

# Weights of a product in int8, at least: it quantizes its input first, which costs more than a
# smaller product.
_INT8_WEIGHTS = 1 << 17
# Backends in order of preference; fbgemm is for x86 only.
_INT8_ENGINES = ("fbgemm", "qnnpack")


class Scratch:
    """Buffers that all steps reuse: new memory would cost page faults in each step."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}
        self._views: dict[tuple[object, ...], Tensor] = {}
        self._with_one: dict[tuple[str, int, int], tuple[Tensor, Tensor]] = {}

    def with_one(self, slot: str, rows: int, width: int) -> tuple[Tensor, Tensor]:
        """Return a tensor (rows, width), and the same with a column of ones at its end."""
        both = self._with_one.get((slot, rows, width))
        if both is None:
            whole = self._like.new_ones(rows, width + 1)
            both = self._with_one[slot, rows, width] = whole[:, :width], whole
        return both

    def __call__(self, slot: str, *shape: int) -> Tensor:
        """Return a tensor of this shape, which takes the memory of the slot's former one."""
        key = (slot, *shape)
        view = self._views.get(key)
        if view is None:
            size = math.prod(shape)
            buffer = self._buffers.get(slot)
            if buffer is None or buffer.numel() < size:
                buffer = self._buffers[slot] = self._like.new_empty(2 * size)
                self._views = {k: v for k, v in self._views.items() if k[0] != slot}
            view = self._views[key] = buffer[:size].view(shape)
        return view


class Map:
    """A linear map of rows to `n_out` outputs."""

    n_out: int

    def __call__(self, x_RI: Tensor, scratch: Scratch, slot: str) -> Tensor:
        """Map (R, I) to (R, O), which may be in the slot."""
        raise NotImplementedError

    def add_to(self, total_RO: Tensor, x_RI: Tensor, scratch: Scratch) -> None:
        """Add the outputs to `total_RO` in place."""
        total_RO.add_(self(x_RI, scratch, "added"))


class Product(Map):
    """x W + b, with W in the layout that the product reads."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self.weight_IO = weight_OI.detach().t().contiguous()
        self.bias_O = None if bias_O is None else bias_O.detach()
        self.n_out = len(weight_OI)

    def __call__(self, x_RI: Tensor, scratch: Scratch, slot: str) -> Tensor:
        """Map (R, I) to (R, O) in the slot."""
        return self.into(scratch(slot, x_RI.shape[0], self.n_out), x_RI)

    def into(self, y_RO: Tensor, x_RI: Tensor) -> Tensor:
        """Write the outputs to `y_RO`."""
        if self.bias_O is None:
            return torch.mm(x_RI, self.weight_IO, out=y_RO)
        return torch.addmm(self.bias_O, x_RI, self.weight_IO, out=y_RO)

    def add_to(self, total_RO: Tensor, x_RI: Tensor, scratch: Scratch) -> None:  # noqa: ARG002
        """Add the outputs to `total_RO` in the product itself."""
        total_RO.addmm_(x_RI, self.weight_IO)
        if self.bias_O is not None:
            total_RO.add_(self.bias_O)


class Int8Product(Map):
    """A map with 8-bit weights and a scale for each output; x is quantized in each step."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        torch.backends.quantized.engine = engine = _int8_engine()
        self._reduce_range = engine == "fbgemm"  # its sums could overflow
        scale_O = (weight_OI.abs().amax(1) / 127).clamp(min=1e-12)
        zeros_O = torch.zeros(len(scale_O), dtype=torch.long)
        with warnings.catch_warnings():  # torch's successor needs a compiler, or another package
            warnings.simplefilter("ignore", UserWarning)
            weight = torch.quantize_per_channel(weight_OI, scale_O, zeros_O, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(weight, bias_O)
        self.n_out = len(weight_OI)

    def __call__(self, x_RI: Tensor, scratch: Scratch, slot: str) -> Tensor:  # noqa: ARG002
        """Map (R, I) to (R, O)."""
        return self.map(x_RI)

    def map(self, x: Tensor) -> Tensor:
        """Map (..., I) to (..., O)."""
        linear = torch.ops.quantized.linear_dynamic
        y: Tensor = linear(x, self._packed, self._reduce_range)
        return y


def _int8_engine() -> str:
    found = [e for e in _INT8_ENGINES if e in torch.backends.quantized.supported_engines]
    if not found:
        raise ConfigError(
            f"int8: this torch has none of {', '.join(_INT8_ENGINES)} for this processor: leave "
            "--int8 out"
        )
    return found[0]


class Led(Map):
    """(x E) D + b, with b as the last row of D, for which x E has a 1 at its end."""

    def __init__(self, weight_RI: Tensor, weight_OR: Tensor, bias_O: Tensor) -> None:
        self._E = weight_RI.detach().t().contiguous()
        self._D = torch.cat((weight_OR.detach().t(), bias_O.detach()[None]))
        self._rank, self.n_out = len(weight_RI), len(weight_OR)

    def _inner(self, x_RI: Tensor, scratch: Scratch) -> Tensor:
        inner, with_one = scratch.with_one("inner", x_RI.shape[0], self._rank)
        torch.mm(x_RI, self._E, out=inner)
        return with_one

    def __call__(self, x_RI: Tensor, scratch: Scratch, slot: str) -> Tensor:
        """Map (R, I) to (R, O) in the slot."""
        y_RO = scratch(slot, x_RI.shape[0], self.n_out)
        return torch.mm(self._inner(x_RI, scratch), self._D, out=y_RO)

    def add_to(self, total_RO: Tensor, x_RI: Tensor, scratch: Scratch) -> None:
        """Add the outputs to `total_RO` in the product itself."""
        total_RO.addmm_(self._inner(x_RI, scratch), self._D)


class _Leds(Map):
    """LEDs of the same input: one product with all E, then one for each D, outputs side by side."""

    def __init__(self, leds: Sequence[LowRank], int8: bool) -> None:
        self._inner = _product([led.E for led in leds], int8)
        self._outer = [Product(led.D.weight, led.D.bias) for led in leds]
        self._inputs = _columns([led.E.out_features for led in leds])
        self._outputs = _columns([led.D.out_features for led in leds])
        self.n_out = self._outputs[-1].stop

    def __call__(self, x_RI: Tensor, scratch: Scratch, slot: str) -> Tensor:
        inner, y_RO = self._inner(x_RI, scratch, "inner"), scratch(slot, x_RI.shape[0], self.n_out)
        for product, inputs, outputs in zip(self._outer, self._inputs, self._outputs, strict=True):
            product.into(y_RO[:, outputs], inner[:, inputs])
        return y_RO


def _columns(widths: list[int]) -> list[slice]:
    ends = [sum(widths[:i]) for i in range(len(widths) + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


def compile_maps(maps: Sequence[nn.Module], int8: bool = False) -> Map:
    """Return projections of the same input as one map with their outputs side by side."""
    leds = [each for each in maps if isinstance(each, LowRank) and _is_cheaper(each)]
    if len(leds) < len(maps):
        return _product(maps, int8)
    if len(leds) == 1 and not (int8 and leds[0].E.weight.numel() >= _INT8_WEIGHTS):
        return Led(leds[0].E.weight, leds[0].D.weight, leds[0].D.bias)
    return _Leds(leds, int8)


def _is_cheaper(led: LowRank) -> bool:
    """Tell whether the two products cost less than one product with the matrix E D."""
    rank, n_in, n_out = led.E.out_features, led.E.in_features, led.D.out_features
    return rank * (n_in + n_out) < n_in * n_out


def _product(maps: Sequence[nn.Module], int8: bool) -> Map:
    """Return dense maps as one product; an LED is multiplied out."""
    numbers: list[tuple[Any, Any]] = [(each.weight, each.bias) for each in maps]
    weight_OI, bias_O = torch.cat([weight.detach() for weight, _ in numbers]), None
    if any(bias is not None for _, bias in numbers):
        biases = [w.new_zeros(len(w)) if b is None else b.detach() for w, b in numbers]
        bias_O = torch.cat(biases)
    is_int8 = int8 and weight_OI.numel() >= _INT8_WEIGHTS
    return Int8Product(weight_OI, bias_O) if is_int8 else Product(weight_OI, bias_O)
