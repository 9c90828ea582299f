"""Compute linear maps and the front end's convolutions in 8 bits, on processors that do so faster.

Weights have a scale for each output. Activations are rounded to the 256 values of a grid between
the least and the largest number of each input, so that no recordings are needed to find ranges
(dynamic quantization). Measured on a core with AVX-512 VNNI: dense maps take 0.3 to 0.4 of the
time. The thin maps of a small LRT take as long as before or longer, so they stay.
Legend: B batch, C channels, T frames, F frequency bins.
"""

import torch
from torch import Tensor, nn

from asr.model.inference.linear import Int8Product

_FEWEST = 1 << 16  # weights of a linear map
_LARGEST, _LARGEST_WEIGHT = 255, 127


class Int8Linear(nn.Module):
    """A linear map with 8-bit weights."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach()
        self._product = Int8Product(linear.weight.detach(), bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d_in) to (..., d_out)."""
        return self._product.map(x)


class Int8Conv2d(nn.Module):
    """A convolution with 8-bit weights."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        weight = conv.weight.detach()
        scale_O = weight.flatten(1).abs().amax(1).clamp(min=1e-12) / _LARGEST_WEIGHT
        q = (weight / scale_O[:, None, None, None]).round().to(torch.int8)
        self._scale_O, self._zero_O = scale_O, torch.zeros(len(q), dtype=torch.long)
        self._bias = None if conv.bias is None else conv.bias.detach()
        self._sizes = (list(conv.stride), list(conv.padding), list(conv.dilation), conv.groups)
        prepack = torch.ops.onednn.qconv_prepack
        self._packed = prepack(q, scale_O, 1.0, 0, *self._sizes, None)

    def forward(self, x_BCTF: Tensor) -> Tensor:
        """Map (B, C, T, F) to (B, C, T, F)."""
        low, high = (float(end) for end in torch.aminmax(x_BCTF))
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / _LARGEST or 1.0
        zero = round(-low / scale)
        # The conversion to bytes drops fractions, so a half is added.
        rounded_BCTF = x_BCTF.mul(1 / scale).add_(zero + 0.5)
        bytes_BCTF = rounded_BCTF.clamp_(max=_LARGEST).to(torch.uint8)
        y_BCTF: Tensor = torch.ops.onednn.qconv2d_pointwise(
            bytes_BCTF, scale, zero, self._packed, self._scale_O, self._zero_O, self._bias,
            *self._sizes, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return y_BCTF


def in_8_bits(model: nn.Module) -> None:
    """Replace the larger linear maps and the convolutions before the decoder, in place.

    Convolutions need a processor with VNNI: elsewhere their sums could overflow. A convolution of a
    single channel stays, because rounding features costs more accuracy than all else.
    """
    for name, module in list(model.named_modules()):
        if name.startswith("decoder."):  # its steps have their own form
            continue
        if type(module) is nn.Linear and module.weight.numel() >= _FEWEST:
            model.set_submodule(name, Int8Linear(module))
        elif isinstance(module, nn.Conv2d) and _can_convolve() and _is_full(module):
            model.set_submodule(name, Int8Conv2d(module))


def _is_full(conv: nn.Conv2d) -> bool:
    return conv.in_channels > 1 and conv.groups == 1


def _can_convolve() -> bool:
    return torch.backends.mkldnn.is_available() and torch.cpu._is_vnni_supported()
