"""Features against librosa, Kaldi and float64 numpy; augmentation by its properties."""

import subprocess
import sys
import warnings

import kaldi_native_fbank as knf
import numpy as np
import pytest
import torch
import torchaudio.compliance.kaldi
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from asr.audio.augmentation import AugmentConfig, spec_augment
from asr.audio.features import FbankConfig, FeaturesConfig, LogMelConfig, SpectrogramConfig
from asr.audio.mel import slaney_filters
from asr.errors import DataError
from tests.helpers import load_librosa

CONFIGS = [
    SpectrogramConfig(),
    SpectrogramConfig(sample_rate=8000),
    SpectrogramConfig(sample_rate=11025),
    LogMelConfig(),
    LogMelConfig(sample_rate=8000, n_mels=40),
]


def wave(seconds=1.0, rate=16000, seed=0):
    """A chirp that fades in, over noise: all bins have power, at levels some 60 dB apart."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    chirp = np.sin(2 * np.pi * (200 * t + rate / 8 * t**2)) * t / max(seconds, 1)
    return torch.from_numpy((0.3 * chirp + 0.003 * rng.normal(size=len(t))).astype(np.float32))


def librosa_power(wave_N, config):
    """(time, freq) in float64, of the wave scaled to a peak of 1."""
    x = wave_N.double().numpy() / float(wave_N.abs().max())
    frames = dict(n_fft=config.n_fft, hop_length=config.hop_length, pad_mode="constant")
    if config.kind == "spectrogram":
        return np.abs(load_librosa().stft(x, **frames)).T ** 2
    mel = load_librosa().feature.melspectrogram(
        y=x, sr=config.sample_rate, n_mels=config.n_mels, power=2.0, **frames
    )
    return mel.T


def librosa_log(wave_N, config):
    decibel = load_librosa().power_to_db(
        librosa_power(wave_N, config), ref=np.max, amin=1e-20, top_db=80.0
    )
    return decibel * np.log(10) / 10


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.kind}{c.sample_rate}")
def test_power_and_logarithm_equal_librosa(config):
    wave_N = wave(rate=config.sample_rate)
    features = config.build()
    expected = librosa_power(wave_N, config)
    power = features.power(wave_N).numpy()
    assert power.shape == (1 + len(wave_N) // config.hop_length, config.n_freqs)
    np.testing.assert_allclose(power, expected, rtol=1e-4, atol=1e-7 * expected.max())
    # Far below the peak, float32 itself rounds by more than 1e-4.
    logarithm, oracle = features.log_power(wave_N).numpy(), librosa_log(wave_N, config)
    loud = oracle > np.log(1e-6)
    assert loud.mean() > 0.3
    np.testing.assert_allclose(logarithm[loud], oracle[loud], atol=1e-3)
    assert np.abs(logarithm - oracle).mean() < 1e-4


@pytest.mark.parametrize(("rate", "window_ms", "n_mels"), [(16000, 25, 80), (8000, 40, 40)])
def test_mel_filters_equal_torchaudio_but_for_rounding(rate, window_ms, n_mels):
    config = LogMelConfig(sample_rate=rate, window_ms=window_ms, n_mels=n_mels)
    expected = torchaudio.functional.melscale_fbanks(
        config.n_fft // 2 + 1, 0.0, rate / 2, n_mels, rate, norm="slaney", mel_scale="slaney"
    )
    torch.testing.assert_close(config.build().mel_FM, expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("n_mels", [4, 40, 80, 128])
@pytest.mark.parametrize(("rate", "n_fft"), [(1000, 20), (8000, 320), (16000, 400), (44100, 1102)])
def test_mel_filters_are_librosas_number_for_number(rate, n_fft, n_mels):
    """Models were trained on librosa's; some of these have empty filters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # librosa's, about empty filters
        expected = load_librosa().filters.mel(sr=rate, n_fft=n_fft, n_mels=n_mels)
    found = slaney_filters(rate, n_fft, n_mels)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


FBANKS = [
    FbankConfig(),
    FbankConfig(sample_rate=8000, n_mels=40),
    FbankConfig(n_mels=40, window_ms=40, hop_ms=20),
]


def kaldi_fbank(wave_N, config):
    options = knf.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = False
    options.frame_opts.samp_freq = config.sample_rate
    options.frame_opts.frame_length_ms = config.window_ms
    options.frame_opts.frame_shift_ms = config.hop_ms
    options.mel_opts.num_bins = config.n_mels
    fbank = knf.OnlineFbank(options)
    fbank.accept_waveform(config.sample_rate, (wave_N * 2**15).tolist())
    fbank.input_finished()
    return np.stack([fbank.get_frame(i) for i in range(fbank.num_frames_ready)])


@pytest.mark.parametrize("config", FBANKS, ids=lambda c: f"{c.sample_rate}_{c.n_mels}")
@pytest.mark.parametrize("seconds", [0.05, 1.0, 2.345])
def test_fbank_equals_kaldi(config, seconds):
    wave_N = wave(seconds, config.sample_rate)
    expected = kaldi_fbank(wave_N, config)
    found = config.build().log_power(wave_N).numpy()
    assert found.shape == (int(len(wave_N) / config.hop_length + 0.5), config.n_mels)
    # Where a filter begins, the rounding of its weight is relatively large.
    power, oracle = np.exp(found), np.exp(expected)
    np.testing.assert_allclose(power, oracle, rtol=1e-3, atol=1e-7 * oracle.max())
    assert np.abs(found - expected).mean() < 1e-4


@pytest.mark.parametrize("config", FBANKS, ids=lambda c: f"{c.sample_rate}_{c.n_mels}")
def test_fbank_equals_torchaudio(config):
    """Models were trained on torchaudio's."""
    wave_N = wave(1.234, config.sample_rate)
    expected = torchaudio.compliance.kaldi.fbank(
        wave_N[None] * 2**15,
        sample_frequency=config.sample_rate,
        frame_length=config.window_ms,
        frame_shift=config.hop_ms,
        num_mel_bins=config.n_mels,
        snip_edges=False,
    )
    found = config.build().log_power(wave_N)
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
    assert (found - expected).abs().mean() < 1e-5


@pytest.mark.parametrize("config", FBANKS, ids=lambda c: f"{c.sample_rate}_{c.n_mels}")
def test_fbank_of_any_finite_waveform_is_finite(config):
    features = config.build()
    for n in (1, 2, 150, 4000):
        for value in (0.0, 1e-38, 0.7, 3e38):
            feats = features(torch.full((n,), value))
            assert feats.isfinite().all() and feats.abs().max() < 100
            assert len(feats) >= 1 and feats.shape[1] == config.n_freqs
    with torch.autocast("cpu", torch.bfloat16):
        mixed = features(wave(1.0, config.sample_rate))
    assert torch.equal(mixed, features(wave(1.0, config.sample_rate)))


def test_normalized_fbank_is_independent_of_the_gain():
    features, wave_N = FbankConfig().build(), wave()
    for gain in (0.01, 0.5, 1e4):
        torch.testing.assert_close(features(wave_N * gain), features(wave_N), atol=5e-3, rtol=0)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import asr", {"torch", "librosa", "torchaudio", "numpy"}),
        (
            "import sys; from asr.cli import main; sys.argv = ['asr', '--help']\n"
            "try: main()\nexcept SystemExit: pass",
            {"torch", "librosa", "torchaudio"},
        ),
        (
            "from asr.audio.features import LogMelConfig; LogMelConfig().build()",
            {"librosa", "numba", "torchaudio"},
        ),
        (
            "from asr.audio.features import FbankConfig; FbankConfig().build()",
            {"librosa", "numba", "torchaudio"},
        ),
    ],
    ids=["asr", "help", "log_mel", "fbank"],
)
def test_heavy_packages_are_imported_only_where_they_are_used(code, absent):
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('loaded', *sys.modules)"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert not absent & set(shown.rpartition("loaded ")[2].split())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.kind}{c.sample_rate}")
def test_utterance_normalization_equals_numpy(config):
    wave_N = wave(rate=config.sample_rate)
    logarithm = librosa_log(wave_N, config)
    expected = (logarithm - logarithm.mean()) / logarithm.std()
    feats = config.build()(wave_N).numpy()
    assert np.abs(feats - expected).mean() < 1e-4
    assert abs(feats.mean()) < 1e-4
    assert abs(feats.std() - 1) < 1e-4


def test_corpus_statistics_equal_numpy_and_are_saved():
    config = SpectrogramConfig(normalize="corpus")
    waves = [wave(seconds, seed=i) for i, seconds in enumerate((0.5, 1.3, 2.0))]
    features = config.build()
    features.fit(iter(waves))
    frames = np.concatenate([librosa_log(w, config) for w in waves])
    np.testing.assert_allclose(features.mean_F, frames.mean(0), atol=2e-3)
    np.testing.assert_allclose(features.std_F, frames.std(0), rtol=2e-3)

    loaded = config.build()
    assert not torch.equal(loaded(waves[0]), features(waves[0]))
    loaded.load_state_dict(features.state_dict())
    assert torch.equal(loaded(waves[0]), features(waves[0]))
    pooled = torch.cat([loaded(w) for w in waves])
    torch.testing.assert_close(pooled.mean(0), torch.zeros(161), atol=1e-4, rtol=0)
    torch.testing.assert_close(pooled.std(0), torch.ones(161), atol=1e-2, rtol=0)


def test_statistics_of_no_recording_are_refused():
    with pytest.raises(DataError, match="check the manifest"):
        SpectrogramConfig(normalize="corpus").build().fit([])


def test_only_corpus_statistics_are_saved_with_the_weights():
    assert set(LogMelConfig().build().state_dict()) == set()
    assert set(LogMelConfig(normalize="corpus").build().state_dict()) == {"mean_F", "std_F"}


@pytest.mark.parametrize("gain", [1e-30, 1e-4, 0.5, 3.0, 1e30])
@pytest.mark.parametrize("normalize", ["utterance", "corpus"])
def test_gain_never_matters(gain, normalize):
    wave_N = wave()
    features = SpectrogramConfig(normalize=normalize).build()
    torch.testing.assert_close(features(wave_N * gain), features(wave_N), atol=5e-3, rtol=0)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.kind}{c.sample_rate}")
def test_hostile_waves_give_finite_features(config):
    noise = torch.sign(wave(0.3, config.sample_rate)) * torch.ones(1)
    impulse = torch.zeros(3000)
    impulse[1000] = 1.0
    hostile = {
        "silence": torch.zeros(4000), "dc": torch.full((4000,), 0.7), "full_scale": noise,
        "one": torch.ones(1), "one_silent": torch.zeros(1), "two": torch.tensor([1.0, -1.0]),
        "impulse": impulse, "huge": torch.full((4000,), 3e38), "tiny": torch.full((900,), 1e-38),
    }  # fmt: skip
    features = config.build()
    for name, wave_N in hostile.items():
        feats = features(wave_N)
        assert feats.shape == (1 + len(wave_N) // config.hop_length, config.n_freqs), name
        assert feats.isfinite().all(), name
        assert feats.abs().max() < 100, name
    assert not features(hostile["silence"]).any()
    # One sample in one frame has a flat spectrum, whose rounding errors must not be blown up.
    if config.kind == "spectrogram":
        assert features(hostile["one"]).abs().max() < 0.01


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 3000),
    rate=st.sampled_from([8000, 11025, 16000, 22050]),
    window=st.sampled_from([20.0, 25.0, 31.7]),
    hop=st.sampled_from([5.0, 10.0, 12.5]),
)
def test_number_of_frames(n, rate, window, hop):
    config = SpectrogramConfig(sample_rate=rate, window_ms=window, hop_ms=hop)
    for samples in (n, config.hop_length * (1 + n // 100)):
        feats = config.build()(torch.randn(samples))
        assert feats.shape == (1 + samples // config.hop_length, config.n_freqs)


@pytest.mark.parametrize("config", CONFIGS[::3], ids=lambda c: c.kind)
def test_mixed_precision_leaves_features_alone(config):
    features, wave_N = config.build(), wave()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = features(wave_N)
    assert torch.equal(mixed, features(wave_N))


def test_sizes_of_the_papers():
    wide, narrow = SpectrogramConfig(), SpectrogramConfig(sample_rate=8000)
    assert (wide.n_fft, wide.hop_length, wide.n_freqs) == (320, 160, 161)
    assert (narrow.n_fft, narrow.hop_length, narrow.n_freqs) == (160, 80, 81)
    assert (LogMelConfig().n_fft, LogMelConfig().n_freqs) == (400, 80)


def test_configuration_reads_back_and_holds_no_derived_key():
    adapter = TypeAdapter(FeaturesConfig)
    for config in (SpectrogramConfig(hop_ms=12.5), LogMelConfig(n_mels=40), FbankConfig()):
        values = config.model_dump()
        assert not {"n_fft", "hop_length", "n_freqs"} & set(values)
        assert adapter.validate_python(values) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "log_mel", "n_mels": 256}, "n_mels 256 leaves .* lower n_mels"),
        ({"kind": "log_mel", "n_mels": 80, "sample_rate": 8000, "window_ms": 10}, "n_mels 80"),
        ({"kind": "spectrogram", "hop_ms": 30}, "at most window_ms"),
        ({"kind": "spectrogram", "hop_ms": 0.01}, "at least one sample"),
        ({"kind": "spectrogram", "n_fft": 320}, "n_fft"),
        ({"kind": "fbank", "n_mels": 256}, "n_mels 256 leaves"),
        ({"kind": "mfcc"}, "'spectrogram', 'log_mel', 'fbank'"),
    ],
)
def test_impossible_configurations_are_refused_by_name(values, message):
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(FeaturesConfig).validate_python(values)


def augmented(config, lengths, n_freqs=80, seed=0, n_frames=None):
    """Masks of a batch of ones: bands (B, F), spans (B, T), and the features."""
    feats = torch.ones(len(lengths), n_frames or max(lengths), n_freqs)
    generator = torch.Generator().manual_seed(seed)
    result = spec_augment(feats, torch.tensor(lengths), config, generator)
    assert feats.all(), "the input is unchanged"
    masked = result == 0
    return masked.all(1), masked.all(2), result


def spans(mask):
    """Lengths of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.numpy().astype(int), [0]])))
    return (edges[1::2] - edges[::2]).tolist()


def test_masks_are_bands_and_time_masksof_the_right_size_within_each_length():
    config = AugmentConfig(freq_masks=2, freq_width=10, time_masks=3, time_ratio=0.1)
    lengths = [200, 100, 35, 9, 1] * 20
    bands, time_masks, result = augmented(config, lengths, n_frames=210)
    assert torch.equal(result == 0, bands[:, None, :] | time_masks[:, :, None])
    assert set(result.unique().tolist()) == {0.0, 1.0}
    for row, length in enumerate(lengths):
        assert not time_masks[row, length:].any()
        assert len(spans(bands[row])) <= 2
        assert bands[row].sum() <= 20
        assert len(spans(time_masks[row])) <= 3
        assert time_masks[row].sum() <= 3 * int(0.1 * length)
    assert time_masks[0::5].any(1).float().mean() > 0.7
    assert bands.any(1).float().mean() > 0.7


def test_each_utterance_draws_its_own_masks_from_the_generator():
    config = AugmentConfig()
    bands, time_masks, result = augmented(config, [400] * 8)
    assert len({tuple(row.tolist()) for row in bands}) == 8
    assert len({tuple(row.tolist()) for row in time_masks}) == 8
    assert torch.equal(augmented(config, [400] * 8)[2], result)
    assert not torch.equal(augmented(config, [400] * 8, seed=1)[2], result)


def test_widths_and_starts_are_uniform():
    config = AugmentConfig(freq_masks=1, freq_width=4, time_masks=1, time_ratio=0.04)
    bands, time_masks, _ = augmented(config, [100] * 5000, n_freqs=10)
    for masks in (bands, time_masks):
        counts = np.bincount(masks.sum(1), minlength=5) / len(masks)
        np.testing.assert_allclose(counts, 0.2, atol=0.03)
        # All starts are equally likely, the first and the last too.
        wide = masks[masks.sum(1) == 4].float().mean(0)
        n_starts = masks.shape[1] - 4 + 1
        assert abs(float(wide[0]) - 1 / n_starts) < 0.05
        assert abs(float(wide[-1]) - 1 / n_starts) < 0.05
        assert masks.any(0).all()


def test_unmasked_values_stay_and_no_mask_changes_nothing():
    feats = torch.randn(4, 50, 20)
    lengths = torch.tensor([50, 40, 30, 20])
    none = AugmentConfig(freq_masks=0, time_masks=0)
    assert torch.equal(spec_augment(feats, lengths, none, torch.Generator()), feats)
    config = AugmentConfig(freq_width=5, time_ratio=0.2)
    result = spec_augment(feats, lengths, config, torch.Generator().manual_seed(3))
    kept = result != 0
    assert torch.equal(result[kept], feats[kept])
    assert 0.05 < (~kept).float().mean() < 0.9
    # A band wider than there are bins still fits.
    wide = AugmentConfig(freq_width=1000)
    assert spec_augment(feats, lengths, wide, torch.Generator()).shape == feats.shape
