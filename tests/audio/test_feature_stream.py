"""Features of a stream are those of the whole recording, whatever is known of it."""

import pytest
import torch

from asr.audio.feature_stream import FeatureStream
from asr.audio.features import FbankConfig, FeatureExtractor


def extractor(rate: int = 16000, **changes: float) -> FeatureExtractor:
    config = FbankConfig(kind="fbank", normalize="corpus", sample_rate=rate, n_mels=10, **changes)
    built = config.build()
    built.mean_F.normal_()
    built.std_F.uniform_(0.5, 2)
    return built


@pytest.mark.parametrize("n", [1, 79, 80, 119, 399, 400, 401, 560, 1999, 5000])
@pytest.mark.parametrize("changes", [{}, {"window_ms": 20}, {"window_ms": 10, "rate": 8000}])
def test_all_frames_of_a_recording_that_ended_are_the_offline_ones(
    n: int, changes: dict[str, float]
) -> None:
    built, wave = extractor(**changes), torch.rand(n) - 0.5  # type: ignore[arg-type]
    stream, offline = FeatureStream(built), built(wave)
    assert stream.n_frames(n) == len(offline)
    torch.testing.assert_close(stream.frames(wave, 0, len(offline)), offline, atol=1e-4, rtol=1e-4)


def test_frames_are_known_as_soon_as_nothing_after_can_change_them() -> None:
    built, wave = extractor(), torch.rand(4000) - 0.5
    stream, offline = FeatureStream(built), built(wave)
    for until in (1, 2, 7, 20):
        known = stream.n_samples(until)
        for first in range(until):
            torch.testing.assert_close(
                stream.frames(wave[:known], first, until), offline[first:until],
                atol=1e-4, rtol=1e-4,
            )  # fmt: skip
        changed = wave.clone()
        changed[known - 100 :] = -0.5  # a quarter of the window; at its end it is zero
        assert (built(changed)[until - 1] - offline[until - 1]).abs().max() > 1e-3
    assert stream.n_frames(0) == 0
