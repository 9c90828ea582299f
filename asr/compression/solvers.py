"""Factorizations W ≈ second (O, R) · first (R, I) of a weight W (O, I) (Cahyawijaya 2021, 2.3)."""

import warnings
from typing import Literal

import torch
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from torch.nn.functional import pad

Method = Literal["svd", "nmf", "semi_nmf", "random"]
_UPDATES = 200


def svd(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return (R, I) and (O, R) whose product is the nearest of this rank (Eckart & Young 1936).

    The squared error is the sum of the squares of the singular values left out. Each factor takes
    the square roots of the kept ones, so that both have the same scale in training.
    """
    u_OK, s_K, v_KI = torch.linalg.svd(weight, full_matrices=False)
    root_R = s_K[:rank].sqrt()
    return root_R[:, None] * v_KI[:rank], u_OK[:, :rank] * root_R


def nmf(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return (R, I) and (O, R): W as the difference of two products of non-negative factors.

    The positive and the negative part of W each get half the rank. They are factorized by
    multiplicative updates (Lee & Seung 2001; Cahyawijaya 2021, eq. 2.10 and 2.11). The factor
    (O, R) of the negative part is negated.
    """
    parts = [(sign, (sign * weight).clamp(min=0)) for sign in (1.0, -1.0)]
    parts = [(sign, part) for sign, part in parts if part.any()]
    if not parts:
        return weight.new_zeros(rank, weight.shape[1]), weight.new_zeros(len(weight), rank)
    firsts, seconds = [weight.new_zeros(0, weight.shape[1])], [weight.new_zeros(len(weight), 0)]
    for i, (sign, part) in enumerate(parts):
        share = (rank + len(parts) - 1 - i) // len(parts)
        # With a rank above that of the part, the start would divide zeros by zeros.
        share = min(share, int(torch.linalg.matrix_rank(part)))
        if share:
            first, second = non_negative(part, share)
            firsts.append(first)
            seconds.append(sign * second)
    first, second = torch.cat(firsts), torch.cat(seconds, 1)
    unused = rank - len(first)
    return pad(first, (0, 0, 0, unused)), pad(second, (0, unused))


def non_negative(weight: Tensor, rank: int, updates: int = _UPDATES) -> tuple[Tensor, Tensor]:
    """Return non-negative (R, I) and (O, R) of a non-negative matrix (Lee & Seung 2001)."""
    # Multiplicative updates never change a zero: `nndsvda` starts without zeros, not at random.
    model = NMF(rank, init="nndsvda", solver="mu", max_iter=updates, tol=0, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        second = model.fit_transform(weight.cpu().numpy())
    return torch.tensor(model.components_).to(weight), torch.tensor(second).to(weight)


def semi_nmf(weight: Tensor, rank: int, updates: int = _UPDATES) -> tuple[Tensor, Tensor]:
    """Return (R, I) of either sign and (O, R) non-negative (semi-NMF, Ding et al. 2010, sec. 3).

    The first factor is the least-squares solution for the second one. The second factor's update
    never increases the error.
    """
    u_OK, s_K, _ = torch.linalg.svd(weight, full_matrices=False)
    second = (u_OK[:, :rank] * s_K[:rank].sqrt()).abs() + 1e-3 * s_K[0].sqrt()
    for _ in range(updates):
        first = torch.linalg.lstsq(second, weight).solution
        cross, gram = weight @ first.t(), first @ first.t()
        over = cross.clamp(min=0) + second @ (-gram).clamp(min=0)
        under = (-cross).clamp(min=0) + second @ gram.clamp(min=0)
        second = second * (over / under.clamp(min=1e-300)).sqrt()
    return torch.linalg.lstsq(second, weight).solution, second


SOLVERS = {"svd": svd, "nmf": nmf, "semi_nmf": semi_nmf}
