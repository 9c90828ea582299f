"""Weights in 8 bits on the disk: a quarter of the bytes; they are float32 again when they are read.

Each row of a matrix or kernel, the weights of one output, has its own scale: w ≈ scale · q with
q from -127 to 127 (symmetric quantization, of weights alone). An error is at most half a scale.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from asr.errors import BundleError

_SCALE = ".int8_scale"
_FEWEST = 512  # weights of a tensor; smaller ones stay as they are, and so do biases and norms
_LARGEST = 127


def to_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with larger float ones (O, …) in int8, each with a tensor of its scales (O,).

    Tensors that `from_int8` returned become the same int8 tensors again.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or tensor.numel() < _FEWEST or not tensor.is_floating_point():
            found[name] = tensor
            continue
        rows = tensor.detach().float().flatten(1)
        scale_O = rows.abs().amax(1) / _LARGEST
        scale_O = scale_O.where(scale_O > 0, torch.ones_like(scale_O))
        found[name] = (rows / scale_O[:, None]).round().to(torch.int8).view(tensor.shape)
        found[name + _SCALE] = scale_O
    return found


def from_int8(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the float32 tensors of a file `path`. Raises BundleError where scales do not fit."""
    found = {name: tensor for name, tensor in tensors.items() if not _is_scale(name, tensors)}
    for name in found:
        scale_O, q = tensors.get(name + _SCALE), tensors[name]
        if scale_O is None:
            continue
        if q.dtype != torch.int8 or q.ndim < 2 or scale_O.shape != q.shape[:1]:
            raise BundleError(f"{path}: the scales of tensor {name} do not fit it: copy it again")
        found[name] = (q.flatten(1) * scale_O.float()[:, None]).view(q.shape)
    return found


def without_scales(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that tensors have after `from_int8`."""
    return {name: shape for name, shape in shapes.items() if not _is_scale(name, shapes)}


def _is_scale(name: str, names: Mapping[str, object]) -> bool:
    return name.endswith(_SCALE) and name.removesuffix(_SCALE) in names
