"""Plug point 2: how queries meet keys; a file for each family, all kinds at the foot here."""

from typing import Annotated

from pydantic import Field

from asr.model.attention.full import Cache, FullAttention, FullAttentionConfig, Kernel
from asr.model.attention.linear import LinearAttentionConfig, PerformerConfig, follow_step
from asr.model.attention.linformer import (
    ConvLinformerConfig,
    LinformerConfig,
    share_between_layers,
)
from asr.model.attention.lsh import LshConfig
from asr.model.attention.nystrom import NystromConfig
from asr.model.attention.s4d import S4D, S4dConfig
from asr.model.attention.sliding_window import SlidingWindowConfig

__all__ = [
    "S4D", "Cache", "DecoderAttentionConfig", "EncoderAttentionConfig", "FullAttention",
    "FullAttentionConfig", "Kernel", "LinformerConfig", "follow_step", "share_between_layers",
]  # fmt: skip

# Kinds that cannot be causal join only the encoder's union: an illegal model cannot be written.
DecoderAttentionConfig = Annotated[
    FullAttentionConfig | LinearAttentionConfig | PerformerConfig | SlidingWindowConfig | S4dConfig,
    Field(discriminator="kind"),
]
EncoderAttentionConfig = Annotated[
    FullAttentionConfig
    | LinearAttentionConfig
    | PerformerConfig
    | SlidingWindowConfig
    | S4dConfig
    | LinformerConfig
    | ConvLinformerConfig
    | LshConfig
    | NystromConfig,
    Field(discriminator="kind"),
]
