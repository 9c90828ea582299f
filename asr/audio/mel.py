"""Triangular filters on Slaney's mel scale.

The scale is that of the Auditory Toolbox (Slaney 1998, Interval Research report 1998-010): linear
below 1 kHz, logarithmic above. `tests/audio/test_features.py` compares the filters with librosa's.
"""

import numpy as np

_LINEAR_HZ = 200 / 3  # of one mel below 1 kHz
_BREAK_HZ = 1000.0
_LOG_STEP = np.log(6.4) / 27  # of one mel above: 27 of them multiply the frequency by 6.4


def slaney_filters(sample_rate: int, n_fft: int, n_mels: int) -> np.ndarray:
    """Return the weights (mel bins, n_fft // 2 + 1) in float32: triangles of an area of one.

    The edges of the triangles are equally spaced in mels from 0 Hz to half of `sample_rate`. A
    triangle that lies between two bins of the spectrum is empty.
    """
    edges_Hz = _to_hertz(np.linspace(0, _to_mels(sample_rate / 2), n_mels + 2))
    bins_Hz = np.fft.rfftfreq(n_fft, 1 / sample_rate)
    low, center, high = edges_Hz[:-2, None], edges_Hz[1:-1, None], edges_Hz[2:, None]
    rising, falling = (bins_Hz - low) / (center - low), (high - bins_Hz) / (high - center)
    # Rounded before the product too, as in librosa, whose filters trained models have seen.
    heights = np.minimum(rising, falling).clip(min=0).astype(np.float32)
    weights: np.ndarray = (heights * (2 / (high - low))).astype(np.float32)
    return weights


def _to_mels(hertz: float) -> float:
    if hertz < _BREAK_HZ:
        return hertz / _LINEAR_HZ
    return float(_BREAK_HZ / _LINEAR_HZ + np.log(hertz / _BREAK_HZ) / _LOG_STEP)


def _to_hertz(mels: np.ndarray) -> np.ndarray:
    above = mels - _BREAK_HZ / _LINEAR_HZ
    found: np.ndarray = np.where(
        above < 0, mels * _LINEAR_HZ, _BREAK_HZ * np.exp(_LOG_STEP * above)
    )
    return found
