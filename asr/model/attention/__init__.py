"""Plug point 2: attention kernels, one file for each family and one union of all kinds."""

from typing import Annotated

from pydantic import Field

from asr.model.attention.bigbird import BigBirdConfig
from asr.model.attention.fnet import FnetConfig, Fourier
from asr.model.attention.full import (
    AttentionConfig,
    Cache,
    FullAttention,
    FullAttentionConfig,
    Kernel,
)
from asr.model.attention.induced import InducedConfig, LunaConfig
from asr.model.attention.linear import LinearAttentionConfig, PerformerConfig
from asr.model.attention.linformer import ConvLinformerConfig, LinformerConfig, share_between_layers
from asr.model.attention.lsh import LshConfig
from asr.model.attention.nystrom import NystromConfig
from asr.model.attention.routing import RoutingConfig
from asr.model.attention.s4 import S4Config
from asr.model.attention.s4d import S4D, S4dConfig, StateSpaceSystem
from asr.model.attention.segments import (
    CompressiveConfig,
    SegmentAttention,
    TransformerXlConfig,
)
from asr.model.attention.sinkhorn import SinkhornConfig
from asr.model.attention.sliding_window import SlidingWindowConfig
from asr.model.attention.sparse import FixedConfig, StridedConfig
from asr.model.attention.steps import end_step, follow_step, stepped_kernels
from asr.model.attention.synthesizer import DenseSynthesizerConfig, RandomSynthesizerConfig

__all__ = [
    "S4D", "AttentionConfig", "Cache", "DecoderAttentionConfig", "EncoderAttentionConfig",
    "Fourier", "FullAttention", "FullAttentionConfig", "Kernel", "SegmentAttention",
    "StateSpaceSystem", "end_step", "follow_step", "share_between_layers",
    "stepped_kernels",
]  # fmt: skip

# Kinds that cannot be causal are absent from the decoder's union: no illegal model can be written.
_Causal = (
    FullAttentionConfig | LinearAttentionConfig | PerformerConfig | SlidingWindowConfig | S4dConfig
    | S4Config | StridedConfig | FixedConfig | TransformerXlConfig | CompressiveConfig
)  # fmt: skip
_Any = (
    _Causal | LinformerConfig | ConvLinformerConfig | LshConfig | NystromConfig | FnetConfig
    | DenseSynthesizerConfig | RandomSynthesizerConfig | InducedConfig | LunaConfig
    | BigBirdConfig | SinkhornConfig | RoutingConfig
)  # fmt: skip
DecoderAttentionConfig = Annotated[_Causal, Field(discriminator="kind")]
EncoderAttentionConfig = Annotated[_Any, Field(discriminator="kind")]
