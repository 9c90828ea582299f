"""Define what an attention kernel is, and softmax attention over all keys.

Legend: B batch, H heads, T queries, S keys, K head dimension.
"""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from asr.errors import DataError
from asr.model.dropout import dropout
from asr.schema import FrozenModel, Size

# The state of a kernel in decoding, from the positions so far; rows are axis 0 of every tensor.
Cache = tuple[Tensor, ...]
Stepped = tuple[Tensor, Cache]  # the result of a step, and the next cache


def reorder_caches(caches: list[Cache], parents_BW: Tensor) -> list[Cache]:
    """Let hypothesis w of utterance b continue its hypothesis `parents_BW[b, w]`; B · W rows."""
    B, W = parents_BW.shape
    first_B1 = torch.arange(B, device=parents_BW.device)[:, None] * W
    rows = (first_B1 + parents_BW).flatten()
    return [tuple(t[rows] for t in cache) for cache in caches]


def select_caches(caches: list[Cache], n_utterances: int, indices: Tensor) -> list[Cache]:
    """Keep the rows of these utterances only, each of which has the same number of rows."""
    shape = (n_utterances, -1)
    return [tuple(t.unflatten(0, shape)[indices].flatten(0, 1) for t in cache) for cache in caches]


class Kernel(nn.Module):
    """Attention without its projections, so that each kernel works with all of them.

    `attends_to_all_past` marks causal kernels whose cache is all keys and all values and whose
    queries attend to all of them. A kernel without queries or keys gets the unit's input, not
    projected, in place of them.
    """

    attends_to_all_past: ClassVar[bool] = False
    has_queries: ClassVar[bool] = True
    has_keys: ClassVar[bool] = True

    def forward(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor | None = None
    ) -> Tensor:
        """Attend to the keys where `mask_BS` is True, all without it; returns (B, H, T, K)."""
        if mask_BS is None:
            mask_BS = k_BHSK.new_ones(len(k_BHSK), k_BHSK.shape[2], dtype=torch.bool)
        return self._attend(q_BHTK, k_BHSK, v_BHSK, mask_BS)

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        raise NotImplementedError

    def attend_seen(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, seen_BTS: Tensor
    ) -> Tensor:
        """Attend from the last T of S positions to those where `seen_BTS` is True, for streams."""
        raise NotImplementedError

    def step(self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache) -> Stepped:
        """Compute one position after those in `cache` (empty at first); causal kinds only."""
        raise NotImplementedError


class AttentionConfig(FrozenModel):
    """Options that all kinds of attention share.

    `exports` tells whether torch can export the encoder's kernel as one graph for every length;
    `maps` are the names of the linear maps beside the kernel (see `asr.model.places`).
    """

    exports: ClassVar[bool] = False
    maps: ClassVar[tuple[str, ...]] = ("query", "key", "value", "output")

    @abstractmethod
    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> nn.Module:
        """Return the kernel of `n_heads` heads of `d_head` channels each.

        `causal` is True only in a decoder, where a step does not see later ones. `dropout` is the
        share of attention weights that training leaves out. Raises ConfigError if the options do
        not fit these sizes.
        """

    @property
    def streams(self) -> bool:
        """Tell whether the encoder's kernel has `attend_seen`."""
        return False

    @property
    def longest(self) -> int | None:
        """Return the most steps of an input, None where there is no limit."""
        return None


class LimitedConfig(AttentionConfig):
    """Options of kinds with weights for each position up to `length`."""

    length: Size = 1024

    @property
    def longest(self) -> int:
        """Return the most steps of an input."""
        return self.length


def first_steps(weight: Tensor, axis: int, steps: int) -> Tensor:
    """Return the first entries of an axis of weights, as many as an input has steps.

    Raises DataError for an input that is longer than the weights. An exported graph selects by
    indices instead; its runtime refuses indices beyond the weights.
    """
    if torch.compiler.is_exporting():
        return weight.index_select(axis, torch.arange(steps, device=weight.device))
    check_length(steps, weight.shape[axis])
    return weight.narrow(axis, 0, steps)


def check_length(steps: int, longest: int) -> None:
    """Raise DataError for an input that is longer than the weights of its attention."""
    if longest < steps:
        raise DataError(
            f"an input of {steps} encoder steps is longer than model.encoder.attention.length "
            f"{longest}: cut it, or train with a greater length"
        )


def weighted_sum(scores: Tensor, v: Tensor, mask: Tensor | None, p: float) -> Tensor:
    """Return Softmax(scores) V over keys where `mask` is True; p is the dropout of weights."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return dropout(scores.softmax(-1), p) @ v


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, p: float = 0, causal: bool = False
) -> Tensor:
    """Return Softmax(Q Kᵀ / √d_k) V over keys where `mask` is True; p is the dropout of weights."""
    if not p or not q.is_cpu:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, is_causal=causal)
    # Step by step: on a CPU torch has no fused kernel with dropout, and its dropout is slow.
    if causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return weighted_sum((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1), v, mask, p)


class FullAttention(Kernel):
    """Scaled dot-product attention (Vaswani 2017, eq. 1; Cahyawijaya 2021, eq. 3.1).

    If causal, a query attends to its own position and earlier ones.
    """

    attends_to_all_past = True

    def __init__(self, causal: bool, dropout: float) -> None:
        super().__init__()
        self.causal = causal
        self.dropout = dropout

    def forward(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor | None = None
    ) -> Tensor:
        """Attend; a T × S matrix is formed only in training on a CPU, for dropout."""
        mask = None if mask_BS is None else mask_BS[:, None, None, :]
        p = self.dropout if self.training else 0.0
        return attend(q_BHTK, k_BHSK, v_BHSK, mask, p, self.causal)

    def attend_seen(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, seen_BTS: Tensor
    ) -> Tensor:
        """Attend from the last T of S positions to those where `seen_BTS` is True."""
        p = self.dropout if self.training else 0.0
        return attend(q_BHTK, k_BHSK, v_BHSK, seen_BTS[:, None], p)

    def step(self, q_BH1K: Tensor, k_BH1K: Tensor, v_BH1K: Tensor, cache: Cache) -> Stepped:
        """Attend to the cache, all keys and values so far, and to this position."""
        if cache:
            k_BH1K = torch.cat((cache[0], k_BH1K), dim=2)
            v_BH1K = torch.cat((cache[1], v_BH1K), dim=2)
        return scaled_dot_product_attention(q_BH1K, k_BH1K, v_BH1K), (k_BH1K, v_BH1K)


class FullAttentionConfig(AttentionConfig):
    """Every query attends to every key."""

    exports = True
    kind: Literal["full"] = "full"

    @property
    def streams(self) -> bool:
        return True

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return FullAttention(causal, dropout)
