"""What surrounds speech: pauses before, after and between training utterances, and noise alone.

Corpora are cut tightly around what is said. A model that hears nothing else takes a pause for a
word, and whatever sounds for speech. Legend: N samples.
"""

from collections.abc import Iterable
from random import Random

import numpy as np
import torch
from lhotse import CutSet
from lhotse.cut import Cut, PaddingCut, append_cuts
from torch import Tensor

from asr.features import PausesConfig

# A cut that has it in its `custom` sounds with noise of this seed.
_SEED = "noise_seed"


def surround(cuts: Iterable[Cut], config: PausesConfig, chance: Random) -> CutSet:
    """The cuts of an epoch: some as they are, others with pauses, joined, or noise in their place.

    Each cut is in one of them, and all follows from `chance`. Those that are changed go without
    stored features, which are of the utterance alone.
    """
    left, done = list(cuts), []
    chance.shuffle(left)
    while left:
        cut, draw = left.pop(), chance.random()
        if draw < config.noise:
            done.append(_silence(cut.duration, cut, chance))
        elif draw < config.noise + config.joined:
            done.append(_with_pauses([cut, *_more(cut, left, config, chance)], config, chance))
        elif draw < config.noise + config.joined + config.padded:
            done.append(_with_pauses([cut], config, chance))
        else:
            done.append(cut)
    return CutSet.from_cuts(done)


def _more(cut: Cut, left: list[Cut], config: PausesConfig, chance: Random) -> list[Cut]:
    """Take from `left` what follows a cut, up to a random length, the longest pauses included."""
    room = chance.uniform(0, config.joined_seconds) - cut.duration - 2 * config.most_seconds
    taken: list[Cut] = []
    while left and left[-1].duration < room and left[-1].sampling_rate == cut.sampling_rate:
        taken.append(left.pop())
        room -= taken[-1].duration + config.most_seconds
    return taken


def _with_pauses(parts: list[Cut], config: PausesConfig, chance: Random) -> Cut:
    """The parts with a pause before each and after the last."""
    with_pauses: list[Cut] = []
    for part in parts:
        pause = chance.uniform(0, config.most_seconds)
        with_pauses += [_silence(pause, part, chance), part.drop_features()]
    last = _silence(chance.uniform(0, config.most_seconds), parts[0], chance)
    return append_cuts([*with_pauses, last]).with_id(parts[0].id)


def _silence(seconds: float, like: Cut, chance: Random) -> PaddingCut:
    n = max(1, round(seconds * like.sampling_rate))
    return PaddingCut(
        like.id, n / like.sampling_rate, like.sampling_rate, 0.0, num_samples=n,
        custom={_SEED: chance.getrandbits(32)},
    )  # fmt: skip


def with_noise(wave_N: Tensor, sample_rate: int, cut: Cut) -> Tensor:
    """The wave of a cut that `surround` changed, with noise throughout; others as they are.

    Its loudness is 30 to 80 dB below the wave's peak; one in five has none.
    """
    parts = [track.cut for track in cut.tracks] if hasattr(cut, "tracks") else [cut]
    seeds = [part.custom[_SEED] for part in parts if part.custom and _SEED in part.custom]
    if not seeds:
        return wave_N
    rng, peak = np.random.default_rng(seeds[0]), float(wave_N.abs().max())
    if not peak:
        return noise(len(wave_N), sample_rate, rng)
    if rng.random() < 0.2:
        return wave_N
    level = peak * 10 ** (rng.uniform(-80, -30) / 20)
    return wave_N + level * noise(len(wave_N), sample_rate, rng)


def noise(n: int, sample_rate: int, rng: np.random.Generator) -> Tensor:
    """Something (samples,) that nobody said, of a loudness (RMS) of 1.

    A hiss between white and brown, maybe of one band only, maybe swelling; over it, in some, a hum
    or clicks.
    """
    freqs = np.fft.rfftfreq(n, 1 / sample_rate)
    spectrum = rng.normal(size=(2, len(freqs))).T @ (1, 1j)
    spectrum *= np.maximum(freqs, 20.0) ** -rng.uniform(0, 1)
    if rng.random() < 0.3:
        low, high = np.sort(rng.uniform(0, sample_rate / 2, 2))
        spectrum[(freqs < low) | (freqs > high)] *= 0.01
    wave = _loud(np.fft.irfft(spectrum, n))
    if rng.random() < 0.3:
        knots = rng.uniform(-2, 0, 2 + int(n / sample_rate * rng.uniform(1, 6)))
        wave *= 10 ** np.interp(np.linspace(0, len(knots) - 1, n), np.arange(len(knots)), knots)
    over = rng.random()
    if over < 0.25:
        wave = _loud(wave) * 10 ** rng.uniform(-3, 0) + _hum(n, sample_rate, rng)
    elif over < 0.4:
        clicks = rng.normal(size=n) * (rng.random(n) < rng.uniform(0.3, 10) / sample_rate)
        wave = _loud(wave) * 10 ** rng.uniform(-5, -2) + clicks
    return torch.from_numpy(_loud(wave)).float()


def _hum(n: int, sample_rate: int, rng: np.random.Generator) -> np.ndarray:
    """A tone of some harmonics, steady or gliding."""
    begin = 40 * 2 ** rng.uniform(0, 6)
    end = begin * 2 ** (rng.uniform(-1, 1) * (rng.random() < 0.3))
    phase = 2 * np.pi * np.cumsum(np.linspace(begin, end, n)) / sample_rate
    shares = rng.random(rng.integers(1, 9)) ** 2
    return _loud(sum(a * np.sin(k * phase) for k, a in enumerate(shares, 1)))


def _loud(wave: np.ndarray) -> np.ndarray:
    return wave / max(np.sqrt(np.mean(wave**2)), 1e-12)
