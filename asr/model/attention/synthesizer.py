"""Synthesizer: attention weights without a comparison of two positions (Tay 2021).

Legend: B batch, H heads, T queries, S keys, K head dimension, N the longest input.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from asr.model.attention.full import Kernel, LimitedConfig, first_steps, weighted_sum
from asr.schema import Size


class DenseSynthesizer(Kernel):
    """Softmax(relu(Q) W + b) V: a position alone gives its weights of N keys (Tay 2021, sec. 3).

    The projection to Q is the inner of the two maps of the paper. Shorter inputs use the first
    columns of W and b.
    """

    has_keys = False

    def __init__(self, length: int, n_heads: int, d_head: int, dropout: float) -> None:
        super().__init__()
        self.length, self.dropout = length, dropout
        self.W_HKN = nn.Parameter(torch.randn(n_heads, d_head, length) * d_head**-0.5)
        self.b_H1N = nn.Parameter(torch.zeros(n_heads, 1, length))

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        S = v_BHSK.shape[2]
        W_HKS, b_H1S = (first_steps(x, 2, S) for x in (self.W_HKN, self.b_H1N))
        scores_BHTS = q_BHTK.relu() @ W_HKS + b_H1S
        p = self.dropout if self.training else 0.0
        return weighted_sum(scores_BHTS, v_BHSK, mask_BS[:, None, None], p)


class DenseSynthesizerConfig(LimitedConfig):
    """Weights of at most `length` keys from each position alone."""

    exports, maps = True, ("query", "value", "output")
    kind: Literal["dense_synthesizer"]

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return DenseSynthesizer(self.length, n_heads, d_head, dropout)


class RandomSynthesizer(Kernel):
    """Softmax(R) V with a learned matrix R for each head, N × N (Tay 2021, sec. 3).

    It starts from N(0, 1). Shorter inputs use its first rows and columns.
    """

    has_queries = has_keys = False

    def __init__(self, length: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.length, self.dropout = length, dropout
        self.R_HNN = nn.Parameter(torch.randn(n_heads, length, length))

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        S = v_BHSK.shape[2]
        R_HSS = first_steps(first_steps(self.R_HNN, 1, S), 2, S)
        p = self.dropout if self.training else 0.0
        scores_BHSS = R_HSS.expand(v_BHSK.shape[0], -1, -1, -1)
        return weighted_sum(scores_BHSS, v_BHSK, mask_BS[:, None, None], p)


class RandomSynthesizerConfig(LimitedConfig):
    """The same weights for every input, `length` × `length` numbers for each head."""

    exports, maps = True, ("value", "output")
    kind: Literal["random_synthesizer"]
    length: Size = 256

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return RandomSynthesizer(self.length, n_heads, dropout)
