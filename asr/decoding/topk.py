"""Find the k largest of many numbers faster than torch.topk does on a CPU.

Legend: R rows, V numbers in a row, G groups.
"""

import numpy as np
import torch
from torch import Tensor

_GROUP = 16
_FEW = 4  # rows, for which torch is as fast


def top_k(scores_RV: Tensor, k: int) -> Tensor:
    """Return the indices (R, k) of the k largest numbers of each row, largest first."""
    R, V = scores_RV.shape
    n_groups = V // _GROUP
    is_plain = scores_RV.device.type == "cpu" and scores_RV.dtype == torch.float32
    if not is_plain or R <= _FEW or n_groups < 2 * k:
        return scores_RV.topk(k).indices
    x_RV = scores_RV.numpy()
    largest_RG = x_RV[:, : n_groups * _GROUP].reshape(R, _GROUP, n_groups).max(1)
    # At least k numbers reach this floor: the maxima of k groups.
    floor_R = np.partition(largest_RG, -k)[:, -k]
    flat = np.flatnonzero(x_RV >= floor_R[:, None])
    rows = flat // V
    counts_R = np.bincount(rows, minlength=R)
    columns = np.arange(len(flat)) - (counts_R.cumsum() - counts_R)[rows]
    few = np.full((R, counts_R.max()), -np.inf, dtype=np.float32)
    indices = np.zeros(few.shape, dtype=np.int64)
    few[rows, columns] = x_RV.reshape(-1)[flat]
    indices[rows, columns] = flat - rows * V
    order = torch.from_numpy(few).topk(k).indices
    return torch.from_numpy(indices).gather(1, order)
