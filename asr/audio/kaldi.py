"""Kaldi's log-mel filterbank (Povey et al. 2011; `compute-fbank-feats`), without dither.

`tests/audio/test_features.py` compares it with kaldi-native-fbank and torchaudio.

Legend: N samples, T frames, W samples of a window, F bins of the spectrum, M mel bins.
"""

import numpy as np
import torch
from torch import Tensor, nn

_LOW_HZ = 20.0  # below, Kaldi ignores the spectrum
PREEMPHASIS = 0.97
FLOOR = torch.finfo(torch.float32).eps  # the least energy, of 16-bit samples
_POVEY = 0.85  # power of a Hann window


def povey_window(n_window: int) -> Tensor:
    """Return Kaldi's window (samples,): a symmetric Hann window to a power, which has no zero."""
    phase_W = torch.arange(n_window) * (2 * torch.pi / (n_window - 1))
    return (0.5 - 0.5 * phase_W.cos()).clamp(min=0) ** _POVEY


def mel_filters(sample_rate: int, n_window: int, n_mels: int, high_hz: float) -> Tensor:
    """Return the weights (bins, mel bins): triangles in mels up to `high_hz`, of a height of one.

    The bins are those of a window zero-padded to a power of two. The scale is HTK's.
    """
    n_fft = padded(n_window)
    bins_F = _mels(np.arange(n_fft // 2 + 1) * (sample_rate / n_fft))
    edges = np.linspace(_mels(_LOW_HZ), _mels(high_hz), n_mels + 2)
    low_M, center_M, high_M = edges[:-2], edges[1:-1], edges[2:]
    rising_FM = (bins_F[:, None] - low_M) / (center_M - low_M)
    falling_FM = (high_M - bins_F[:, None]) / (high_M - center_M)
    weights_FM = np.minimum(rising_FM, falling_FM).clip(min=0)
    weights_FM[-1] = 0  # half the sample rate, where Kaldi has no bin
    return torch.from_numpy(weights_FM.astype(np.float32))


def mirrored(wave_N: Tensor, n_window: int, hop: int) -> Tensor:
    """Return a waveform of at least one window with parts of its mirror image at both ends.

    round(samples / hop) windows then fit; window t is centered on sample (t + 1/2) · hop (Kaldi's
    `--snip-edges=false`).
    """
    n_frames = (len(wave_N) + hop // 2) // hop
    before = n_window // 2 - hop // 2
    after = max(0, (n_frames - 1) * hop + n_window - before - len(wave_N))
    padded = torch.cat((wave_N[:before].flip(0), wave_N, wave_N.flip(0)[:after]))
    return padded[: (n_frames - 1) * hop + n_window]


def fbank(
    wave_N: Tensor, window_W: Tensor, mel_FM: Tensor, hop: int, floor: float = FLOOR
) -> Tensor:
    """Return log energies (frames, mel bins) of all whole windows of 16-bit samples (samples,)."""
    n_window = len(window_W)
    frames_TW = wave_N.unfold(0, n_window, hop)
    frames_TW = frames_TW - frames_TW.mean(1, keepdim=True)
    earlier_TW = torch.cat((frames_TW[:, :1], frames_TW[:, :-1]), 1)
    frames_TW = (frames_TW - PREEMPHASIS * earlier_TW) * window_W
    n_zeros = padded(n_window) - n_window
    spectrum_TF = torch.fft.rfft(nn.functional.pad(frames_TW, (0, n_zeros)))
    power_TF = spectrum_TF.real.square() + spectrum_TF.imag.square()
    energies_TM: Tensor = power_TF @ mel_FM
    return energies_TM.clamp(min=floor).log()


def padded(n_window: int) -> int:
    """Return the smallest power of two that is no less than the samples of a window."""
    return 1 << (n_window - 1).bit_length()


def _mels(hertz: np.ndarray | float) -> np.ndarray:
    found: np.ndarray = 1127 * np.log1p(np.asarray(hertz) / 700)
    return found
