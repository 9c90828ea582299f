"""Definitions in numpy and inputs that the tests of all attentions share.

Legend: B batch, H heads, S positions, K head dimension.
"""

import math
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from asr.model.attention import DecoderAttentionConfig, EncoderAttentionConfig, StateSpaceSystem
from tests.helpers import ENCODER

B, H, S, K = 2, 2, 11, 4
LENGTH = 7  # of S; the rest is padding
MASK = torch.arange(S).expand(B, S) < LENGTH
CAUSAL = [
    "full", "linear", "performer", "sliding_window", "s4d", "sparse_strided", "sparse_fixed",
    "transformer_xl", "compressive", "s4",
]  # fmt: skip
KERNELS = [kind for kind in ENCODER if kind not in ("s4d", "s4", "fnet")]  # without queries


def node(kind: str, causal: bool = False, **numbers: Any) -> Any:
    union: Any = DecoderAttentionConfig if causal else EncoderAttentionConfig
    return TypeAdapter(union).validate_python({"kind": kind, **(numbers or ENCODER[kind])})


def kernel(kind: str, causal: bool = False, **numbers: Any) -> Any:
    torch.manual_seed(3)
    return node(kind, causal, **numbers).build(H, K, causal, 0.0).double().eval()


def qkv(length: int = S, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    return tuple(
        scale * torch.randn(B, H, length, K, generator=rng, dtype=torch.float64) for _ in range(3)
    )


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q: Any, k: Any, v: Any, seen: Any = True) -> np.ndarray:
    """Compute softmax attention of one head in numpy; `seen` (T, S)."""
    q, k, v = (np.asarray(x) for x in (q, k, v))
    return softmax(np.where(seen, q @ k.T / math.sqrt(q.shape[-1]), -np.inf)) @ v


def each_head(function: Any, *tensors: Tensor) -> Tensor:
    """Apply a function of one head, (index, arrays) to an array, to all heads."""
    rows = [
        np.stack([function(h, *(t[b, h].detach().numpy() for t in tensors)) for h in range(H)])
        for b in range(len(tensors[0]))
    ]
    return torch.from_numpy(np.stack(rows))


def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return each_head(lambda _, *x: attention(*x), q, k, v)


def step_by_step(system: StateSpaceSystem, u_BTD: Tensor) -> Tensor:
    """Return what a causal system makes of an input, one position after the other."""
    cache: tuple[Tensor, ...] = ()
    steps = []
    for u_BD in u_BTD.unbind(1):
        y_B1D, cache = system.step(u_BD[:, None], cache)
        steps.append(y_B1D)
    return torch.cat(steps, 1)


def with_random_weights(ours: nn.Module) -> Any:
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    return ours
