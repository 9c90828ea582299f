"""Augmentation with other voices, rooms and microphones, drawn for each utterance.

A voice is a source and a filter: the power spectrogram is divided by its envelope (which the vocal
tract shapes), what is left (from the vocal folds) is stretched to another pitch, and the envelope
is applied again with its resonances, the formants, at other frequencies. The parts may be kept for
all epochs. Only an overloaded recorder changes the waveform, by cutting its peaks, before all else.
Legend: N samples, F frequency bins, C cepstra, T frames of the spectrogram and of features.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np
import torch
from lhotse import CutSet
from lhotse.cut import Cut, MixedCut
from lhotse.cut.data import DataCut
from lhotse.utils import fastcopy
from scipy.signal import lfilter  # type: ignore[import-untyped]
from torch import Tensor

from asr.audio.augmentation import VoicesConfig
from asr.audio.features import FeatureExtractor
from asr.data.noise import VOICE_SEED, noise

_ENVELOPE_SECONDS = 0.002  # of the cepstrum; a pitch period is longer
_DYNAMIC_RANGE = 1e-8  # of the power that an envelope is taken of, relative to its largest bin
_TINY_POWER = 1e-30  # with any gain below the least that features tell from silence
_DECAY_SECONDS = 0.1, 0.7  # in which a room's sound falls by 60 dB
_ECHO_DB = -15.0, 0.0  # of all echoes, relative to the direct sound
_MOST_SNR_DB = 40.0
_MOST_CUT_DB = 20.0  # of the peaks
_KNOTS, _LOWEST_KNOT_HZ = 6, 100.0  # of a random filter
_NOISES, _NOISE_SECONDS = 64, 4


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


@dataclass(frozen=True)
class Spoken:
    """An utterance as `Voices` changes it, the same in every epoch.

    `parts_RT` (F + C, T) are its source and filter (`source_and_filter`). The waveform is None
    where no recorder cuts its peaks.
    """

    parts_RT: Tensor
    wave_N: Tensor | None

    @property
    def nbytes(self) -> int:
        """Return the size in memory."""
        return self.parts_RT.nbytes + (0 if self.wave_N is None else self.wave_N.nbytes)


class Voices:
    """Computes the features of utterances as another person might have said them elsewhere."""

    def __init__(self, config: VoicesConfig, features: FeatureExtractor) -> None:
        self.config, self.features = config, features
        self._rate = features.config.sample_rate
        self._n_bins = features.spectrum(torch.zeros(1)).shape[1]
        self._n_cepstra = min(round(_ENVELOPE_SECONDS * self._rate), self._n_bins - 1)
        # Before there are reading processes, which share it and live for an epoch.
        self._noises = self._noise_spectra() if config.noise else []

    @property
    def nbytes(self) -> int:
        """Return the size of the noises in memory."""
        return sum(noise_FT.nbytes for noise_FT in self._noises)

    def spoken(self, wave_N: Tensor) -> Spoken:
        """Return an utterance in its own voice, of which `features_of` makes others."""
        return Spoken(self._parts(wave_N), wave_N if self.config.overload else None)

    def features_of(self, spoken: Spoken, cut: Cut) -> Tensor:
        """Return features (T, bins) of an utterance, changed by the cut's seed."""
        config, rng = self.config, np.random.default_rng(voice_seed(cut))
        pitch, formants, tempo = (
            _factor(most, rng) for most in (config.pitch, config.formants, config.tempo)
        )
        in_room, is_noisy, is_cut = rng.random(3) < (config.rooms, config.noise, config.overload)
        parts_RT = spoken.parts_RT
        if is_cut and spoken.wave_N is not None:
            parts_RT = self._parts(without_peaks(spoken.wave_N, rng))
        log_FT = change_voice(parts_RT, self._n_cepstra, pitch, formants)
        if config.filter_db:
            log_FT += self._microphone(rng)
        power_FT = log_FT.exp_()
        if in_room:
            hop_seconds = self.features.config.hop_length / self._rate
            power_FT = with_echoes(power_FT, hop_seconds, rng)
        if is_noisy:
            behind_FT = self._noises[rng.integers(len(self._noises))]
            power_FT = with_noise_behind(power_FT, behind_FT, config.least_snr_db, rng)
        return change_tempo(self.features.of_spectrum(power_FT.T), tempo)

    def _parts(self, wave_N: Tensor) -> Tensor:
        return source_and_filter(self.features.spectrum(wave_N).T, self._n_cepstra)

    def _microphone(self, rng: np.random.Generator) -> Tensor:
        """Return the logarithm of a smooth random filter's power (F, 1)."""
        db_F = np.interp(self._knots_F, np.arange(_KNOTS), rng.uniform(-1, 1, _KNOTS))
        decibel = self.config.filter_db * math.log(10) / 10
        return torch.from_numpy(decibel * db_F).float()[:, None]

    @cached_property
    def _knots_F(self) -> np.ndarray:
        """Return between which knots of a filter each bin lies; knots are at equal intervals."""
        hz_F = np.linspace(0, self._rate / 2, self._n_bins).clip(_LOWEST_KNOT_HZ)
        octaves_F = np.log(hz_F)
        places_F: np.ndarray = (octaves_F - octaves_F[0]) / (octaves_F[-1] - octaves_F[0])
        return (_KNOTS - 1) * places_F

    def _noise_spectra(self) -> list[Tensor]:
        """Return the power (F, T) of noises."""
        rng, n = np.random.default_rng(0), _NOISE_SECONDS * self._rate
        waves = (noise(n, self._rate, rng) for _ in range(_NOISES))
        return [self.features.spectrum(wave_N).T.contiguous() for wave_N in waves]


def without_peaks(wave_N: Tensor, rng: np.random.Generator) -> Tensor:
    """Return a waveform by a recorder that it was too loud for, which cuts its peaks."""
    limit = float(wave_N.abs().max()) * 10 ** (-rng.uniform(0, _MOST_CUT_DB) / 20)
    return wave_N.clamp(-limit, limit)


def source_and_filter(power_FT: Tensor, n_cepstra: int) -> Tensor:
    """Return the logarithm of the power without its envelope, then the envelope's cepstra (C, T).

    The envelope is of the first cepstra (Oppenheim & Schafer 1968), of power 80 dB deep; what is
    below that remains in the source.
    """
    power_FT = power_FT.clamp(min=_TINY_POWER)
    floored_FT = power_FT.maximum(_DYNAMIC_RANGE * power_FT.max())
    bins_F = torch.arange(len(power_FT))
    cosines_FC = _cosines(bins_F, len(bins_F), n_cepstra)
    to_CF = cosines_FC.T / (len(bins_F) - 1)
    to_CF[1:] /= 2
    to_CF[:, [0, -1]] /= 2
    cepstra_CT = to_CF @ floored_FT.log()
    return torch.cat((power_FT.log() - cosines_FC @ cepstra_CT, cepstra_CT))


def change_voice(parts_RT: Tensor, n_cepstra: int, pitch: float, formants: float) -> Tensor:
    """Return the logarithm of the power (F, T) with pitch and formants times these factors."""
    source_FT, cepstra_CT = parts_RT[:-n_cepstra], parts_RT[-n_cepstra:]
    last, bins_F = len(source_FT) - 1, torch.arange(len(source_FT), dtype=torch.float32)
    # A lower pitch leaves the highest bins empty: they get those below, mirrored.
    source_FT = _rows_at(source_FT, last - (last - bins_F / pitch).abs())
    cosines_FC = _cosines((bins_F / formants).clamp(max=last), last + 1, n_cepstra)
    return torch.addmm(source_FT, cosines_FC, cepstra_CT)


def with_echoes(power_FT: Tensor, hop_seconds: float, rng: np.random.Generator) -> Tensor:
    """Return the power in a room, whose echoes decay exponentially (Polack 1988)."""
    left = 10 ** (-6 * hop_seconds / rng.uniform(*_DECAY_SECONDS))  # a frame later
    gain = 10 ** (rng.uniform(*_ECHO_DB) / 10) * (1 - left)
    filters = np.array([[gain / 2, gain / 2], [1, -left]], np.float32)  # half a frame late
    echoes_FT = lfilter(*filters, power_FT.numpy())
    return power_FT + torch.from_numpy(echoes_FT)


def with_noise_behind(
    power_FT: Tensor, noise_FT: Tensor, least_snr_db: float, rng: np.random.Generator
) -> Tensor:
    """Return the power with that of a part of the noise, repeated where it is too short."""
    snr_db, n_frames = rng.uniform(least_snr_db, max(_MOST_SNR_DB, least_snr_db)), power_FT.shape[1]
    noise_FT = noise_FT.repeat(1, -(-n_frames // noise_FT.shape[1]))
    first = int(rng.integers(noise_FT.shape[1] - n_frames + 1))
    noise_FT = noise_FT[:, first : first + n_frames]
    ratio = 10 ** (-snr_db / 10) * power_FT.mean() / noise_FT.mean().clamp(min=_TINY_POWER)
    return power_FT + ratio * noise_FT


def _factor(most: float, rng: np.random.Generator) -> float:
    """Return a factor between 1 / most and most, its logarithm uniform."""
    return math.exp(rng.uniform(-1, 1) * math.log(most))


def _cosines(position_F: Tensor, n_bins: int, n_cepstra: int) -> Tensor:
    """Return the matrix (F, C) that takes cepstra to an envelope's logarithm at these bins."""
    cosines_FC = torch.outer(position_F * (torch.pi / (n_bins - 1)), torch.arange(n_cepstra)).cos_()
    cosines_FC[:, 1:] *= 2
    return cosines_FC


def _rows_at(rows: Tensor, position: Tensor) -> Tensor:
    """Return rows at fractional indices, interpolated linearly; beyond the last, the last."""
    position = position.clamp(max=len(rows) - 1)
    below = position.long()
    above = (below + 1).clamp(max=len(rows) - 1)
    share = (position - below)[:, None]
    return torch.lerp(rows.index_select(0, below), rows.index_select(0, above), share)


def change_tempo(feats_TF: Tensor, factor: float) -> Tensor:
    """Return features with 1 / factor as many frames."""
    wanted = max(1, round(len(feats_TF) / factor))
    if wanted == len(feats_TF):
        return feats_TF
    return _rows_at(feats_TF, torch.linspace(0, len(feats_TF) - 1, wanted))
