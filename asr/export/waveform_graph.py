"""Graph from a waveform to CTC log-probabilities: the bundle's features are convolutions in it.

Legend: N samples, T frames, F frequency bins, M mel bins, W samples of a window, S encoder steps,
V vocabulary; the batch is one utterance.
"""

import math
from fractions import Fraction

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad

from asr.audio.features import (
    KALDI_SCALE,
    FeatureExtractor,
    KaldiExtractor,
    log_of_power,
    normalized_utterance,
)
from asr.audio.kaldi import PREEMPHASIS, padded
from asr.bundle import Bundle
from asr.export.columns import first, without_special
from asr.model.frontend import FRAMES_PER_STEP

RATE = 16_000
STEPS_PER_SECOND = 50
_PASSED = 0.94  # share of the lower of two bands that a resampler lets through
_CROSSINGS = 32  # of its sinc, on each side
_SILENT = 0.01  # from this share of samples on, a repeated value counts as digital silence
_MOST_WEIGHTS, _MOST_FOURIER = 1 << 21, 1 << 23


def fourier(n_fft: int, n_window: int) -> Tensor:
    """Return the matrix (2 F, W) in float64: real parts of the spectrum, then imaginary ones."""
    steps_FW = torch.outer(torch.arange(n_fft // 2 + 1), torch.arange(n_window)) % n_fft
    angles_FW = steps_FW * (-2 * torch.pi / n_fft)
    return torch.cat((angles_FW.double().cos(), angles_FW.double().sin()))


def resampling(rate: int) -> tuple[Tensor, int, int]:
    """Return a convolution from 16 kHz to a lower rate: weights (phases, 1, taps), stride, reach.

    Output sample m is phase m % phases of place m // phases: a sinc in a Hann window (Smith 2002,
    Digital Audio Resampling).
    """
    ratio = Fraction(rate, RATE)
    up, down = ratio.numerator, ratio.denominator
    band = _PASSED * rate / RATE
    reach = math.ceil(_CROSSINGS / band)
    taps = torch.arange(-reach, down + reach + 1, dtype=torch.float64)
    apart = torch.arange(up, dtype=torch.float64)[:, None] * (down / up) - taps
    hann = torch.where(apart.abs() < reach, (apart * (torch.pi / 2 / reach)).cos().square(), 0.0)
    return (band * torch.sinc(band * apart) * hann)[:, None], down, reach


def fits(n_fft: int) -> bool:
    """Tell whether the matrix of a Fourier transform is small enough for a graph."""
    return n_fft * n_fft <= _MOST_FOURIER


def can_resample(rate: int) -> bool:
    """Tell whether a convolution that is small enough makes waveforms of this rate."""
    ratio = Fraction(rate, RATE)
    return ratio <= 1 and ratio.numerator * ratio.denominator <= _MOST_WEIGHTS


def without_offset(wave_1N: Tensor) -> Tensor:
    """Return a waveform with digital silence at zero again, after sherpa-onnx took out the mean.

    Silence is the value of the first or the last sample, if it often occurs twice in a row.
    """
    ends_21 = torch.cat((wave_1N[:, :1], wave_1N[:, -1:]))
    is_end_2N = wave_1N == ends_21
    share_2 = (is_end_2N[:, 1:] & is_end_2N[:, :-1]).float().mean(1)
    level = torch.where(share_2[0] >= share_2[1], ends_21[0], ends_21[1])
    return wave_1N - torch.where(share_2.max() >= _SILENT, level, 0)


class Resampler(nn.Module):
    """Convert a waveform of 16 kHz to a lower rate."""

    kernel: Tensor

    def __init__(self, rate: int) -> None:
        super().__init__()
        ratio = Fraction(rate, RATE)
        self.up, self.down = ratio.numerator, ratio.denominator
        kernel, self.stride, self.reach = resampling(rate)
        self.register_buffer("kernel", kernel.float())

    def forward(self, wave_1N: Tensor) -> Tensor:
        """Map (1, N) to (1, ⌈N · up / down⌉)."""
        n = (wave_1N.shape[1] * self.up + self.down - 1) // self.down
        around = pad(wave_1N[:, None], (self.reach, self.reach + self.down))
        phases = conv1d(around, self.kernel, stride=self.stride)
        return first(phases.transpose(1, 2).flatten(1), n)


class LogPowerGraph(nn.Module):
    """The (log-mel) spectrogram of `FeatureExtractor`, by a convolution: no Fourier transform."""

    kernel: Tensor
    mel_FM: Tensor | None

    def __init__(self, features: FeatureExtractor) -> None:
        super().__init__()
        config = features.config
        self.hop, self.n_window = config.hop_length, config.n_fft
        kernel = fourier(self.n_window, self.n_window) * features.window.double()
        self.register_buffer("kernel", kernel[:, None].float())
        self.register_buffer("mel_FM", features.mel_FM)

    def forward(self, wave_1N: Tensor) -> Tensor:
        """Map (1, N) to (1, 1 + N // hop, F), not normalized."""
        peak = wave_1N.abs().max()
        wave_1N = wave_1N / torch.where(peak > 0, peak, 1)
        return log_of_power(self._power(wave_1N))

    def _power(self, wave_1N: Tensor) -> Tensor:
        half = self.n_window // 2
        return _power(pad(wave_1N[:, None], (half, half)), self.kernel, self.hop, self.mel_FM)


class FilterbankGraph(nn.Module):
    """Kaldi's filterbank of a waveform at a peak of 1.

    Its convolution also takes out each window's mean and applies the pre-emphasis.
    """

    kernel: Tensor
    mel_FM: Tensor

    def __init__(self, features: KaldiExtractor) -> None:
        super().__init__()
        config = features.config
        self.hop, self.n_window, self.floor = config.hop_length, config.n_fft, features.floor
        W = self.n_window
        kernel = fourier(padded(W), W) * features.window.double()
        later = pad(kernel[:, 1:], (0, 1))
        kernel[:, 0] *= 1 - PREEMPHASIS  # the first sample also precedes itself
        kernel -= PREEMPHASIS * later
        kernel -= kernel.mean(1, keepdim=True)
        self.register_buffer("kernel", KALDI_SCALE * kernel[:, None].float())
        self.register_buffer("mel_FM", features.mel_FM)

    def forward(self, wave_1N: Tensor) -> Tensor:
        """Map (1, N) to (1, round(N / hop), M), not normalized."""
        n_frames = (wave_1N.shape[1] + self.hop // 2) // self.hop
        peak = wave_1N.abs().max()
        wave_1N = wave_1N / torch.where(peak > 0, peak, 1)
        before = self.n_window // 2 - self.hop // 2
        parts = (wave_1N[:, :before].flip(1), wave_1N, wave_1N.flip(1)[:, : self.n_window])
        around = pad(torch.cat(parts, 1), (0, self.n_window))  # a short one too gets a window
        power_1TM = _power(around[:, None], self.kernel, self.hop, self.mel_FM)
        return first(power_1TM, n_frames).clamp(min=self.floor).log()


def _power(wave_11N: Tensor, kernel: Tensor, hop: int, mel_FM: Tensor | None) -> Tensor:
    """Return the power of each window, (1, T, F), summed to mel bins if there are filters."""
    real, imaginary = conv1d(wave_11N, kernel, stride=hop).chunk(2, 1)
    power_1TF = (real.square() + imaginary.square()).transpose(1, 2)
    return power_1TF if mel_FM is None else power_1TF @ mel_FM


class WaveformGraph(nn.Module):
    """Map samples of 16 kHz, whatever their gain, to log-probabilities of CTC every 20 ms.

    A step of the encoder is repeated as long as it lasts: to CTC, a token repeated is one token.
    """

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        features, config = bundle.features, bundle.config.features
        self.resample = (
            nn.Identity() if config.sample_rate == RATE else Resampler(config.sample_rate)
        )
        self.spectrum = (
            FilterbankGraph(features)
            if isinstance(features, KaldiExtractor)
            else LogPowerGraph(features)
        )
        self.features, self.by_corpus = features, config.normalize == "corpus"
        self.model, self.steps = bundle.model, bundle.config.model.frontend.steps
        # The lengths of an output step (1 / 50 s) and of an encoder step, in samples times 50.
        self.frame, self.step = (
            config.sample_rate,
            STEPS_PER_SECOND * FRAMES_PER_STEP * config.hop_length,
        )

    def places(self, n_steps: int) -> Tensor:
        """Return the index of the output step with which each step of the encoder begins."""
        return -(-torch.arange(n_steps) * self.step // self.frame)

    def forward(self, wave_1N: Tensor) -> Tensor:
        """Map (1, N) to (1, S', V'), with no step where there are too few samples."""
        feats_1TF = self.spectrum(self.resample(without_offset(wave_1N)))
        normalize = self.features.normalized if self.by_corpus else normalized_utterance
        feats_1TF = normalize(feats_1TF)
        frames_1 = torch.ones_like(feats_1TF[..., 0]).sum(1).long()
        steps = self.steps(feats_1TF.shape[1])
        # One more step of padding, so that the encoder has at least one step.
        padded_1TF = pad(feats_1TF, (0, 0, 0, FRAMES_PER_STEP))
        memory_1SD, _ = self.model.encode(padded_1TF, frames_1)
        logp_1SV = without_special(self.model.ctc_logits(memory_1SD))
        n_repeated = (steps * self.step + self.frame - 1) // self.frame
        index = torch.arange(n_repeated, device=wave_1N.device) * self.frame // self.step
        return logp_1SV[:, index]
