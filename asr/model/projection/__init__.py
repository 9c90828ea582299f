"""Plug point 1: linear maps, one file for each family and one union of all kinds.

They make every map of the front end's projection, the attention and the feed-forward (Cahyawijaya
2021, sec. 4.1); the embedding and the output projection stay dense, as the printed sizes demand.
"""

from typing import Annotated

from pydantic import Field

from asr.model.projection.dense import DenseConfig
from asr.model.projection.low_rank import LowRank, LowRankConfig
from asr.model.projection.sparse import (
    BlockSparse,
    BlockSparseConfig,
    SetSparse,
    SetSparseConfig,
    check_density,
    sparse_maps,
)

__all__ = [
    "BlockSparse", "DenseConfig", "LowRank", "LowRankConfig", "ProjectionConfig", "SetSparse",
    "SetSparseConfig", "check_density", "sparse_maps",
]  # fmt: skip

ProjectionConfig = Annotated[
    DenseConfig | LowRankConfig | SetSparseConfig | BlockSparseConfig, Field(discriminator="kind")
]
