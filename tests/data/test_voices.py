"""Other voices, rooms and microphones: what is changed, by how much, and what is left alone."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from lhotse import CutSet
from scipy.fft import dct
from scipy.linalg import solve_toeplitz
from scipy.signal import lfilter
from torch import Tensor

from asr.audio.augmentation import PausesConfig, VoicesConfig
from asr.audio.features import FbankConfig, LogMelConfig, SpectrogramConfig
from asr.bundle import Bundle
from asr.config import Config
from asr.data.manifest import load_cuts, read_wave, text_of
from asr.data.pauses import with_noise
from asr.data.voices import (
    Voices,
    change_place,
    change_tempo,
    change_voice,
    with_voice_seeds,
)
from asr.tokenizer import Tokenizer, TokenizerConfig
from asr.train.datamodule import SpeechDataModule
from tests.helpers import RATE, tones_recipe

HZ = 8000
FACTORS = ("pitch", "formants", "tempo")
FORMANTS = (700, 1500, 2600)
ALL = VoicesConfig(pitch=1.3, formants=1.2, tempo=1.25, filter_db=10, rooms=0.5, noise=0.5)


def vowel(pitch: float) -> Tensor:
    """Return a second of pulses at a pitch through three resonances."""
    wave = np.diff(np.floor(np.arange(HZ + 1) * pitch / HZ))
    for hz in FORMANTS:
        radius = np.exp(-np.pi * 80 / HZ)
        wave = lfilter([1], [1, -2 * radius * np.cos(2 * np.pi * hz / HZ), radius**2], wave)
    return torch.from_numpy(wave / np.abs(wave).max()).float()


def pitch_of(wave: Tensor) -> float:
    """Return the pitch by the autocorrelation of the middle."""
    middle = wave.numpy()[1000:5000]
    lags = np.correlate(middle, middle, "full")[len(middle) - 1 :]
    return HZ / (20 + int(np.argmax(lags[20:160])))


def formants_of(wave: Tensor) -> np.ndarray:
    """Return the three formants by linear prediction."""
    middle = wave.numpy()[1000:5000].astype(float) * np.hanning(4000)
    lags = np.array([middle[: len(middle) - lag] @ middle[lag:] for lag in range(9)])
    roots = np.roots([1, *-solve_toeplitz(lags[:8], lags[1:])])
    sharp = roots[(roots.imag > 0.01) & (np.abs(roots) > 0.8)]
    return np.sort(np.angle(sharp) * HZ / 2 / np.pi)


@pytest.mark.parametrize(
    ("pitch", "formants"), [(1.25, 1), (0.8, 1), (1, 1.2), (1, 0.85), (1.25, 0.85), (0.8, 1.2)]
)
def test_pitch_and_formants_change_independently(pitch: float, formants: float) -> None:
    before = vowel(120)
    after = change_voice(before, HZ, pitch, formants)
    assert len(after) == pytest.approx(len(before) / pitch, abs=2)
    assert pitch_of(after) / pitch_of(before) == pytest.approx(pitch, rel=0.03)
    assert formants_of(after) == pytest.approx(np.array(FORMANTS) * formants, rel=0.12)


def _series(cepstra: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return an envelope's logarithm at places from 0 to 1, half the rate."""
    cosines = np.cos(np.pi * np.outer(np.arange(1, len(cepstra)), places))
    envelope: np.ndarray = cepstra[0] + 2 * cepstra[1:] @ cosines
    return envelope


def test_the_envelope_is_the_series_of_the_first_cepstra() -> None:
    """By scipy's cosine transform in double precision, a frame at a time."""
    wave, hop, n_cepstra, formants = vowel(120).numpy().astype(float), 128, 16, 1.1
    padded = np.concatenate([np.zeros(hop), wave, np.zeros(2 * hop)])
    starts = range(0, len(wave) + hop, hop)
    window = 0.5 - 0.5 * np.cos(np.pi * np.arange(2 * hop) / hop)
    spectra = [np.fft.rfft(padded[at : at + 2 * hop] * window) for at in starts]
    floor = 1e-4 * np.abs(spectra).max()
    expected = np.zeros(len(padded))
    for at, spectrum in zip(starts, spectra, strict=True):
        cepstra = dct(np.log(np.maximum(np.abs(spectrum), floor)), type=1)[:n_cepstra] / (2 * hop)
        bins = np.arange(hop + 1)
        gain = np.exp(_series(cepstra, bins / formants / hop) - _series(cepstra, bins / hop))
        expected[at : at + 2 * hop] += np.fft.irfft(spectrum * gain)
    found = change_voice(vowel(120), HZ, 1.0, formants).numpy()
    np.testing.assert_allclose(found, expected[hop : hop + len(wave)], atol=1e-4)


def test_a_factor_of_one_changes_nothing(cuts: CutSet) -> None:
    wave = vowel(100)
    assert torch.equal(change_voice(wave, HZ, 1.0, 1.0), wave)
    features = LogMelConfig(sample_rate=RATE, n_mels=20).build()
    voices = Voices(VoicesConfig(), features)
    for cut in with_voice_seeds(cuts.subset(first=5), Random(1)):
        own = features(read_wave(cut, RATE))
        assert torch.equal(voices.features_of(read_wave(cut, RATE), cut), own)


@pytest.mark.parametrize("n", [1, 2, 100, 1000, HZ])
@pytest.mark.parametrize("wave", ["silence", "noise", "loud"])
def test_any_waveform_gives_finite_features(n: int, wave: str) -> None:
    rng = np.random.default_rng(n)
    scale = {"silence": 0, "noise": 1, "loud": 1e6}[wave]
    samples = torch.from_numpy(scale * rng.normal(size=n)).float()
    features = LogMelConfig(sample_rate=HZ, n_mels=20).build()
    for pitch, formants in ((2.0, 0.5), (0.5, 2.0)):
        changed = change_voice(samples, HZ, pitch, formants)
        placed = change_place(
            changed, HZ, VoicesConfig(filter_db=20, rooms=1, noise=1, overload=1), rng
        )
        assert len(placed) == len(changed) and placed.isfinite().all()
        assert change_tempo(features(placed), 1.3).isfinite().all()


def test_tempo_sets_the_number_of_frames_alone() -> None:
    feats = LogMelConfig(sample_rate=HZ, n_mels=20).build()(vowel(100))
    assert torch.equal(change_tempo(feats, 1.0), feats)
    for factor in (0.7, 1.3):
        changed = change_tempo(feats, factor)
        assert len(changed) == round(len(feats) / factor)
        assert (changed[len(changed) // 2] - feats[len(feats) // 2]).abs().max() < 0.3


def test_noise_has_the_power_that_was_asked_for() -> None:
    wave = vowel(100)
    noisy = change_place(wave, HZ, VoicesConfig(noise=1, least_snr_db=60), np.random.default_rng(1))
    rms = [x.square().mean().sqrt() for x in (wave, noisy - wave)]
    assert 20 * torch.log10(rms[0] / rms[1]) == pytest.approx(60, abs=0.5)


def test_an_overloaded_recorder_cuts_peaks_and_nothing_else() -> None:
    wave = vowel(100)
    peak, shares = float(wave.abs().max()), []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found = change_place(wave, HZ, VoicesConfig(overload=1), rng)
        limit = float(found.abs().max())
        assert peak / 10 <= limit <= peak
        torch.testing.assert_close(found, wave.clamp(-limit, limit))
        shares.append(limit / peak)
    assert max(shares) > 0.8 and min(shares) < 0.2
    untouched = change_place(wave, HZ, VoicesConfig(), np.random.default_rng(1))
    assert torch.equal(untouched, wave)


def test_a_filter_stays_within_its_decibels_and_a_room_rings_on() -> None:
    impulse = torch.zeros(HZ)
    impulse[100] = 1
    rng = np.random.default_rng(3)
    filtered = change_place(impulse, HZ, VoicesConfig(filter_db=6), rng)
    gain_db = 20 * torch.fft.rfft(filtered).abs().clamp(min=1e-9).log10()
    assert gain_db.abs().max() < 7 and gain_db.std() > 0.5
    in_room = change_place(impulse, HZ, VoicesConfig(rooms=1), rng)
    assert in_room[:100].abs().max() < 1e-3 < in_room[300:800].abs().max()
    assert in_room[100] == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("change", ["pitch", "formants", "tempo", "rooms", "noise", "overload"])
def test_each_change_reaches_the_features_alone(cuts: CutSet, change: str) -> None:
    is_factor, features = change in FACTORS, SpectrogramConfig(sample_rate=HZ, window_ms=40).build()
    config = VoicesConfig.model_validate({change: 1.5 if is_factor else 1})
    voices, wave = Voices(config, features), vowel(140)
    for cut in with_voice_seeds(cuts.subset(first=3), Random(1)):
        rng = np.random.default_rng((cut.custom or {})["voice_seed"])
        drawn = dict(zip(FACTORS, 1.5 ** rng.uniform(-1, 1, 3), strict=True))
        pitch, formants, tempo = (drawn[f] if f == change else 1.0 for f in FACTORS)
        there = change_place(change_voice(wave, HZ, pitch, formants), HZ, config, rng)
        found = voices.features_of(wave, cut)
        torch.testing.assert_close(found, change_tempo(features(there), tempo / pitch))
        own = features(wave)
        assert len(found) != len(own) or (found - own).abs().mean() > 0.005


@pytest.mark.parametrize("change", ["rooms", "noise", "overload"])
def test_shares_are_those_of_the_utterances_that_change(cuts: CutSet, change: str) -> None:
    wave, features = vowel(100), SpectrogramConfig(sample_rate=HZ, window_ms=40).build()
    own, changed = features(wave), {}
    seeded = list(with_voice_seeds([*cuts][:1] * 60, Random(1)))
    for share in (0.0, 0.4, 1.0):
        voices = Voices(VoicesConfig.model_validate({change: share}), features)
        feats = (voices.features_of(wave, cut) for cut in seeded)
        changed[share] = sum(bool((f - own).abs().mean() > 0.002) for f in feats)
    assert changed[0.0] == 0 and changed[1.0] >= 57
    assert 12 <= changed[0.4] <= 36  # of 60: three standard deviations


@pytest.fixture(scope="module")
def cuts(tones: Path) -> CutSet:
    return load_cuts(tones / "train.jsonl.gz")


@pytest.mark.parametrize(
    "features", [SpectrogramConfig(), LogMelConfig(n_mels=20), FbankConfig(n_mels=20)]
)
def test_features_of_every_kind_follow_the_seed_alone(cuts: CutSet, features) -> None:
    extractor = features.model_copy(update={"sample_rate": RATE}).build()
    voices = Voices(ALL, extractor)

    def found(seed: int) -> list[Tensor]:
        seeded = with_voice_seeds(cuts.subset(first=4), Random(seed))
        return [voices.features_of(read_wave(cut, RATE), cut) for cut in seeded]

    first, again, other = found(1), found(1), found(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, other, strict=True)
    )


def recipe(tones: Path, **changes) -> Config:
    augment = {"voices": ALL.model_dump(), "pauses": PausesConfig(from_epoch=1).model_dump()}
    return Config.model_validate(tones_recipe(tones, augment=augment, **changes))


def test_texts_and_dev_are_unchanged_and_epochs_differ(tones: Path) -> None:
    corpus = SpeechDataModule(recipe(tones))
    seeds = [
        [str(cut.tracks[0].cut.custom if hasattr(cut, "tracks") else cut.custom) for cut in batch]
        for epoch in (0, 0, 1)
        for batch in corpus.plan(epoch)[:3]
    ]
    assert seeds[:3] == seeds[3:6] != seeds[6:]
    assert all("voice_seed" in one for batch in seeds for one in batch)
    dev = {cut.id: text_of(cut) for cut in load_cuts(tones / "dev.jsonl.gz")}
    planned = [cut for batch in corpus.plan(None) for cut in batch]
    assert {cut.id: text_of(cut) for cut in planned} == dev
    assert not any(cut.custom and "voice_seed" in cut.custom for cut in planned)


def test_a_manifest_cannot_set_the_seed(cuts: CutSet, tmp_path: Path) -> None:
    path = tmp_path / "cuts.jsonl.gz"
    with_voice_seeds(cuts.subset(first=3), Random(1)).to_file(path)
    assert not any("voice_seed" in (cut.custom or {}) for cut in load_cuts(path))


def test_training_reads_changed_utterances_and_dev_unchanged_ones(tones: Path) -> None:
    config = recipe(tones)
    corpus = SpeechDataModule(config)
    bundle = Bundle.create(
        config, Tokenizer.train(map(text_of, corpus.train_cuts), TokenizerConfig())
    )
    corpus.read_with(bundle)
    assert corpus.dataset
    for epoch in (0, None):
        cuts = list(corpus.plan(epoch)[0])
        [batch] = corpus.dataset[[cuts]].batches
        for cut, feats, n in zip(cuts, batch.feats_BTF, batch.frames_B.tolist(), strict=True):
            own = bundle.features(with_noise(read_wave(cut, RATE), RATE, cut))
            assert (own.shape == (n, own.shape[1]) and torch.equal(own, feats[:n])) == (
                epoch is None
            )
