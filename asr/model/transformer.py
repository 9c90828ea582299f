"""The whole network on one page: front end, encoder, decoder (thesis 4.1, fig. 4.2).

Legend: B batch, T frames, F frequency bins, S encoder steps, U output tokens, W hypotheses of an
utterance, D d_model, V vocabulary.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from asr.model.attention import (
    S4D,
    Cache,
    DecoderAttentionConfig,
    EncoderAttentionConfig,
    FullAttentionConfig,
    LinformerConfig,
    share_between_layers,
)
from asr.model.dropout import Dropout
from asr.model.factorization import apply_ranks
from asr.model.frontend import FrontendConfig, VggConfig, padding_mask
from asr.model.layers import (
    Convolution,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    NormOrder,
    Residual,
    SelfAttention,
    StateSpace,
)
from asr.model.projection import LowRankConfig, ProjectionConfig
from asr.schema import FrozenModel, Size

Probability = Annotated[float, Field(ge=0, lt=1)]


class EncoderConfig(FrozenModel):
    """The stack that refines the front end's steps.

    `convolution` is the width, in steps, of a convolution in each layer; without it there is none.
    """

    n_layers: Size = 2
    attention: EncoderAttentionConfig = FullAttentionConfig()
    convolution: Size | None = None

    @property
    def longest(self) -> int | None:
        """How many steps an input may have, where its attention has a limit."""
        return self.attention.length if isinstance(self.attention, LinformerConfig) else None

    @field_validator("convolution")
    @classmethod
    def _has_a_middle(cls, width: int | None) -> int | None:
        if width is not None and width % 2 == 0:
            raise ValueError(f"{width} steps have no middle: make it {width + 1}")
        return width


class DecoderConfig(FrozenModel):
    """The stack that writes the text."""

    n_layers: Size = 4
    attention: DecoderAttentionConfig = FullAttentionConfig()


class ModelConfig(FrozenModel):
    """The network's shape; the defaults are LRT (r = 100) of thesis 4.2.2.

    `norm` is where layer normalisation stands (see `Residual`); `ctc_weight` the share of the CTC
    loss in training, above 0 the encoder has a CTC head; `ranks` the modules that `asr compress`
    made of two thin ones, by name.
    """

    d_model: Size = 512
    d_inner: Size = 2048
    n_heads: Size = 8
    dropout: Probability = 0.1
    norm: NormOrder = "post"
    projection: ProjectionConfig = LowRankConfig(rank=100)
    frontend: FrontendConfig = VggConfig()
    encoder: EncoderConfig = EncoderConfig()
    decoder: DecoderConfig = DecoderConfig()
    ctc_weight: Annotated[float, Field(ge=0, lt=1)] = 0.0
    ranks: dict[str, Size] = Field(default={})

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        problems = []
        if self.d_model % self.n_heads or self.d_model % 2:
            problems.append(
                f"d_model {self.d_model} must be even and a multiple of n_heads {self.n_heads}"
            )
        smallest = min(self.d_model, self.d_inner)
        if isinstance(self.projection, LowRankConfig) and self.projection.rank > smallest:
            problems.append(
                f"projection.rank {self.projection.rank} is above the smaller of d_model and "
                f"d_inner, {smallest}: a full rank is that at most"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def build(self, n_freqs: int, vocab_size: int) -> "SpeechTransformer":
        """The network for features of `n_freqs` bins and a vocabulary of `vocab_size`.

        Raises ConfigError where `ranks` names a module that it has not.
        """
        network = SpeechTransformer(self, n_freqs, vocab_size)
        apply_ranks(network, self.ranks)
        return network

    def cross_attention(self) -> MultiHeadAttention:
        """LRMHA from the decoder to the encoder's output, always full."""
        unit = self.self_attention(FullAttentionConfig())
        assert isinstance(unit, MultiHeadAttention)
        return unit

    def self_attention(
        self, kernel: EncoderAttentionConfig | DecoderAttentionConfig, causal: bool = False
    ) -> SelfAttention:
        """LRMHA, the Transformer's own with a dense projection, or what stands in its place."""
        built = kernel.build(self.n_heads, self.d_model // self.n_heads, causal, self.dropout)
        if isinstance(built, S4D):
            return StateSpace(self.d_model, self.projection, built, self._residual())
        return MultiHeadAttention(
            self.d_model, self.n_heads, self.projection, built, self._residual()
        )

    def convolution(self) -> Convolution | None:
        """The encoder layer's convolution, if it has one."""
        width = self.encoder.convolution
        if width is None:
            return None
        return Convolution(self.d_model, width, self.projection, self._residual())

    def feed_forward(self) -> FeedForward:
        """LRFF, or the Transformer's own with a dense projection."""
        return FeedForward(
            self.d_model, self.d_inner, self.projection, self.dropout, self._residual()
        )

    def last_norm(self) -> nn.Module:
        """What ends a stack: pre-norm layers leave their sum as it is."""
        return nn.LayerNorm(self.d_model) if self.norm == "pre" else nn.Identity()

    def _residual(self) -> Residual:
        return Residual(self.d_model, self.norm, self.dropout)


def sinusoids(start: int, length: int, d_model: int, device: torch.device) -> Tensor:
    """Positions start … start + length - 1 as (length, D): sines in even places, cosines in odd.

    They follow from the position alone, so there is no longest sequence.
    """
    position = torch.arange(start, start + length, device=device, dtype=torch.float32)
    rate = torch.exp(torch.arange(0, d_model, 2, device=device) * (-math.log(10000.0) / d_model))
    angle = position[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


class Encoder(nn.Module):
    """N layers of self-attention and feed-forward over the front end's steps."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(
                config.self_attention(config.encoder.attention),
                config.convolution(),
                config.feed_forward(),
            )
            for _ in range(config.encoder.n_layers)
        )
        share_between_layers(self.layers)
        self.norm = config.last_norm()

    def forward(self, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """(B, S, D) to (B, S, D); steps where `mask_BS` is False are nobody's business."""
        x_BSD = self.dropout(x_BSD + sinusoids(0, x_BSD.shape[1], x_BSD.shape[2], x_BSD.device))
        for layer in self.layers:
            x_BSD = layer(x_BSD, mask_BS)
        return self.norm(x_BSD)


@dataclass
class DecoderState:
    """What the decoder remembers between steps: B utterances, W hypotheses of each.

    `caches` (a layer's own, rows B · W first) follow the hypotheses; `memories` (keys and values
    of the encoder's output, rows B first) and `mask_BS` belong to the utterance.
    """

    caches: list[Cache]
    memories: list[Cache]
    mask_BS: Tensor
    position: int = 0

    def reorder(self, parents_BW: Tensor) -> None:
        """Let hypothesis w of utterance b continue hypothesis `parents_BW[b, w]` of it."""
        B = len(parents_BW)
        first_B1 = torch.arange(B, device=parents_BW.device)[:, None] * (self._rows() // B)
        rows = (first_B1 + parents_BW).flatten()
        self.caches = [tuple(t[rows] for t in cache) for cache in self.caches]

    def select(self, indices: Tensor) -> None:
        """Go on with these utterances only, a tensor of indices."""
        B = len(self.mask_BS)
        self.caches = [
            tuple(t.unflatten(0, (B, -1))[indices].flatten(0, 1) for t in cache)
            for cache in self.caches
        ]
        self.memories = [tuple(t[indices] for t in memory) for memory in self.memories]
        self.mask_BS = self.mask_BS[indices]

    def _rows(self) -> int:
        return len(self.caches[0][0])


class Decoder(nn.Module):
    """M layers that read the text so far and the encoder's output; scores of the next token."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.embed = nn.Embedding(vocab_size, config.d_model)
        nn.init.normal_(self.embed.weight, std=config.d_model**-0.5)
        self.dropout = Dropout(config.dropout)
        attention = config.decoder.attention
        self.layers = nn.ModuleList(
            DecoderLayer(
                config.self_attention(attention, causal=True),
                config.cross_attention(),
                config.feed_forward(),
            )
            for _ in range(config.decoder.n_layers)
        )
        self.norm = config.last_norm()
        self.output = nn.Linear(config.d_model, vocab_size)

    def _embed(self, tokens: Tensor, start: int) -> Tensor:
        """(B, U) tokens at positions from `start` to (B, U, D), scaled as positions are."""
        positions = sinusoids(start, tokens.shape[1], self.d_model, tokens.device)
        return self.dropout(self.embed(tokens) * self.d_model**0.5 + positions)

    def forward(self, tokens_BU: Tensor, memory_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Logits (B, U, V) of the token after each, all positions at once."""
        x_BUD = self._embed(tokens_BU, 0)
        for layer in self.layers:
            x_BUD = layer(x_BUD, memory_BSD, mask_BS)
        return self.output(self.norm(x_BUD))

    def start(self, memory_BSD: Tensor, mask_BS: Tensor) -> DecoderState:
        """The state before the first token."""
        memories: list[Cache] = [
            layer.cross_attention.keys_values(memory_BSD) for layer in self._layers()
        ]
        return DecoderState([() for _ in memories], memories, mask_BS)

    def step(self, tokens_BW: Tensor, state: DecoderState) -> Tensor:
        """Log-probabilities (B, W, V) of the token after `tokens_BW`; `state` moves on by one."""
        x_BWD = self._embed(tokens_BW.flatten()[:, None], state.position).view(*tokens_BW.shape, -1)
        for i, layer in enumerate(self._layers()):
            x_BWD, state.caches[i] = layer.step(
                x_BWD, state.caches[i], state.memories[i], state.mask_BS
            )
        state.position += 1
        return self.output(self.norm(x_BWD)).log_softmax(-1)

    def _layers(self) -> Iterator[DecoderLayer]:
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            yield layer


class SpeechTransformer(nn.Module):
    """Spectrogram in, text out: VGG front end, encoder, decoder, and a CTC head where wanted."""

    def __init__(self, config: ModelConfig, n_freqs: int, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.frontend = config.frontend.build(n_freqs, config.d_model, config.projection)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config, vocab_size)
        self.ctc_head = nn.Linear(config.d_model, vocab_size) if config.ctc_weight > 0 else None

    def encode(self, feats_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) and frame counts to memory (B, S, D) and its mask (B, S)."""
        x_BSD, steps_B = self.frontend(feats_BTF, lengths_B)
        mask_BS = padding_mask(steps_B, x_BSD.shape[1])
        return self.encoder(x_BSD, mask_BS), mask_BS

    def forward(
        self, feats_BTF: Tensor, lengths_B: Tensor, tokens_BU: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Logits (B, U, V) of the decoder, (B, S, V) of the CTC head or None, the mask (B, S)."""
        memory_BSD, mask_BS = self.encode(feats_BTF, lengths_B)
        logits_BUV = self.decoder(tokens_BU, memory_BSD, mask_BS)
        return logits_BUV, self.ctc_head(memory_BSD) if self.ctc_head else None, mask_BS
