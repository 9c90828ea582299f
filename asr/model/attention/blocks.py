"""Functions for the kinds of attention that work in blocks of positions.

Legend: B batch, H heads, S positions, N blocks, C positions in a block, X keys of a block, K head
dimension.
"""

from torch import Tensor
from torch.nn.functional import pad

from asr.model.attention.full import attend


def to_blocks(x_BHSK: Tensor, C: int) -> Tensor:
    """Return (B, H, N, C, K); zeros follow the last position."""
    padded: Tensor = pad(x_BHSK, (0, 0, 0, -x_BHSK.shape[2] % C))
    blocks: Tensor = padded.unflatten(2, (-1, C))
    return blocks


def from_blocks(x_BHNCK: Tensor, S: int) -> Tensor:
    """Return (B, H, S, K)."""
    return x_BHNCK.flatten(2, 3)[:, :, :S]


def valid_steps(mask_BS: Tensor, C: int) -> Tensor:
    """Return (B, 1, N, C), True where a step is no padding."""
    return to_blocks(mask_BS[:, None, :, None], C)[..., 0]


def earlier(x: Tensor, by: int) -> Tensor:
    """Return (B, H, N, …) with block n - by at place n, zeros where there is no such block.

    `by` may be negative: then later blocks move to the front.
    """
    N, sides = x.shape[2], (max(by, 0), max(-by, 0))
    moved: Tensor = pad(x, (*(0, 0) * (x.ndim - 3), *sides))
    return moved[:, :, sides[1] : sides[1] + N]


def attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, p: float) -> Tensor:
    """Attend from (B, H, N, C, K) to the keys (B, H, N, X, K) of each block where `seen` is True.

    `seen` is (B, H or 1, N, C or 1, X). A query that sees no key attends to all keys; its result is
    finite but has no meaning.
    """
    seen = seen | ~seen.any(-1, keepdim=True)
    # Each block is a row of the batch, for torch's fused attention.
    q_rows, k_rows, v_rows, seen = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v, seen))
    found: Tensor = attend(q_rows, k_rows, v_rows, seen, p).unflatten(0, (len(q), -1))
    return found.transpose(1, 2)
