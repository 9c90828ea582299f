"""Write the numbers of a page: weights rounded to 14 bits, all else as it is.

Each row of a matrix or kernel, the weights of one output, has its own scale: w ≈ scale · q with q
from -8191 to 8191, so an error is at most half a scale. In 8 bits (`asr.runtime.int8`) 3 of 400
texts of the demo differed from those of float32, in 14 bits none.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

BITS = 14
_LARGEST = 2 ** (BITS - 1) - 1
_FEWEST = 512  # weights of a tensor; smaller ones stay as they are, and so do biases and norms

# The type, shape and first byte of each tensor; a rounded one's type is its number of bits.
Table = dict[str, tuple[str | int, list[int], int]]


def pack_weights(tensors: Mapping[str, Tensor]) -> tuple[bytes, Table]:
    """Return the bytes of all tensors, one after another, and a table of where they are.

    A rounded tensor (O, …) is stored as its scales (O,) in float32, then q + 8191 of each weight:
    14 bits after 14 bits, the lowest bit first.
    """
    blob, table = bytearray(), Table()
    for name, tensor in tensors.items():
        blob += bytes(-len(blob) % 8)
        kind, content = _packed(tensor.detach().cpu())
        table[name] = (kind, list(tensor.shape), len(blob))
        blob += content
    return bytes(blob), table


def _packed(tensor: Tensor) -> tuple[str | int, bytes]:
    if tensor.ndim > 1 and tensor.numel() >= _FEWEST and tensor.is_floating_point():
        return BITS, _rounded(tensor.float().flatten(1).numpy())
    # The keys of an n-gram are int64, for which JavaScript's own numbers (float64) suffice.
    kind = "float64" if tensor.dtype == torch.int64 else "float32"
    return kind, tensor.numpy().astype(np.dtype(kind).newbyteorder("<")).tobytes()


def _rounded(rows: np.ndarray) -> bytes:
    scale_O = np.abs(rows).max(1) / np.float32(_LARGEST)
    scale_O = np.where(scale_O > 0, scale_O, np.float32(1)).astype("<f4")
    q = np.rint(rows / scale_O[:, None]).astype(np.int32) + _LARGEST
    bits = np.unpackbits(q.astype("<u2").reshape(-1, 1).view(np.uint8), axis=1, bitorder="little")
    return scale_O.tobytes() + np.packbits(bits[:, :BITS], bitorder="little").tobytes()
