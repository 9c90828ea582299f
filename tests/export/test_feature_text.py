"""The code for features in an exported model's README computes what the model has learned from."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from asr.audio.features import FeaturesConfig
from asr.export.feature_text import how_features
from tests.helpers import load_librosa

KINDS: list[dict[str, Any]] = [
    {"kind": "spectrogram"},
    {"kind": "spectrogram", "sample_rate": 8000, "normalize": "corpus"},
    {"kind": "log_mel", "n_mels": 40, "window_ms": 40, "hop_ms": 20},
    {"kind": "log_mel", "sample_rate": 8000, "n_mels": 20, "normalize": "corpus"},
    {"kind": "fbank"},
    {"kind": "fbank", "n_mels": 40, "normalize": "corpus", "sherpa_onnx": True},
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "_".join(map(str, kind.values())))
def test_features_by_the_text_are_ours(kind: dict[str, Any]) -> None:
    load_librosa()
    config: FeaturesConfig = TypeAdapter(FeaturesConfig).validate_python(kind)
    rng, ours, names = np.random.default_rng(1), config.build(), dict[str, Any]()
    if config.normalize == "corpus":
        ours.mean_F.copy_(torch.from_numpy(rng.normal(0, 2, config.n_freqs)))
        ours.std_F.copy_(torch.from_numpy(rng.uniform(1, 4, config.n_freqs)))
        names |= {"mean_F": ours.mean_F.numpy(), "std_F": ours.std_F.numpy()}
    exec(how_features(config), names)
    times = np.arange(config.sample_rate) / config.sample_rate
    wave = (0.3 * np.sin(2000 * times**2) * np.hanning(len(times))).astype(np.float32)
    wave[: len(wave) // 4] = 0
    found, expected = names["features"](wave), ours(torch.from_numpy(wave)).numpy()
    assert found.shape == expected.shape
    assert np.abs(found - expected).mean() < 1e-3 and np.abs(found - expected).max() < 0.05
