"""Augmentation with other voices, rooms and microphones, drawn for each utterance.

A voice is changed as source and filter. The vocal tract shapes the spectral envelope; what is left
without it comes from the vocal folds. What is left is resampled to another pitch, and the envelope
is applied again with its resonances, the formants, at other frequencies.
Legend: N samples, F frequency bins, C cepstra, S frames of a spectrum, T frames of features.
"""

import math
from collections.abc import Iterable
from functools import cache
from random import Random

import numpy as np
import soxr
import torch
from lhotse import CutSet
from lhotse.cut import Cut, MixedCut
from lhotse.cut.data import DataCut
from lhotse.utils import fastcopy
from scipy.fft import irfft, rfft  # type: ignore[import-untyped]
from torch import Tensor

from asr.audio.augmentation import VoicesConfig
from asr.audio.features import FeatureExtractor
from asr.data.noise import VOICE_SEED, noise

_WINDOW_SECONDS = 0.032
_ENVELOPE_SECONDS = 0.002  # of the cepstrum; a pitch period is longer
_DYNAMIC_RANGE = 1e-4  # of the spectrum that an envelope is taken of, relative to its largest bin
_SHORTEST_DECAY, _LONGEST_DECAY = 0.1, 0.7  # seconds in which a room's sound falls by 60 dB
_MOST_SNR_DB = 40.0
_MOST_CUT_DB = 20.0  # of the peaks
_KNOTS, _FILTER_SAMPLES = 6, 256  # of a random filter


def with_voice_seeds(cuts: Iterable[Cut], rng: Random) -> CutSet:
    """Return the cuts, each with a seed from which `Voices` draws its changes."""
    return CutSet.from_cuts(_with_seed(cut, rng.getrandbits(32)) for cut in cuts)


def _with_seed(cut: Cut, seed: int) -> Cut:
    if isinstance(cut, MixedCut):
        first, *others = cut.tracks
        first = fastcopy(first, cut=_with_seed(first.cut, seed))
        return fastcopy(cut, tracks=[first, *others])
    return fastcopy(cut, custom={**(cut.custom or {}), VOICE_SEED: seed})


def voice_seed(cut: Cut) -> int | None:
    """Return the seed of an utterance's changes, None where it has none."""
    part = cut.tracks[0].cut if isinstance(cut, MixedCut) else cut
    return (part.custom or {}).get(VOICE_SEED)


def without_voice_seed(cut: Cut) -> Cut:
    """Return an utterance as it was before `with_voice_seeds`."""
    if not isinstance(cut, DataCut) or voice_seed(cut) is None:
        return cut
    custom = {key: value for key, value in (cut.custom or {}).items() if key != VOICE_SEED}
    return fastcopy(cut, custom=custom or None)


class Voices:
    """Computes the features of utterances as another person might have said them elsewhere."""

    def __init__(self, config: VoicesConfig, features: FeatureExtractor) -> None:
        self.config, self.features = config, features

    def features_of(self, wave_N: Tensor, cut: Cut) -> Tensor:
        """Return features (T, F), unchanged where `with_voice_seeds` set no seed."""
        seed, config, rate = voice_seed(cut), self.config, self.features.config.sample_rate
        if seed is None:
            feats_TF: Tensor = self.features(wave_N)
            return feats_TF
        rng = np.random.default_rng(seed)
        pitch, formants, tempo = (
            _factor(most, rng) for most in (config.pitch, config.formants, config.tempo)
        )
        wave_N = change_voice(wave_N, rate, pitch, formants)
        feats_TF = self.features(change_place(wave_N, rate, config, rng))
        return change_tempo(feats_TF, tempo / pitch)


def _factor(most: float, rng: np.random.Generator) -> float:
    """Return a factor between 1 / most and most, its logarithm uniform."""
    return math.exp(rng.uniform(-1, 1) * math.log(most))


def change_voice(wave_N: Tensor, rate: int, pitch: float, formants: float) -> Tensor:
    """Return a waveform 1 / pitch as long, with the pitch and the formants times these factors."""
    resampled = soxr.resample(wave_N.numpy(), pitch, 1.0, "MQ") if pitch != 1.0 else wave_N.numpy()
    if pitch == formants or not len(resampled):  # resampling has moved the formants too
        return torch.from_numpy(resampled) if len(resampled) else wave_N
    hop, n_cepstra = round(_WINDOW_SECONDS * rate / 2), round(_ENVELOPE_SECONDS * rate)
    spectrum_SF = _spectrum(resampled, hop)
    bins_F = np.arange(hop + 1)
    # A lower pitch has left the highest bins empty: they get those below, mirrored.
    top = math.floor(min(pitch, 1.0) * hop)
    from_F = np.maximum(np.where(bins_F > top, 2 * top - bins_F, bins_F), 0)
    position_F = np.minimum(bins_F * (pitch / formants), hop)
    change_CF = _cosines(position_F, hop, n_cepstra) - _cosines(from_F, hop, n_cepstra)
    gain_SF = np.exp(_product(_cepstra(np.abs(spectrum_SF), n_cepstra), change_CF))
    return torch.from_numpy(_waveform(spectrum_SF[:, from_F] * gain_SF, len(resampled)))


def _spectrum(wave_N: np.ndarray, hop: int) -> np.ndarray:
    """Return the spectrum (S, F) of Hann's windows of 2 hops, which add up to 1."""
    n_hops = -(-len(wave_N) // hop)
    padded = np.zeros((n_hops + 2) * hop, np.float32)
    padded[hop : hop + len(wave_N)] = wave_N
    frames = np.lib.stride_tricks.sliding_window_view(padded, 2 * hop)[::hop]
    window = 0.5 - 0.5 * np.cos(np.pi * np.arange(2 * hop, dtype=np.float32) / hop)
    spectrum_SF: np.ndarray = rfft(frames * window)
    return spectrum_SF


def _waveform(spectrum_SF: np.ndarray, n: int) -> np.ndarray:
    halves = irfft(spectrum_SF).reshape(len(spectrum_SF), 2, -1)
    wave_N: np.ndarray = (halves[1:, 0] + halves[:-1, 1]).flatten()[:n]
    return wave_N


def _cepstra(magnitude_SF: np.ndarray, n_cepstra: int) -> np.ndarray:
    """Return the first cepstra (S, C), those of the envelope (Oppenheim & Schafer 1968)."""
    floor = max(_DYNAMIC_RANGE * float(magnitude_SF.max()), 1e-10)
    to_FC = _transform(magnitude_SF.shape[1] - 1, n_cepstra)
    return _product(np.log(np.maximum(magnitude_SF, floor)), to_FC)


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return a matrix product, by torch: numpy's threads would spin beside those of the model."""
    product: np.ndarray = (torch.from_numpy(left) @ torch.from_numpy(right)).numpy()
    return product


@cache
def _transform(hop: int, n_cepstra: int) -> np.ndarray:
    """Return the matrix (F, C) that takes the logarithm of a spectrum to its first cepstra."""
    to_FC = _cosines(np.arange(hop + 1), hop, n_cepstra).T / hop
    to_FC[:, 1:] /= 2
    to_FC[[0, -1]] /= 2
    return np.ascontiguousarray(to_FC)


def _cosines(bins_F: np.ndarray, hop: int, n_cepstra: int) -> np.ndarray:
    """Return the matrix (C, F) that takes cepstra to the envelope's logarithm at these bins."""
    cosines_CF: np.ndarray = np.cos(
        np.arange(n_cepstra, dtype=np.float32)[:, None] * (np.pi / hop * bins_F).astype(np.float32)
    )
    cosines_CF[1:] *= 2
    return cosines_CF


def _rows_at(rows: Tensor, position: Tensor) -> Tensor:
    """Return rows at fractional indices by linear interpolation; the last row beyond the end."""
    position = position.clamp(max=len(rows) - 1)
    below = position.long()
    above = (below + 1).clamp(max=len(rows) - 1)
    return torch.lerp(rows[below], rows[above], (position - below)[:, None])


def change_tempo(feats_TF: Tensor, factor: float) -> Tensor:
    """Return features (T, F) with 1 / factor as many frames, at least one."""
    wanted = max(1, round(len(feats_TF) / factor))
    if wanted == len(feats_TF):
        return feats_TF
    return _rows_at(feats_TF, torch.linspace(0, len(feats_TF) - 1, wanted))


def change_place(
    wave_N: Tensor, rate: int, config: VoicesConfig, rng: np.random.Generator
) -> Tensor:
    """Return a waveform of the same length in another room, with a filter, noise and overload.

    Room, noise and overload are drawn, each for its share of utterances in `config`.
    """
    in_room, is_noisy, is_cut = rng.random(3) < (config.rooms, config.noise, config.overload)
    if in_room or config.filter_db:
        wave_N = _filtered(wave_N, rate, config.filter_db, rng, in_room)
    rms = float(wave_N.square().mean().sqrt())
    if is_noisy and rms:
        snr_db = rng.uniform(config.least_snr_db, max(_MOST_SNR_DB, config.least_snr_db))
        fast = _fast_size(len(wave_N))
        wave_N = wave_N + rms * 10 ** (-snr_db / 20) * noise(fast, rate, rng)[: len(wave_N)]
    if is_cut and len(wave_N):
        limit = float(wave_N.abs().max()) * 10 ** (-rng.uniform(0, _MOST_CUT_DB) / 20)
        wave_N = wave_N.clamp(-limit, limit)
    return wave_N


def _filtered(
    wave_N: Tensor, rate: int, filter_db: float, rng: np.random.Generator, in_room: bool
) -> Tensor:
    """Return the waveform through a smooth random filter and, if `in_room`, a simulated room."""
    response = _room(rate, rng) if in_room else np.zeros(_FILTER_SAMPLES, np.float32)
    # Without this padding the end of the filtered waveform would be added to its start.
    size = _fast_size(len(wave_N) + len(response))
    spectrum = rfft(wave_N.numpy(), size)
    if in_room:
        spectrum *= rfft(response, size)
    hz = np.linspace(0, rate / 2, len(spectrum), dtype=np.float32)
    places, at_knots = _filter_places(rate)
    gains_db = np.interp(at_knots, np.arange(_KNOTS), rng.uniform(-1, 1, _KNOTS))
    gains = 10 ** (filter_db / 20 * gains_db)
    spectrum *= np.interp(hz, places, gains).astype(np.float32)
    return torch.from_numpy(irfft(spectrum, size)[: len(wave_N)])


@cache
def _filter_places(rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the frequencies of a filter's gains in Hz, and their positions among its knots."""
    places = np.geomspace(50, rate / 2, 64)
    knots = np.log(np.geomspace(100, rate / 2, _KNOTS))
    return places, np.interp(np.log(places), knots, np.arange(_KNOTS))


def _fast_size(n: int) -> int:
    """Return a size of at least n that has a fast Fourier transform."""
    power = 1 << (n - 1).bit_length()
    return min(size for size in (power, power * 3 // 4, power * 5 // 8) if size >= n)


def _room(rate: int, rng: np.random.Generator) -> np.ndarray:
    """Return a room's response: the direct sound, then noise that decays (Polack 1988)."""
    decay = rng.uniform(_SHORTEST_DECAY, _LONGEST_DECAY)
    time = np.arange(1, int(decay * rate), dtype=np.float32) / rate
    tail = rng.standard_normal(len(time), np.float32) * np.exp(-math.log(1000) / decay * time)
    tail[: int(rng.uniform(0.001, 0.01) * rate)] = 0  # until the first reflection
    ratio_db = rng.uniform(0, 15)  # of the direct sound to the rest
    tail *= 10 ** (-ratio_db / 20) / np.sqrt(np.square(tail).sum())
    return np.concatenate([np.ones(1, np.float32), tail])
