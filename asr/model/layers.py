"""The units of a Transformer layer, each with its own residual connection and layer normalization.

With low-rank projections they are the LRMHA and LRFF units of the Low-Rank Transformer (Winata
2020; Cahyawijaya 2021, fig. 3.2), with dense projections they are the Transformer's units
(Vaswani 2017, fig. 1).
Legend: B batch, T queries, S keys or encoder steps, D d_model, H heads, K head dimension.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from asr.model.attention import (
    Cache,
    DecoderAttentionConfig,
    EncoderAttentionConfig,
    Fourier,
    FullAttention,
    Kernel,
    SegmentAttention,
    StateSpaceSystem,
)
from asr.model.convolution import Convolution
from asr.model.dropout import Dropout
from asr.model.streaming import rotate
from asr.model.unit import LayerConfig, Residual


class MultiHeadAttention(nn.Module):
    """LayerNorm(Concat(h_1 … h_H) E^O D^O + Q) (Cahyawijaya 2021, eq. 3.2 and 3.3)."""

    def __init__(self, config: LayerConfig, kernel: Kernel, rotary: bool = False) -> None:
        super().__init__()
        self.n_heads, D = config.n_heads, config.d_model
        self.rotary = rotary
        build = config.build_map
        self.query = build("query", D, D) if kernel.has_queries else nn.Identity()
        self.key = build("key", D, D) if kernel.has_keys else nn.Identity()
        self.value = build("value", D, D)
        self.output = build("output", D, D)
        self.kernel = kernel
        self.residual = Residual(config)

    def split(self, x_BTD: Tensor) -> Tensor:
        """Split the heads: (B, T, D) to (B, H, T, K)."""
        heads_BTHK: Tensor = x_BTD.unflatten(-1, (self.n_heads, -1))
        return heads_BTHK.transpose(1, 2)

    def join(self, heads_BHTK: Tensor, x_BTD: Tensor) -> Tensor:
        """Concatenate the heads, project them, and add the residual: (B, T, D)."""
        branch_BTD = self.output(heads_BHTK.transpose(1, 2).flatten(2))
        return self.residual.add_and_norm(x_BTD, branch_BTD)

    def keys_values(self, y_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values (B, H, S, K) of a sequence."""
        return self.split(self.key(y_BSD)), self.split(self.value(y_BSD))

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Attend from a sequence to itself, all positions at once."""
        y_BTD = self.residual.pre_norm(x_BTD)
        q_BHTK = self.split(self.query(y_BTD))
        placed = self._place(q_BHTK, *self.keys_values(y_BTD))
        return self.join(self.kernel(*placed, mask_BT), x_BTD)

    def _place(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotate queries, of the last T of S positions, and keys by their positions if `rotary`."""
        if not self.rotary:
            return q_BHTK, k_BHSK, v_BHSK
        return rotate(q_BHTK, k_BHSK.shape[2] - q_BHTK.shape[2]), rotate(k_BHSK), v_BHSK

    def attend_chunks(self, x_BSD: Tensor, seen_BSS: Tensor) -> Tensor:
        """Attend from a sequence to what each position sees of it, all positions at once."""
        y_BSD = self.residual.pre_norm(x_BSD)
        q_BHSK = self.split(self.query(y_BSD))
        placed = self._place(q_BHSK, *self.keys_values(y_BSD))
        return self.join(self.kernel.attend_seen(*placed, seen_BSS), x_BSD)

    def start_stream(self, n_sessions: int, left: int) -> Cache:
        """Return the cache of a stream: keys and values (B, H, L, K) of `left` earlier steps."""
        like, D = self.residual.norm.weight, self.residual.norm.normalized_shape[0]
        shape = (n_sessions, self.n_heads, left, D // self.n_heads)
        return like.new_zeros(shape), like.new_zeros(shape)

    def step_chunk(self, x_BCD: Tensor, cache: Cache, seen_BCS: Tensor) -> tuple[Tensor, Cache]:
        """Attend from a chunk to what it sees of cache and chunk; return the next cache too."""
        y_BCD, left = self.residual.pre_norm(x_BCD), cache[0].shape[2]
        q_BHCK = self.split(self.query(y_BCD))
        pairs = zip(cache, self.keys_values(y_BCD), strict=True)
        k_BHSK, v_BHSK = (torch.cat(pair, 2) for pair in pairs)
        placed = self._place(q_BHCK, k_BHSK, v_BHSK)
        heads = self.kernel.attend_seen(*placed, seen_BCS)
        cache = tuple(x[:, :, x.shape[2] - left :] for x in (k_BHSK, v_BHSK))
        return self.join(heads, x_BCD), cache

    def step(self, x_B1D: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Compute one position of causal self-attention, after those in the cache."""
        y_B1D = self.residual.pre_norm(x_B1D)
        q_BH1K = self.split(self.query(y_B1D))
        heads, cache = self.kernel.step(q_BH1K, *self.keys_values(y_B1D), cache)
        return self.join(heads, x_B1D), cache

    def attend(self, x_BTD: Tensor, keys_values: Cache, mask_BS: Tensor) -> Tensor:
        """Attend to the keys and values of an encoder's output."""
        q_BHTK = self.split(self.query(self.residual.pre_norm(x_BTD)))
        k_BHSK, v_BHSK = keys_values
        return self.join(self.kernel(q_BHTK, k_BHSK, v_BHSK, mask_BS), x_BTD)


class SegmentRecurrence(MultiHeadAttention):
    """Attention whose memory of earlier segments has no gradient to their inputs (Dai 2019)."""

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Attend from a sequence to itself, all segments at once."""
        y_BTD = self.residual.pre_norm(x_BTD)
        k_v = self.keys_values(y_BTD)
        memory = self.keys_values(y_BTD.detach()) if torch.is_grad_enabled() else k_v
        q_BHTK = self.split(self.query(y_BTD))
        return self.join(self.kernel(q_BHTK, *k_v, mask_BT, memory), x_BTD)


class StateSpace(nn.Module):
    """A state-space model between two projections in place of attention (Gu 2022)."""

    def __init__(self, config: LayerConfig, kernel: StateSpaceSystem) -> None:
        super().__init__()
        self.value = config.build_map("value", config.d_model, config.d_model)
        self.output = config.build_map("output", config.d_model, config.d_model)
        self.kernel = kernel
        self.residual = Residual(config)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Compute all positions at once."""
        y_BTD = self.kernel(self.value(self.residual.pre_norm(x_BTD)), mask_BT)
        return self.residual.add_and_norm(x_BTD, self.output(gelu(y_BTD)))

    def step(self, x_B1D: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Compute one position, after those whose state is in the cache."""
        y_B1D, cache = self.kernel.step(self.value(self.residual.pre_norm(x_B1D)), cache)
        return self.residual.add_and_norm(x_B1D, self.output(gelu(y_B1D))), cache


class FourierMixing(nn.Module):
    """A Fourier transform in place of attention, without projections (Lee-Thorp 2022, fig. 1)."""

    def __init__(self, config: LayerConfig, kernel: Fourier) -> None:
        super().__init__()
        self.kernel = kernel
        self.residual = Residual(config)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Compute all positions at once."""
        mixed_BTD = self.kernel(self.residual.pre_norm(x_BTD), mask_BT)
        return self.residual.add_and_norm(x_BTD, mixed_BTD)


CausalSelfAttention = MultiHeadAttention | StateSpace
SelfAttention = CausalSelfAttention | FourierMixing


def self_attention(
    config: LayerConfig,
    attention: EncoderAttentionConfig,
    causal: bool = False,
    rotary: bool = False,
) -> SelfAttention:
    """Return the unit of a kind: multi-head attention, a state-space model or Fourier mixing."""
    config = config.at("attention", "self_attention")
    d_head = config.d_model // config.n_heads
    kernel = attention.build(config.n_heads, d_head, causal, config.dropout)
    if isinstance(kernel, SegmentAttention):
        return SegmentRecurrence(config, kernel)
    if isinstance(kernel, Kernel):
        return MultiHeadAttention(config, kernel, rotary)
    if isinstance(kernel, Fourier):
        return FourierMixing(config, kernel)
    return StateSpace(config, kernel)


def causal_self_attention(
    config: LayerConfig, attention: DecoderAttentionConfig
) -> CausalSelfAttention:
    """Return the unit of a kind that can be causal, and therefore computes step by step."""
    unit = self_attention(config, attention, causal=True)
    assert not isinstance(unit, FourierMixing)
    return unit


class FeedForward(nn.Module):
    """LayerNorm(max(0, x E1 D1) E2 D2 + x) (Vaswani 2017, eq. 2; Cahyawijaya 2021, eq. 3.4)."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        config = config.at("feed_forward")
        self.inner = config.build_map("inner", config.d_model, config.d_inner)
        self.outer = config.build_map("outer", config.d_inner, config.d_model)
        self.dropout = Dropout(config.dropout)
        self.residual = Residual(config)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        inner = self.dropout(torch.relu(self.inner(self.residual.pre_norm(x_BTD))))
        return self.residual.add_and_norm(x_BTD, self.outer(inner))


class EncoderLayer(nn.Module):
    """Self-attention, a convolution over `width` steps (None: without), and feed-forward."""

    def __init__(
        self,
        config: LayerConfig,
        attention: EncoderAttentionConfig,
        width: int | None,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention(config, attention, rotary=rotary)
        self.convolution = None if width is None else Convolution(config, width)
        self.feed_forward = FeedForward(config)

    def forward(
        self, x_BSD: Tensor, mask_BS: Tensor, chunk: int | None = None, seen: Tensor | None = None
    ) -> Tensor:
        """Map (B, S, D) to (B, S, D); in chunks `seen` (B, S, S) is what positions attend to."""
        if seen is None:
            x_BSD = self.self_attention(x_BSD, mask_BS)
        else:
            x_BSD = self._streaming_attention().attend_chunks(x_BSD, seen)
        if self.convolution is not None:
            x_BSD = self.convolution(x_BSD, mask_BS, chunk)
        y_BSD: Tensor = self.feed_forward(x_BSD)
        return y_BSD

    def start_stream(self, n_sessions: int, left: int) -> Cache:
        """Return the cache of a stream: of attention, and of the convolution if there is one."""
        cache = self._streaming_attention().start_stream(n_sessions, left)
        if self.convolution is None:
            return cache
        return *cache, self.convolution.start_stream(n_sessions)

    def step_chunk(
        self, x_BCD: Tensor, mask_BC: Tensor, cache: Cache, seen_BCS: Tensor
    ) -> tuple[Tensor, Cache]:
        """Compute a chunk after the steps in the cache; return the next cache too."""
        attention, following = self._streaming_attention(), cache[2:]
        x_BCD, kept = attention.step_chunk(x_BCD, cache[:2], seen_BCS)
        if self.convolution is not None:
            x_BCD, before = self.convolution.step_chunk(x_BCD, mask_BC, *following)
            kept = *kept, before
        return self.feed_forward(x_BCD), kept

    def _streaming_attention(self) -> MultiHeadAttention:
        assert isinstance(self.self_attention, MultiHeadAttention), "this attention has no streams"
        return self.self_attention


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output (always full), and feed-forward."""

    def __init__(self, config: LayerConfig, attention: DecoderAttentionConfig) -> None:
        super().__init__()
        self.self_attention = causal_self_attention(config, attention)
        full = FullAttention(causal=False, dropout=config.dropout)
        self.cross_attention = MultiHeadAttention(config.at("attention", "cross_attention"), full)
        self.feed_forward = FeedForward(config)

    @property
    def attends_to_all_past(self) -> bool:
        """Tell whether its cache is the keys and values of all past positions."""
        unit = self.self_attention
        return isinstance(unit, MultiHeadAttention) and unit.kernel.attends_to_all_past

    def forward(self, x_BUD: Tensor, memory_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Compute all positions at once; padding at the end needs no mask.

        Each utterance may have several texts, one after the other. To cross-attention, all their
        positions are queries of the utterance, as in `step`.
        """
        memory = self.cross_attention.keys_values(memory_BSD)
        rows = self.self_attention(x_BUD)
        queries = rows.reshape(len(memory_BSD), -1, rows.shape[-1])
        x_BUD = self.cross_attention.attend(queries, memory, mask_BS).view_as(rows)
        y_BUD: Tensor = self.feed_forward(x_BUD)
        return y_BUD

    def step(
        self, x_BWD: Tensor, cache: Cache, memory: Cache, mask_BS: Tensor
    ) -> tuple[Tensor, Cache]:
        """Compute one position of W hypotheses of each of B utterances.

        To self-attention each hypothesis is a row; to cross-attention the hypotheses of an
        utterance are its queries, so that its keys and values are stored and read once.
        """
        rows, cache = self.self_attention.step(x_BWD.flatten(0, 1)[:, None], cache)
        x_BWD = self.cross_attention.attend(rows.view_as(x_BWD), memory, mask_BS)
        return self.feed_forward(x_BWD), cache
