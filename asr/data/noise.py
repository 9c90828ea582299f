"""Random background noise.

Legend: N samples.
"""

import numpy as np
import torch
from scipy.fft import irfft, next_fast_len, rfftfreq  # type: ignore[import-untyped]
from torch import Tensor

# The keys of seeds in a cut's `custom`: for noise around the speech, and for another voice.
NOISE_SEED, VOICE_SEED = "noise_seed", "voice_seed"


def noise(n: int, sample_rate: int, rng: np.random.Generator) -> Tensor:
    """Return random noise (samples,) of RMS 1 without any speech.

    Colored noise between white and brown, at times band-limited or of varying level; some of it
    with a hum or clicks on top.
    """
    size = next_fast_len(n, real=True)  # a length with large prime factors has a slow transform
    freqs = rfftfreq(size, 1 / sample_rate).astype(np.float32)
    spectrum = _normal((len(freqs), 2), rng).view(np.complex64)[:, 0]
    spectrum *= np.maximum(freqs, np.float32(20)) ** np.float32(-rng.uniform(0, 1))
    if rng.random() < 0.3:
        low, high = np.sort(rng.uniform(0, sample_rate / 2, 2))
        spectrum[(freqs < low) | (freqs > high)] *= np.float32(0.01)
    wave = _unit_rms(irfft(spectrum, size)[:n])
    if rng.random() < 0.3:
        knots = rng.uniform(-2, 0, 2 + int(n / sample_rate * rng.uniform(1, 6)))
        wave *= 10 ** np.interp(np.linspace(0, len(knots) - 1, n), np.arange(len(knots)), knots)
    over = rng.random()
    if over < 0.25:
        wave = _unit_rms(wave) * 10 ** rng.uniform(-3, 0) + _hum(n, sample_rate, rng)
    elif over < 0.4:
        clicks = _normal(n, rng) * (rng.random(n) < rng.uniform(0.3, 10) / sample_rate)
        wave = _unit_rms(wave) * 10 ** rng.uniform(-5, -2) + clicks
    return torch.from_numpy(_unit_rms(wave)).float()


def _normal(shape: int | tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def _hum(n: int, sample_rate: int, rng: np.random.Generator) -> np.ndarray:
    """Return a tone of one to eight harmonics, steady or gliding."""
    begin = 40 * 2 ** rng.uniform(0, 6)
    end = begin * 2 ** (rng.uniform(-1, 1) * (rng.random() < 0.3))
    cycles = np.cumsum(np.linspace(begin, end, n)) / sample_rate
    phase = (2 * np.pi * (cycles % 1)).astype(np.float32)  # float32 is too coarse for all cycles
    shares = rng.random(rng.integers(1, 9), np.float32) ** 2
    return _unit_rms(sum(a * np.sin(k * phase) for k, a in enumerate(shares, 1)))


def _unit_rms(wave: np.ndarray) -> np.ndarray:
    unit: np.ndarray = wave / max(np.sqrt(np.mean(wave**2)), 1e-12)
    return unit
