"""Other voices, rooms and microphones: what is changed, by how much, and what is left alone."""

from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
import soxr
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
from asr.data.noise import noise
from asr.data.pauses import with_noise
from asr.data.voices import (
    Voices,
    change_tempo,
    change_voice,
    source_and_filter,
    with_echoes,
    with_noise_behind,
    with_voice_seeds,
    without_peaks,
)
from asr.tokenizer import Tokenizer, TokenizerConfig
from asr.train.datamodule import SpeechDataModule
from tests.helpers import RATE, tones_recipe

HZ = 8000
FORMANTS = (700, 1500, 2600)
FACTORS = ("pitch", "formants")
KINDS = [SpectrogramConfig(), LogMelConfig(n_mels=20), FbankConfig(n_mels=20)]
ALL = VoicesConfig(pitch=1.3, formants=1.2, tempo=1.25, filter_db=10, rooms=0.5, noise=0.5)


def vowel(pitch: float, seconds: float = 1.0) -> Tensor:
    """Return pulses at a pitch through three resonances."""
    wave = np.diff(np.floor(np.arange(round(HZ * seconds) + 1) * pitch / HZ))
    for hz in FORMANTS:
        radius = np.exp(-np.pi * 80 / HZ)
        wave = lfilter([1], [1, -2 * radius * np.cos(2 * np.pi * hz / HZ), radius**2], wave)
    return torch.from_numpy(wave / np.abs(wave).max()).float()


SPECTRA = SpectrogramConfig(sample_rate=HZ, window_ms=40).build()


def lags_of(power_FT: Tensor) -> np.ndarray:
    """Return the autocorrelation, which is the transform of the power."""
    lags: np.ndarray = np.fft.irfft(power_FT[:, 20:-20].mean(1).numpy())
    return lags


def pitch_of(power_FT: Tensor) -> float:
    """Return the pitch, to the next harmonic of the windows."""
    return HZ / (20 + int(np.argmax(lags_of(power_FT)[20:120])))


def formants_of(power_FT: Tensor) -> np.ndarray:
    """Return the three formants by linear prediction."""
    lags = lags_of(power_FT)
    roots = np.roots([1, *-solve_toeplitz(lags[:8], lags[1:9])])
    sharp = roots[(roots.imag > 0.01) & (np.abs(roots) > 0.8)]
    return np.sort(np.angle(sharp) * HZ / 2 / np.pi)


@pytest.mark.parametrize(
    ("pitch", "formants"), [(1.25, 1), (0.8, 1), (1, 1.2), (1, 0.85), (1.25, 0.85), (0.8, 1.2)]
)
def test_pitch_and_formants_change_independently(pitch: float, formants: float) -> None:
    before = SPECTRA.spectrum(vowel(140)).T
    after = change_voice(source_and_filter(before, 16), 16, pitch, formants).exp()
    assert after.shape == before.shape
    assert pitch_of(after) / pitch_of(before) == pytest.approx(pitch, rel=0.04)
    assert formants_of(after) == pytest.approx(formants_of(before) * formants, rel=0.15)


@pytest.mark.parametrize("factor", [0.85, 1.2])
def test_a_voice_higher_and_shorter_is_the_resampled_waveform(factor: float) -> None:
    """Resampling scales pitch, formants and tempo at once."""
    features = LogMelConfig(sample_rate=HZ, n_mels=20, window_ms=40, hop_ms=10).build()
    wave = vowel(140) * torch.linspace(1, 0.1, HZ)
    resampled = torch.from_numpy(soxr.resample(wave.numpy(), factor, 1.0, "HQ"))
    parts = source_and_filter(features.spectrum(wave).T, 16)
    changed = features.of_spectrum(change_voice(parts, 16, factor, factor).exp().T)
    wanted = features(resampled)[:70]
    apart, unchanged = (
        (wanted - change_tempo(feats, factor)[:70])[5:, :15].abs().mean()  # above, it is made up
        for feats in (changed, features(wave))
    )
    assert apart < 0.5 * unchanged


def test_the_envelope_is_the_series_of_the_first_cepstra() -> None:
    """By scipy's cosine transform in double precision."""
    power_FT, n_cepstra = SPECTRA.spectrum(vowel(120)).T, 16
    log_FT = np.log(np.maximum(power_FT.numpy().astype(float), 1e-8 * float(power_FT.max())))
    expected = dct(log_FT, type=1, axis=0)[:n_cepstra] / (2 * (len(log_FT) - 1))
    parts = source_and_filter(power_FT, n_cepstra).numpy()
    np.testing.assert_allclose(parts[-n_cepstra:], expected, atol=1e-4)
    angles = np.pi * np.outer(np.arange(len(log_FT)), np.arange(1, n_cepstra)) / (len(log_FT) - 1)
    envelope = expected[0] + 2 * np.cos(angles) @ expected[1:]
    np.testing.assert_allclose(parts[:-n_cepstra] + envelope, power_FT.log(), atol=1e-3)


@pytest.mark.parametrize("features", [*KINDS, FbankConfig(n_mels=20, normalize="corpus")])
def test_a_factor_of_one_changes_nothing_not_even_digital_silence(cuts: CutSet, features) -> None:
    extractor = features.model_copy(update={"sample_rate": HZ}).build()
    voices, wave = Voices(VoicesConfig(), extractor), vowel(100)
    wave[HZ // 3 : HZ // 2] = 0
    for cut in with_voice_seeds(cuts.subset(first=2), Random(1)):
        found = voices.features_of(voices.spoken(wave), cut)
        torch.testing.assert_close(found, extractor(wave), atol=2e-3, rtol=0)


@pytest.mark.parametrize("change", ["pitch", "formants", "rooms", "noise", "overload"])
def test_each_change_reaches_the_features_alone(cuts: CutSet, change: str) -> None:
    voices = Voices(VoicesConfig.model_validate({change: 1.5 if change in FACTORS else 1}), SPECTRA)
    wave, hop_seconds = vowel(140), SPECTRA.config.hop_length / HZ
    for cut in with_voice_seeds(cuts.subset(first=3), Random(1)):
        rng = np.random.default_rng((cut.custom or {})["voice_seed"])
        factors = 1.5 ** rng.uniform(-1, 1, 3)  # of pitch, formants, tempo
        rng.random(3)
        there = without_peaks(wave, rng) if change == "overload" else wave
        parts = source_and_filter(SPECTRA.spectrum(there).T, 16)
        power = change_voice(
            parts,
            16,
            factors[0] if change == "pitch" else 1.0,
            factors[1] if change == "formants" else 1.0,
        ).exp()
        if change == "rooms":
            power = with_echoes(power, hop_seconds, rng)
        if change == "noise":
            behind = noises(HZ)[rng.integers(64)]
            power = with_noise_behind(power, behind, 10, rng)
        found = voices.features_of(voices.spoken(wave), cut)
        torch.testing.assert_close(found, SPECTRA.of_spectrum(power.T), atol=1e-3, rtol=0)
        assert (found - SPECTRA(wave)).abs().mean() > 0.005


@cache
def noises(rate: int) -> list[Tensor]:
    """Return the power of the noises that training has."""
    rng = np.random.default_rng(0)
    return [SPECTRA.spectrum(noise(4 * rate, rate, rng)).T for _ in range(64)]


@pytest.mark.parametrize("change", ["rooms", "noise", "overload"])
def test_shares_are_those_of_the_utterances_that_change(cuts: CutSet, change: str) -> None:
    wave = vowel(100)
    own, changed = SPECTRA(wave), {}
    seeded = list(with_voice_seeds([*cuts][:1] * 60, Random(1)))
    for share in (0.0, 0.4, 1.0):
        voices = Voices(VoicesConfig.model_validate({change: share}), SPECTRA)
        feats = (voices.features_of(voices.spoken(wave), cut) for cut in seeded)
        changed[share] = sum(bool((f - own).abs().mean() > 0.002) for f in feats)
    assert changed[0.0] == 0 and changed[1.0] >= 57
    assert 12 <= changed[0.4] <= 36  # of 60: three standard deviations


@pytest.mark.parametrize("n", [1, 2, 100, 1000, HZ])
@pytest.mark.parametrize("wave", ["silence", "noise", "loud"])
@pytest.mark.parametrize("features", KINDS)
def test_any_waveform_gives_finite_features(cuts: CutSet, features, n: int, wave: str) -> None:
    scale = {"silence": 0, "noise": 1, "loud": 1e6}[wave]
    samples = torch.from_numpy(scale * np.random.default_rng(n).normal(size=n)).float()
    most = {"pitch": 2, "formants": 2, "tempo": 2, "filter_db": 20, "rooms": 1, "noise": 1,
            "overload": 1}  # fmt: skip
    extractor = features.model_copy(update={"sample_rate": HZ}).build()
    voices = Voices(VoicesConfig.model_validate(most), extractor)
    parts, own = voices.spoken(samples), extractor(samples)
    for cut in with_voice_seeds(cuts.subset(first=3), Random(1)):
        found = voices.features_of(parts, cut)
        assert found.isfinite().all() and found.shape[1] == own.shape[1]
        assert len(own) / 2 - 1 <= len(found) <= 2 * len(own) + 1


def test_tempo_sets_the_number_of_frames_alone() -> None:
    feats = LogMelConfig(sample_rate=HZ, n_mels=20).build()(vowel(100))
    assert torch.equal(change_tempo(feats, 1.0), feats)
    for factor in (0.7, 1.3):
        changed = change_tempo(feats, factor)
        assert len(changed) == round(len(feats) / factor)
        assert (changed[len(changed) // 2] - feats[len(feats) // 2]).abs().max() < 0.3


@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_noise_has_the_power_that_was_asked_for(seconds: float) -> None:
    """A noise of a second is repeated behind a longer utterance."""
    rng = np.random.default_rng(1)
    power_FT = SPECTRA.spectrum(vowel(100, seconds)).T
    noise_FT = SPECTRA.spectrum(torch.from_numpy(rng.normal(size=HZ)).float()).T
    noisy_FT = with_noise_behind(power_FT, noise_FT, 60, rng)
    ratio = power_FT.double().mean() / (noisy_FT.double() - power_FT.double()).mean()
    assert 10 * torch.log10(ratio) == pytest.approx(60, abs=0.5)


def test_an_overloaded_recorder_cuts_peaks_and_nothing_else() -> None:
    wave, shares = vowel(100), []
    peak = float(wave.abs().max())
    for seed in range(20):
        found = without_peaks(wave, np.random.default_rng(seed))
        limit = float(found.abs().max())
        assert peak / 10 <= limit <= peak
        torch.testing.assert_close(found, wave.clamp(-limit, limit))
        shares.append(limit / peak)
    assert max(shares) > 0.8 and min(shares) < 0.2


def test_echoes_are_those_of_noise_that_decays() -> None:
    """As energy over time: the waveform through a response, its 60 dB and loudness known."""
    rng, hop = np.random.default_rng(2), SPECTRA.config.hop_length
    click = np.zeros(HZ)
    click[2000] = 1
    power_FT = SPECTRA.spectrum(torch.from_numpy(click).float()).T
    for seed in range(5):
        drawn = np.random.default_rng(seed)
        decay, echo_db = drawn.uniform(0.1, 0.7), drawn.uniform(-15, 0)
        tail = rng.normal(size=HZ) * 10 ** (-3 * np.arange(HZ) / HZ / decay)
        tail *= 10 ** (echo_db / 20) / np.sqrt((tail**2).sum())
        tail[0] += 1
        wave = torch.from_numpy(np.convolve(click, tail)[:HZ]).float()
        wanted = SPECTRA.spectrum(wave).T.mean(0) * float(wave.abs().max()) ** 2
        found = with_echoes(power_FT, hop / HZ, np.random.default_rng(seed)).mean(0)
        after = slice(2000 // hop + 4, 2000 // hop + int(decay * 50))
        apart_db = 10 * torch.log10(found[after] / wanted[after])
        assert apart_db.mean().abs() < 1.5 and apart_db.std() < 3
        assert torch.equal(found[: 2000 // hop - 2], power_FT.mean(0)[: 2000 // hop - 2])


def test_a_microphone_stays_within_its_decibels_and_colors(cuts: CutSet) -> None:
    """Of one utterance, with the level taken out by the normalization of the corpus."""
    torch.manual_seed(1)
    extractor = FbankConfig(sample_rate=HZ, n_mels=20, normalize="corpus").build()
    voices, flat = Voices(VoicesConfig(filter_db=6), extractor), torch.rand(HZ) - 0.5
    for cut in with_voice_seeds(cuts.subset(first=5), Random(1)):
        change = voices.features_of(voices.spoken(flat), cut) - extractor(flat)
        gains_db = 10 / np.log(10) * change.mean(0)
        assert gains_db.abs().max() < 6.1 and gains_db.std() > 0.5


@pytest.fixture(scope="module")
def cuts(tones: Path) -> CutSet:
    return load_cuts(tones / "train.jsonl.gz")


@pytest.mark.parametrize("features", KINDS)
def test_features_of_every_kind_follow_the_seed_alone(cuts: CutSet, features) -> None:
    extractor = features.model_copy(update={"sample_rate": RATE}).build()

    def found(seed: int) -> list[Tensor]:
        voices = Voices(ALL, extractor)
        seeded = with_voice_seeds(cuts.subset(first=4), Random(seed))
        return [voices.features_of(voices.spoken(read_wave(cut, RATE)), cut) for cut in seeded]

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
