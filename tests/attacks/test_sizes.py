"""Small files that ask for much memory: bundles whose configuration is large (SECURITY.md)."""

import os
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from asr.audio.features import LogMelConfig
from asr.errors import ConfigError
from asr.model.projection.sparse import SetSparse
from asr.model.streaming import StreamingConfig

# What a stranger's config.yaml may say; the weights in the file have other shapes.
_BUILT = {
    "lsh": "LshConfig(kind='lsh', rounds=64, buckets=8192).build(4, 128, False, 0.0)",
    "performer": "PerformerConfig(kind='performer', features=1).build(4, 4000, False, 0.0)",
    "set_sparse": "SetSparse(6144, 6144, 1e-4, 0.3)",
}
_GROWTH = """
import resource, torch
from asr.model.attention.linear import PerformerConfig
from asr.model.attention.lsh import LshConfig
from asr.model.projection.sparse import SetSparse
from asr.model.start import weights_follow
from asr.runtime.tensors import shapes_alone
torch.randn(64, 64) @ torch.randn(64, 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with weights_follow(), shapes_alone():
    {}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.drawn(1)
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux alone")
@pytest.mark.parametrize("kind", _BUILT)
def test_shapes_take_no_memory_before_a_file_is_compared(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _GROWTH.format(_BUILT[kind])], capture_output=True, text=True,
        check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert int(done.stdout) < 64 * 1024, "KiB"


def test_a_sparse_map_of_any_size_is_not_built() -> None:
    with pytest.raises(ConfigError, match="4,294,967,296 numbers"):
        SetSparse(1 << 16, 1 << 16, 1e-4, 0.3)


@pytest.mark.parametrize(
    ("config", "values", "match"),
    [
        (LogMelConfig, {"sample_rate": 384_000, "window_ms": 1000, "n_mels": 64}, "weights"),
        (StreamingConfig, {"chunk": 65536, "left_chunks": 65536}, "which a stream keeps"),
    ],
)
def test_large_values_are_refused_before_they_take_memory(
    config: Any, values: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValidationError, match=match):
        config(**values)
