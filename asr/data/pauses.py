"""Augmentation with pauses before, after and between training utterances, and with noise alone.

Corpora are cut tightly around speech. A model trained on nothing else recognizes words in pauses
and in noise. Legend: N samples.
"""

from collections.abc import Iterable
from random import Random

import numpy as np
from lhotse import CutSet
from lhotse.cut import Cut, PaddingCut, append_cuts
from torch import Tensor

from asr.audio.augmentation import PausesConfig
from asr.data.noise import NOISE_SEED, noise


def augment_with_pauses(cuts: Iterable[Cut], config: PausesConfig, rng: Random) -> CutSet:
    """Return an epoch's cuts: some unchanged, others padded, joined or replaced by noise.

    Each given cut becomes one of them or a part of one. All random draws come from `rng`.
    """
    left, done = list(cuts), []
    rng.shuffle(left)
    while left:
        cut, draw = left.pop(), rng.random()
        if draw < config.noise:
            done.append(_silence(cut.duration, cut, rng))
        elif draw < config.noise + config.joined:
            done.append(_with_pauses([cut, *_take_following(cut, left, config, rng)], config, rng))
        elif draw < config.noise + config.joined + config.padded:
            done.append(_with_pauses([cut], config, rng))
        else:
            done.append(cut)
    return CutSet.from_cuts(done)


def _take_following(cut: Cut, left: list[Cut], config: PausesConfig, rng: Random) -> list[Cut]:
    """Take cuts off `left` to follow `cut`, up to a random length in all with longest pauses."""
    room = rng.uniform(0, config.joined_seconds) - cut.duration - 2 * config.most_seconds
    taken: list[Cut] = []
    while left and left[-1].duration < room and left[-1].sampling_rate == cut.sampling_rate:
        taken.append(left.pop())
        room -= taken[-1].duration + config.most_seconds
    return taken


def _with_pauses(parts: list[Cut], config: PausesConfig, rng: Random) -> Cut:
    """Join cuts, with a pause before each and after the last."""
    with_pauses: list[Cut] = []
    for part in parts:
        pause = rng.uniform(0, config.most_seconds)
        with_pauses += [_silence(pause, part, rng), part.drop_features()]
    last = _silence(rng.uniform(0, config.most_seconds), parts[0], rng)
    return append_cuts([*with_pauses, last]).with_id(parts[0].id)


def _silence(seconds: float, like: Cut, rng: Random) -> PaddingCut:
    rate = like.sampling_rate
    n = max(1, round(seconds * rate))
    seed = {NOISE_SEED: rng.getrandbits(32)}
    return PaddingCut(like.id, n / rate, rate, 0.0, num_samples=n, custom=seed)


def with_noise(wave_N: Tensor, sample_rate: int, cut: Cut) -> Tensor:
    """Return the waveform with noise if `augment_with_pauses` changed its cut, else unchanged.

    The noise's RMS is 30 to 80 dB below the waveform's peak; one waveform in five gets no noise. A
    waveform of zeros is replaced by noise of RMS 1.
    """
    parts = [track.cut for track in cut.tracks] if hasattr(cut, "tracks") else [cut]
    seeds = [part.custom[NOISE_SEED] for part in parts if part.custom and NOISE_SEED in part.custom]
    if not seeds:
        return wave_N
    rng, peak = np.random.default_rng(seeds[0]), float(wave_N.abs().max())
    if not peak:
        return noise(len(wave_N), sample_rate, rng)
    if rng.random() < 0.2:
        return wave_N
    level = peak * 10 ** (rng.uniform(-80, -30) / 20)
    return wave_N + level * noise(len(wave_N), sample_rate, rng)
