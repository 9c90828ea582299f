"""What surrounds speech: pauses before, after and between training utterances, and noise alone.

Corpora are cut tightly around what is said. A model that hears nothing else takes a pause for a
word, and whatever sounds for speech. Legend: N samples.
"""

from collections.abc import Iterable
from random import Random

import numpy as np
from lhotse import CutSet
from lhotse.cut import Cut, PaddingCut, append_cuts
from torch import Tensor

from asr.audio.augmentation import PausesConfig
from asr.data.noise import noise

# A cut that has it in its `custom` sounds with noise of this seed.
_SEED = "noise_seed"


def augment_with_pauses(cuts: Iterable[Cut], config: PausesConfig, rng: Random) -> CutSet:
    """The cuts of an epoch: some as they are, others with pauses, joined, or noise in their place.

    Each cut is in one of them, and all follows from `chance`. Those that are changed go without
    stored features, which are of the utterance alone.
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
    """Take from `left` what follows a cut, up to a random length, the longest pauses included."""
    room = rng.uniform(0, config.joined_seconds) - cut.duration - 2 * config.most_seconds
    taken: list[Cut] = []
    while left and left[-1].duration < room and left[-1].sampling_rate == cut.sampling_rate:
        taken.append(left.pop())
        room -= taken[-1].duration + config.most_seconds
    return taken


def _with_pauses(parts: list[Cut], config: PausesConfig, rng: Random) -> Cut:
    """The parts with a pause before each and after the last."""
    with_pauses: list[Cut] = []
    for part in parts:
        pause = rng.uniform(0, config.most_seconds)
        with_pauses += [_silence(pause, part, rng), part.drop_features()]
    last = _silence(rng.uniform(0, config.most_seconds), parts[0], rng)
    return append_cuts([*with_pauses, last]).with_id(parts[0].id)


def _silence(seconds: float, like: Cut, rng: Random) -> PaddingCut:
    n = max(1, round(seconds * like.sampling_rate))
    return PaddingCut(
        like.id, n / like.sampling_rate, like.sampling_rate, 0.0, num_samples=n,
        custom={_SEED: rng.getrandbits(32)},
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
