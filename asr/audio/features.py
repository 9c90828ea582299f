"""Waveform to features: log power spectrogram, log-mel or Kaldi's filterbank, normalized.

Legend: N samples, T frames, F frequency bins, M mel bins.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from asr.audio import kaldi
from asr.audio.mel import slaney_filters
from asr.errors import DataError
from asr.schema import FrozenModel

# Log power is cut off at 80 dB below an utterance's loudest bin.
_DYNAMIC_RANGE = 1e-8
_TINY_POWER = 1e-20
# Features whose standard deviation is below this are constant but for rounding errors (speech has
# about 4, a single impulse 1e-6): dividing by less would only amplify the errors.
MIN_STD = 1e-3
_MOST_WEIGHTS = 1 << 23  # of mel filters: 32 MiB
KALDI_SCALE = 2.0**15  # Kaldi computes with 16-bit samples
_SHERPA_GAP_HZ = 400  # between sherpa-onnx's highest mel bin and half the sample rate


class _Framing(FrozenModel):
    """How a waveform is cut into frames; the base of every kind of features."""

    kind: str
    sample_rate: int = Field(default=16000, ge=1000, le=384_000)
    window_ms: float = Field(default=20, gt=0, le=1000)
    hop_ms: float = Field(default=10, gt=0, le=1000)
    normalize: Literal["utterance", "corpus"] = "utterance"

    @property
    @abstractmethod
    def n_freqs(self) -> int:
        """Return the number of bins of a frame."""

    @property
    def n_fft(self) -> int:
        """Return the number of samples in a window, which is even."""
        return 2 * round(self.window_ms * self.sample_rate / 2000)

    @property
    def hop_length(self) -> int:
        """Return the number of samples from one frame to the next."""
        return round(self.hop_ms * self.sample_rate / 1000)

    def n_frames(self, n_samples: int) -> int:
        """Return the number of frames of so many samples, centered on multiples of the hop."""
        return n_samples // self.hop_length + 1

    @property
    def streaming_problem(self) -> str | None:
        """Return why a stream cannot have these features; None if it can."""
        return (
            f"features of kind {self.kind} are relative to the recording's loudest bin, which a "
            "stream does not know: use kind fbank with normalize: corpus"
        )

    @model_validator(mode="after")
    def _frames_overlap(self) -> Self:
        if not 1 <= self.hop_length <= self.n_fft:
            raise ValueError(
                f"a hop of {self.hop_ms:g} ms and a window of {self.window_ms:g} ms at "
                f"{self.sample_rate} Hz skip samples: hop_ms must be at least one sample and at "
                "most window_ms"
            )
        return self


def log_of_power(power: Tensor) -> Tensor:
    """Return the natural logarithm of an utterance's power relative to its largest, 80 dB deep."""
    peak = power.max()
    floor = (_DYNAMIC_RANGE * peak).clamp(min=_TINY_POWER)
    return torch.log(power.maximum(floor)) - torch.log(peak.clamp(min=_TINY_POWER))


def normalized_utterance(feats_TF: Tensor) -> Tensor:
    """Return an utterance's features with mean 0 and standard deviation 1 over all of its bins."""
    std, mean = torch.std_mean(feats_TF, correction=0)
    return (feats_TF - mean) / std.clamp(min=MIN_STD)


class FeatureExtractor(nn.Module):
    """Log power features of one utterance at a time (Cahyawijaya 2021, section 4.1).

    One at a time, because padding would change the statistics that normalize an utterance. `mel_FM`
    (power bins, mel bins) sums the bins of the power spectrum, if it is given.
    """

    window: Tensor
    mel_FM: Tensor | None
    mean_F: Tensor
    std_F: Tensor

    def __init__(self, config: _Framing, mel_FM: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        # Both follow from the configuration, so they are not saved with the weights.
        self.register_buffer("window", torch.hann_window(config.n_fft), persistent=False)
        self.register_buffer("mel_FM", mel_FM, persistent=False)
        if config.normalize == "corpus":
            self.register_buffer("mean_F", torch.zeros(config.n_freqs))
            self.register_buffer("std_F", torch.ones(config.n_freqs))

    def forward(self, wave_N: Tensor) -> Tensor:
        """Return normalized features (time, freq) of one waveform (samples,).

        Any finite waveform, even silence or a single sample, gives finite features. With
        `normalize: corpus`, `fit` or a loaded bundle must have set the statistics.
        """
        feats_TF = self.log_power(wave_N)
        if self.config.normalize == "corpus":
            return self.normalized(feats_TF)
        return normalized_utterance(feats_TF)

    def normalized(self, feats_TF: Tensor) -> Tensor:
        """Return features (time, freq) normalized by the corpus's mean and standard deviation."""
        return (feats_TF - self.mean_F) / self.std_F

    def log_power(self, wave_N: Tensor) -> Tensor:
        """Return the natural logarithm of power relative to the utterance's largest, 80 dB deep.

        (samples,) -> (1 + samples // hop_length, freq), not normalized; independent of the gain.
        """
        return log_of_power(self.power(wave_N))

    def power(self, wave_N: Tensor) -> Tensor:
        """Return the power or mel spectrogram (time, freq) of a waveform scaled to a peak of 1."""
        assert wave_N.ndim == 1 and len(wave_N), "features are of one utterance that has samples"
        # At a peak of 1 the squares of 1e30 and of 1e-30 both fit float32.
        peak = wave_N.abs().max()
        wave_N = wave_N / torch.where(peak > 0, peak, 1)
        with torch.autocast(wave_N.device.type, enabled=False):
            stft_FT = torch.stft(
                wave_N.float(),
                self.config.n_fft,
                self.config.hop_length,
                window=self.window,
                center=True,
                pad_mode="constant",
                return_complex=True,
            )
            power_TF = (stft_FT.real.square() + stft_FT.imag.square()).T
            return power_TF if self.mel_FM is None else power_TF @ self.mel_FM

    @torch.no_grad()
    def fit(self, waves: Iterable[Tensor]) -> None:
        """Set the mean and standard deviation of each bin from a corpus of waveforms (samples,).

        One waveform is in memory at a time. Raises DataError if there is none.
        """
        assert self.config.normalize == "corpus", "only corpus normalization has statistics"
        count = 0
        total_F = torch.zeros_like(self.mean_F, dtype=torch.float64)
        squares_F = torch.zeros_like(total_F)
        for wave_N in waves:
            feats_TF = self.log_power(wave_N).double()
            count += len(feats_TF)
            total_F += feats_TF.sum(0)
            squares_F += feats_TF.square().sum(0)
        if not count:
            raise DataError("no recording to take feature statistics from: check the manifest")
        mean_F = total_F / count
        variance_F = (squares_F / count - mean_F.square()).clamp(min=0)
        self.mean_F.copy_(mean_F)
        self.std_F.copy_(variance_F.sqrt().clamp(min=MIN_STD))


class KaldiExtractor(FeatureExtractor):
    """Kaldi's log-mel filterbank without dither (`asr.audio.kaldi`)."""

    mel_FM: Tensor

    def __init__(self, config: "FbankConfig", mel_FM: Tensor) -> None:
        super().__init__(config, mel_FM)
        self.floor = config.floor
        self.register_buffer("window", kaldi.povey_window(config.n_fft), persistent=False)

    def log_power(self, wave_N: Tensor) -> Tensor:
        """Return the natural logarithm of mel energies of 16-bit samples, not normalized.

        (samples,) -> (round(samples / hop_length), mel bins). Zeros fill a waveform up to a window.
        Full scale of 16 bits is -1 to 1; a waveform beyond it is scaled down to it.
        """
        assert wave_N.ndim == 1 and len(wave_N), "features are of one utterance that has samples"
        wave_N = wave_N.float() / wave_N.abs().max().clamp(min=1)
        wave_N = nn.functional.pad(wave_N, (0, max(0, self.config.n_fft - len(wave_N))))
        return self.filterbank(wave_N, has_edges=True)

    def filterbank(self, wave_N: Tensor, has_edges: bool) -> Tensor:
        """Return log-mel energies (frames, mel bins) of a waveform of at least one window.

        With `has_edges` the waveform is mirrored at its ends, otherwise only whole windows count.
        """
        hop = self.config.hop_length
        with torch.autocast(wave_N.device.type, enabled=False):
            wave_N = wave_N * KALDI_SCALE
            if has_edges:
                wave_N = kaldi.mirrored(wave_N, self.config.n_fft, hop)
            return kaldi.fbank(wave_N, self.window, self.mel_FM, hop, self.floor)


class SpectrogramConfig(_Framing):
    """The papers' features: a power spectrogram (Winata et al. 2020, Cahyawijaya 2021, 4.2.1)."""

    kind: Literal["spectrogram"] = "spectrogram"

    @property
    def n_freqs(self) -> int:
        """Return the number of bins of a frame: 161 at 16 kHz, 81 at 8 kHz."""
        return self.n_fft // 2 + 1

    def build(self) -> FeatureExtractor:
        """Build the module that computes these features."""
        return FeatureExtractor(self)


class _MelConfig(_Framing):
    window_ms: float = Field(default=25, gt=0, le=1000)
    n_mels: int = Field(default=80, ge=4, le=1024)

    @property
    def n_freqs(self) -> int:
        """Return the number of bins of a frame."""
        return self.n_mels

    @abstractmethod
    def _filters(self) -> Tensor:
        """Return the weights (power bins, mel bins)."""

    @model_validator(mode="after")
    def _no_empty_filter(self) -> Self:
        if self.n_fft * self.n_mels > _MOST_WEIGHTS:  # before they take memory
            raise ValueError(
                f"{self.n_mels} mel bins of windows of {self.n_fft} samples are "
                f"{self.n_fft * self.n_mels:,} weights, {_MOST_WEIGHTS:,} at most: lower n_mels or "
                "window_ms"
            )
        if n_empty := int((self._filters().amax(0) == 0).sum()):
            raise ValueError(
                f"n_mels {self.n_mels} leaves {n_empty} mel bins without any frequency of a "
                f"{self.window_ms:g} ms window: lower n_mels or lengthen window_ms"
            )
        return self


class LogMelConfig(_MelConfig):
    """Mel bins with Slaney's scale and area, librosa's default (`asr.audio.mel`)."""

    kind: Literal["log_mel"] = "log_mel"

    def build(self) -> FeatureExtractor:
        """Build the module that computes these features."""
        return FeatureExtractor(self, self._filters())

    def _filters(self) -> Tensor:
        mel_MF = slaney_filters(self.sample_rate, self.n_fft, self.n_mels)
        return torch.from_numpy(mel_MF.T.copy())


class FbankConfig(_MelConfig):
    """Mel bins as Kaldi computes them: HTK's scale, Povey's window, pre-emphasis 0.97, no dither.

    Their level follows the recording's; `normalize: utterance` removes it. With `sherpa_onnx` they
    are those of sherpa-onnx: frequencies end 400 Hz below half the sample rate, and no energy is
    below Kaldi's least for samples from -1 to 1, which is 128 for 16-bit samples.
    """

    kind: Literal["fbank"] = "fbank"
    sherpa_onnx: bool = False

    def n_frames(self, n_samples: int) -> int:
        """Return the number of frames of so many samples, which fill at least a window."""
        return max(1, (n_samples + self.hop_length // 2) // self.hop_length)

    @property
    def high_hz(self) -> float:
        """Return the upper end of the highest bin in Hz."""
        return self.sample_rate / 2 - (_SHERPA_GAP_HZ if self.sherpa_onnx else 0)

    @property
    def floor(self) -> float:
        """Return the least energy of 16-bit samples."""
        return kaldi.FLOOR * (KALDI_SCALE**2 if self.sherpa_onnx else 1)

    @property
    def streaming_problem(self) -> str | None:
        """Return why a stream cannot have these features; None if it can."""
        if self.normalize == "corpus":
            return None
        return (
            "features.normalize: utterance takes statistics of the whole recording, which a stream "
            "does not know: set features.normalize: corpus"
        )

    def build(self) -> FeatureExtractor:
        """Build the module that computes these features."""
        return KaldiExtractor(self, self._filters())

    def _filters(self) -> Tensor:
        return kaldi.mel_filters(self.sample_rate, self.n_fft, self.n_mels, self.high_hz)


FeaturesConfig = Annotated[
    SpectrogramConfig | LogMelConfig | FbankConfig, Field(discriminator="kind")
]
