"""The units of thesis fig. 3.2, each with its own residual and layer normalisation.

With low-rank projections they are LRMHA and LRFF; with dense ones, the Transformer's own.
Legend: B batch, T queries, S keys or encoder steps, D d_model, H heads, K head dimension.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, glu, silu

from asr.model.attention import S4D, Cache, Kernel
from asr.model.dropout import Dropout
from asr.model.projection import ProjectionConfig

NormOrder = Literal["post", "pre"]


class Residual(nn.Module):
    """What surrounds a unit f: LayerNorm(x + f(x)) (`post`), or x + f(LayerNorm(x)) (`pre`).

    Post is the thesis's (eq. 3.3, 3.4); pre converges far sooner where training is short.
    """

    def __init__(self, d_model: int, order: NormOrder, dropout: float) -> None:
        super().__init__()
        self.is_pre = order == "pre"
        self.norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)

    def enter(self, x_BTD: Tensor) -> Tensor:
        """What the unit sees of x."""
        return self.norm(x_BTD) if self.is_pre else x_BTD

    def leave(self, x_BTD: Tensor, branch_BTD: Tensor) -> Tensor:
        """x and what the unit made of it, joined."""
        x_BTD = x_BTD + self.dropout(branch_BTD)
        return x_BTD if self.is_pre else self.norm(x_BTD)


class MultiHeadAttention(nn.Module):
    """LayerNorm(Concat(h_1 … h_H) E^O D^O + Q) (thesis eq. 3.2, 3.3)."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        projection: ProjectionConfig,
        kernel: Kernel,
        residual: Residual,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = projection.build(d_model, d_model)
        self.key = projection.build(d_model, d_model)
        self.value = projection.build(d_model, d_model)
        self.output = projection.build(d_model, d_model)
        self.kernel = kernel
        self.residual = residual

    def split(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to heads first, (B, H, T, K)."""
        return x_BTD.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def join(self, heads_BHTK: Tensor, x_BTD: Tensor) -> Tensor:
        """Concatenate the heads, project, add the residual: (B, T, D)."""
        return self.residual.leave(x_BTD, self.output(heads_BHTK.transpose(1, 2).flatten(2)))

    def keys_values(self, y_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values (B, H, S, K) of what is attended to."""
        return self.split(self.key(y_BSD)), self.split(self.value(y_BSD))

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Self-attention over all positions at once."""
        inside_BTD = self.residual.enter(x_BTD)
        q_BHTK = self.split(self.query(inside_BTD))
        return self.join(self.kernel(q_BHTK, *self.keys_values(inside_BTD), mask_BT), x_BTD)

    def step(self, x_B1D: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """One position of causal self-attention, after those in the cache."""
        inside_B1D = self.residual.enter(x_B1D)
        q_BH1K = self.split(self.query(inside_B1D))
        k_BH1K, v_BH1K = self.keys_values(inside_B1D)
        heads, cache = self.kernel.step(q_BH1K, k_BH1K, v_BH1K, cache)
        return self.join(heads, x_B1D), cache

    def attend(self, x_BTD: Tensor, keys_values: Cache, mask_BS: Tensor) -> Tensor:
        """Attention to the keys and values of an encoder's output."""
        q_BHTK = self.split(self.query(self.residual.enter(x_BTD)))
        k_BHSK, v_BHSK = keys_values
        return self.join(self.kernel(q_BHTK, k_BHSK, v_BHSK, mask_BS), x_BTD)


class StateSpace(nn.Module):
    """A state-space layer where attention would be: values go through it, and out (S4's block)."""

    def __init__(
        self, d_model: int, projection: ProjectionConfig, kernel: S4D, residual: Residual
    ) -> None:
        super().__init__()
        self.value = projection.build(d_model, d_model)
        self.output = projection.build(d_model, d_model)
        self.kernel = kernel
        self.residual = residual

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """All positions at once."""
        y_BTD = self.kernel(self.value(self.residual.enter(x_BTD)), mask_BT)
        return self.residual.leave(x_BTD, self.output(gelu(y_BTD)))

    def step(self, x_B1D: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """One position, after those whose state is in the cache."""
        y_B1D, cache = self.kernel.step(self.value(self.residual.enter(x_B1D)), cache)
        return self.residual.leave(x_B1D, self.output(gelu(y_B1D))), cache


SelfAttention = MultiHeadAttention | StateSpace


class FeedForward(nn.Module):
    """LayerNorm(max(0, x E1 D1) E2 D2 + x) (thesis eq. 3.4)."""

    def __init__(
        self,
        d_model: int,
        d_inner: int,
        projection: ProjectionConfig,
        dropout: float,
        residual: Residual,
    ) -> None:
        super().__init__()
        self.inner = projection.build(d_model, d_inner)
        self.outer = projection.build(d_inner, d_model)
        self.dropout = Dropout(dropout)
        self.residual = residual

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        inner = self.dropout(torch.relu(self.inner(self.residual.enter(x_BTD))))
        return self.residual.leave(x_BTD, self.outer(inner))


class Convolution(nn.Module):
    """What neighbouring steps say together: gate, depthwise convolution, SiLU (Conformer, 2020).

    Its pointwise maps are the recipe's projections; layer in place of batch normalisation, so
    that batch-mates and padding never change a result.
    """

    def __init__(
        self, d_model: int, kernel_size: int, projection: ProjectionConfig, residual: Residual
    ) -> None:
        super().__init__()
        self.inner = projection.build(d_model, 2 * d_model)
        self.depthwise = nn.Conv1d(
            d_model, d_model, kernel_size, padding=kernel_size // 2, groups=d_model
        )
        self.norm = nn.LayerNorm(d_model)
        self.outer = projection.build(d_model, d_model)
        self.residual = residual

    def forward(self, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """(B, S, D) to (B, S, D); steps where `mask_BS` is False are as nothing."""
        gated_BSD = glu(self.inner(self.residual.enter(x_BSD))) * mask_BS[..., None]
        mixed_BSD = self.depthwise(gated_BSD.transpose(1, 2)).transpose(1, 2)
        return self.residual.leave(x_BSD, self.outer(silu(self.norm(mixed_BSD))))


class EncoderLayer(nn.Module):
    """Self-attention, a convolution where the recipe has one, then feed-forward."""

    def __init__(
        self,
        self_attention: SelfAttention,
        convolution: Convolution | None,
        feed_forward: FeedForward,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.convolution = convolution
        self.feed_forward = feed_forward

    def forward(self, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        x_BSD = self.self_attention(x_BSD, mask_BS)
        if self.convolution is not None:
            x_BSD = self.convolution(x_BSD, mask_BS)
        return self.feed_forward(x_BSD)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, feed-forward."""

    def __init__(
        self,
        self_attention: SelfAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward

    def forward(self, x_BUD: Tensor, memory_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """All positions at once, in training; being causal, none sees the padding at the end."""
        memory = self.cross_attention.keys_values(memory_BSD)
        x_BUD = self.cross_attention.attend(self.self_attention(x_BUD), memory, mask_BS)
        return self.feed_forward(x_BUD)

    def step(
        self, x_BWD: Tensor, cache: Cache, memory: Cache, mask_BS: Tensor
    ) -> tuple[Tensor, Cache]:
        """One position of W hypotheses of each of B utterances.

        Each hypothesis is a row to the self-attention; to the cross-attention the hypotheses of
        an utterance are its queries, so that its keys and values are held and read once.
        """
        rows, cache = self.self_attention.step(x_BWD.flatten(0, 1)[:, None], cache)
        x_BWD = self.cross_attention.attend(rows.view_as(x_BWD), memory, mask_BS)
        return self.feed_forward(x_BWD), cache
