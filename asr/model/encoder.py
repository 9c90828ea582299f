"""The encoder: layers over the front end's steps, of whole utterances or chunk by chunk.

Legend: B batch, S encoder steps, C steps of a chunk, D d_model, E memory (D, or 2 D with sounds).
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from asr.model.attention import EncoderAttentionConfig, FullAttentionConfig, share_between_layers
from asr.model.conditioning import Conditioning, ConditioningConfig
from asr.model.dropout import Dropout
from asr.model.layers import EncoderLayer
from asr.model.sounds import SoundsConfig
from asr.model.streaming import EncoderState, StreamingConfig, seen_in_chunks
from asr.schema import FrozenModel, Layers, Size

if TYPE_CHECKING:
    from asr.model.transformer import ModelConfig


class EncoderConfig(FrozenModel):
    """Options of the encoder; `convolution` is the width in steps of a convolution in each layer.

    With `streaming` it can take a stream chunk by chunk. It then has no absolute positions, because
    a stream has no end. Attention may have relative ones (`rotary`); the front end and the
    convolution also tell which steps are near.
    """

    n_layers: Layers = 2
    attention: EncoderAttentionConfig = FullAttentionConfig()
    convolution: Size | None = None
    conditioning: ConditioningConfig | None = None
    sounds: SoundsConfig | None = Field(default=None, exclude_if=lambda chosen: chosen is None)
    streaming: StreamingConfig | None = None

    @property
    def longest(self) -> int | None:
        """Return the most steps of an input, None where its attention has no limit."""
        return self.attention.longest

    @field_validator("convolution")
    @classmethod
    def _has_a_middle(cls, width: int | None) -> int | None:
        if width is not None and width % 2 == 0:
            raise ValueError(f"{width} steps have no middle: make it {width + 1}")
        return width

    @model_validator(mode="after")
    def _heads_are_within(self) -> Self:
        for name, head in (("conditioning", self.conditioning), ("sounds", self.sounds)):
            if head and head.layer >= self.n_layers:
                raise ValueError(
                    f"{name} names layer {head.layer} of {self.n_layers}: give one that has others "
                    "above it"
                )
        return self

    @model_validator(mode="after")
    def _streams(self) -> Self:
        if self.streaming and not self.attention.streams:
            raise ValueError(
                "streaming needs attention that works on chunks, kind full, or sliding_window "
                f"with global_tokens 0, and kind {self.attention.kind} is given: change either"
            )
        return self


def sinusoids(start: int, length: int, d_model: int, device: torch.device) -> Tensor:
    """Return positions from `start` as (length, D): sines in even columns, cosines in odd ones.

    Vaswani 2017, sec. 3.5. They are not stored, so that a sequence may have any length.
    """
    position = torch.arange(start, start + length, device=device, dtype=torch.float32)
    rate = torch.exp(torch.arange(0, d_model, 2, device=device) * (-math.log(10000.0) / d_model))
    angle = position[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


class Encoder(nn.Module):
    """Layers of self-attention and feed-forward over the front end's steps."""

    def __init__(self, config: "ModelConfig") -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.streaming = config.encoder.streaming
        rotary = self.streaming is not None and self.streaming.rotary
        attention, width = config.encoder.attention, config.encoder.convolution
        self.layers = nn.ModuleList(
            EncoderLayer(config.at("encoder"), attention, width, rotary)
            for _ in range(config.encoder.n_layers)
        )
        share_between_layers(self.layers)
        chosen = config.encoder.conditioning
        self.conditioned = chosen.layer if chosen else None
        self.conditioning = Conditioning(config.d_model) if chosen else None
        self.sounds_layer = config.encoder.sounds.layer if config.encoder.sounds else None
        self.norm = config.last_norm()

    def forward(self, x_BSD: Tensor, mask_BS: Tensor, chunk: int | None = None) -> Tensor:
        """Map (B, S, D) to memory (B, S, E); padding, where `mask_BS` is False, is ignored.

        E is D; with `sounds` it is 2 D, where the second half is the output of the layer of sounds.

        With `streaming`, a step sees no more than a stream in chunks of `chunk` steps shows it.
        Without `chunk` the utterances are whole, except in training: there it is drawn for each
        batch (dynamic chunk training, Zhang et al. 2020).
        """
        S, seen = x_BSD.shape[1], None
        if self.streaming is None:
            assert chunk is None, "the model has no streaming encoder"
            x_BSD = x_BSD + sinusoids(0, S, x_BSD.shape[2], x_BSD.device)
        elif self.training and chunk is None:
            chunk = self.streaming.draw()
        if self.streaming is not None and chunk is not None and chunk < S:
            seen = seen_in_chunks(mask_BS, chunk, self.streaming.left)
        x_BSD, sounds_BSD = self.dropout(x_BSD), None
        for number, layer in enumerate(self.layers, 1):
            x_BSD = layer(x_BSD, mask_BS, None if seen is None else chunk, seen)
            sounds_BSD = x_BSD if number == self.sounds_layer else sounds_BSD
            x_BSD = self._condition(x_BSD, number)
        return self._memory(x_BSD, sounds_BSD)

    def start_stream(self, n_sessions: int = 1) -> EncoderState:
        """Return the state of sessions before their first chunks."""
        assert self.streaming is not None, "the model has no streaming encoder"
        left, device = self.streaming.left, next(self.parameters()).device
        caches = [layer.start_stream(n_sessions, left) for layer in self._each_layer()]
        return EncoderState(caches, torch.zeros(n_sessions, left, dtype=torch.bool, device=device))

    def step(self, x_BCD: Tensor, mask_BC: Tensor, state: EncoderState) -> Tensor:
        """Map a chunk of each session (B, C, D) to (B, C, E); `state` advances by it.

        A session has no more chunks after one with steps where `mask_BC` is False. The result is
        that of `forward` for the whole stream with the same chunks.
        """
        seen_BCS, caches, sounds_BCD = state.seen(mask_BC), [], None
        for number, layer in enumerate(self._each_layer(), 1):
            x_BCD, cache = layer.step_chunk(x_BCD, mask_BC, state.caches[number - 1], seen_BCS)
            sounds_BCD = x_BCD if number == self.sounds_layer else sounds_BCD
            x_BCD = self._condition(x_BCD, number)
            caches.append(cache)
        state.advance(mask_BC, caches)
        return self._memory(x_BCD, sounds_BCD)

    def _memory(self, x_BSD: Tensor, sounds_BSD: Tensor | None) -> Tensor:
        """Return the memory (B, S, E), which the heads and the decoder see."""
        y_BSD: Tensor = self.norm(x_BSD)
        return y_BSD if sounds_BSD is None else torch.cat((y_BSD, sounds_BSD), -1)

    def _condition(self, x_BSD: Tensor, number: int) -> Tensor:
        """Add the guesses of the CTC head to the output of the layer that has one."""
        if self.conditioning is None or number != self.conditioned:
            return x_BSD
        y_BSD: Tensor = self.conditioning(x_BSD)
        return y_BSD

    def _each_layer(self) -> Iterator[EncoderLayer]:
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            yield layer
