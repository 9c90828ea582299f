"""The units of thesis fig. 3.2, each with its own residual and layer normalisation.

With low-rank projections they are LRMHA and LRFF; with dense ones, the Transformer's own.
Legend: B batch, T queries, S keys or encoder steps, D d_model, H heads, K head dimension.
"""

import torch
from torch import Tensor, nn

from asr.model.attention import Cache, FullAttention
from asr.model.projection import ProjectionConfig


class MultiHeadAttention(nn.Module):
    """LayerNorm(Concat(h_1 … h_H) E^O D^O + Q) (thesis eq. 3.2, 3.3)."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        projection: ProjectionConfig,
        kernel: FullAttention,
        dropout: float,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = projection.build(d_model, d_model)
        self.key = projection.build(d_model, d_model)
        self.value = projection.build(d_model, d_model)
        self.output = projection.build(d_model, d_model)
        self.kernel = kernel
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(d_model)

    def split(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to heads first, (B, H, T, K)."""
        return x_BTD.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def finish(self, heads_BHTK: Tensor, x_BTD: Tensor) -> Tensor:
        """Join the heads, project, add the residual, normalise: (B, T, D)."""
        joined_BTD = heads_BHTK.transpose(1, 2).flatten(2)
        return self.norm(x_BTD + self.dropout(self.output(joined_BTD)))

    def forward(self, x_BTD: Tensor, y_BSD: Tensor, keep_BS: Tensor | None = None) -> Tensor:
        """Let x attend to y (itself, or the encoder's output)."""
        q, k, v = self.query(x_BTD), self.key(y_BSD), self.value(y_BSD)
        return self.finish(self.kernel(self.split(q), self.split(k), self.split(v), keep_BS), x_BTD)

    def step(self, x_B1D: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """One position of causal self-attention, after those in the cache."""
        q, k, v = self.query(x_B1D), self.key(x_B1D), self.value(x_B1D)
        heads, cache = self.kernel.step(self.split(q), self.split(k), self.split(v), cache)
        return self.finish(heads, x_B1D), cache

    def keys_values(self, y_BSD: Tensor) -> Cache:
        """The keys and values (B, H, S, K) of an encoder output, computed once an utterance."""
        return self.split(self.key(y_BSD)), self.split(self.value(y_BSD))

    def attend(self, x_BTD: Tensor, keys_values: Cache, keep_BS: Tensor) -> Tensor:
        """Let x attend to keys and values computed before."""
        q_BHTK = self.split(self.query(x_BTD))
        return self.finish(self.kernel(q_BHTK, keys_values[0], keys_values[1], keep_BS), x_BTD)


class FeedForward(nn.Module):
    """LayerNorm(max(0, x E1 D1) E2 D2 + x) (thesis eq. 3.4)."""

    def __init__(
        self, d_model: int, d_inner: int, projection: ProjectionConfig, dropout: float
    ) -> None:
        super().__init__()
        self.inner = projection.build(d_model, d_inner)
        self.outer = projection.build(d_inner, d_model)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        inner = self.dropout(torch.relu(self.inner(x_BTD)))
        return self.norm(x_BTD + self.dropout(self.outer(inner)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, self_attention: MultiHeadAttention, feed_forward: FeedForward) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.feed_forward = feed_forward

    def forward(self, x_BSD: Tensor, keep_BS: Tensor) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        return self.feed_forward(self.self_attention(x_BSD, x_BSD, keep_BS))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, feed-forward."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward

    def forward(self, x_BUD: Tensor, memory_BSD: Tensor, keep_BS: Tensor) -> Tensor:
        """All positions at once, in training. Padding at the end is not seen: causality sees to it."""
        x_BUD = self.self_attention(x_BUD, x_BUD)
        return self.feed_forward(self.cross_attention(x_BUD, memory_BSD, keep_BS))

    def step(
        self, x_BWD: Tensor, cache: Cache, memory: Cache, keep_BS: Tensor
    ) -> tuple[Tensor, Cache]:
        """One position of W hypotheses of each of B utterances.

        Each hypothesis is a row to the self-attention; to the cross-attention the hypotheses of
        an utterance are its queries, so that its keys and values are held and read once.
        """
        rows, cache = self.self_attention.step(x_BWD.flatten(0, 1)[:, None], cache)
        x_BWD = self.cross_attention.attend(rows.view_as(x_BWD), memory, keep_BS)
        return self.feed_forward(x_BWD), cache
