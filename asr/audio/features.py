"""Waves to features: log power spectrograms or log-mel, normalized, and their augmentation."""

import warnings
from collections.abc import Iterable
from typing import Annotated, Literal, Self

import torch
import torchaudio
from pydantic import Field, model_validator
from torch import Tensor, nn

from asr.errors import DataError
from asr.schema import FrozenModel

# Features reach from an utterance's loudest bin to 80 dB below it.
_DYNAMIC_RANGE = 1e-8


_TINY_POWER = 1e-20


# The scatter of log power in speech is about 4, of one impulse's rounding errors about 1e-6: what
# is below this is flat, and dividing by it would only blow up noise.
_FLAT = 1e-3


class _Framing(FrozenModel):
    """How a wave is cut into frames; the base of every kind of features."""

    kind: str
    sample_rate: int = Field(default=16000, ge=1000, le=384_000)
    window_ms: float = Field(default=20, gt=0, le=1000)
    hop_ms: float = Field(default=10, gt=0)
    normalize: Literal["utterance", "corpus"] = "utterance"

    @property
    def n_fft(self) -> int:
        """Samples in a window, made even so that frames lie centred on multiples of the hop."""
        return 2 * round(self.window_ms * self.sample_rate / 2000)

    @property
    def hop_length(self) -> int:
        """Samples from one frame to the next."""
        return round(self.hop_ms * self.sample_rate / 1000)

    @model_validator(mode="after")
    def _frames_overlap(self) -> Self:
        if not 1 <= self.hop_length <= self.n_fft:
            raise ValueError(
                f"a hop of {self.hop_ms:g} ms and a window of {self.window_ms:g} ms at "
                f"{self.sample_rate} Hz skip samples: hop_ms must be at least one sample and at "
                "most window_ms"
            )
        return self


class FeatureExtractor(nn.Module):
    """Log power features of one utterance at a time (thesis 4.1).

    One at a time, because padding would change what normalisation sees: batch-mates never matter.
    `mel_FM` (power bins, mel bins) folds the bins of the spectrogram, if it is given.
    """

    window: Tensor
    mel_FM: Tensor | None
    mean_F: Tensor
    std_F: Tensor

    def __init__(self, config: _Framing, mel_FM: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        n_freqs = config.n_fft // 2 + 1 if mel_FM is None else mel_FM.shape[1]
        # Both follow from the configuration, so they are not saved with the weights.
        self.register_buffer("window", torch.hann_window(config.n_fft), persistent=False)
        self.register_buffer("mel_FM", mel_FM, persistent=False)
        if config.normalize == "corpus":
            self.register_buffer("mean_F", torch.zeros(n_freqs))
            self.register_buffer("std_F", torch.ones(n_freqs))

    def forward(self, wave_N: Tensor) -> Tensor:
        """Normalised features (time, freq) of one wave (samples,), 1 + N // hop_length frames.

        Gain never matters, and any finite wave, be it silence or a single sample, gives finite
        features. With `normalize: corpus`, `fit` or a loaded bundle must have set the statistics.
        """
        return self.normalized(self.log_power(wave_N))

    def normalized(self, feats_TF: Tensor) -> Tensor:
        """Log power of one utterance (time, freq), as computed or as stored, normalized."""
        if self.config.normalize == "corpus":
            return (feats_TF - self.mean_F) / self.std_F
        std, mean = torch.std_mean(feats_TF, correction=0)
        return (feats_TF - mean) / std.clamp(min=_FLAT)

    def log_power(self, wave_N: Tensor) -> Tensor:
        """Natural logarithm of power over the utterance's largest, cut off at 80 dB below it.

        (samples,) -> (time, freq), not normalized.
        """
        power_TF = self.power(wave_N)
        peak = power_TF.max()
        floor = (_DYNAMIC_RANGE * peak).clamp(min=_TINY_POWER)
        return torch.log(power_TF.maximum(floor)) - torch.log(peak.clamp(min=_TINY_POWER))

    def power(self, wave_N: Tensor) -> Tensor:
        """Power spectrogram or mel spectrogram (time, freq) of the wave scaled to a peak of 1."""
        assert wave_N.ndim == 1 and len(wave_N), "features are of one utterance that has samples"
        # The scale keeps both 1e30 and 1e-30 within what float32 can square.
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
        """Take mean and standard deviation of each bin from a corpus of waves (samples,).

        One wave is held at a time. Raises DataError where there is none.
        """
        assert self.config.normalize == "corpus", "only corpus normalisation has statistics"
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
        self.std_F.copy_(variance_F.sqrt().clamp(min=_FLAT))


class SpectrogramConfig(_Framing):
    """The papers' features: a power spectrogram of 20 ms windows every 10 ms (thesis 4.2.1)."""

    kind: Literal["spectrogram"] = "spectrogram"

    @property
    def n_freqs(self) -> int:
        """Bins of a frame: 161 at 16 kHz, 81 at 8 kHz."""
        return self.n_fft // 2 + 1

    def build(self) -> FeatureExtractor:
        """The module that makes these features."""
        return FeatureExtractor(self)


class LogMelConfig(_Framing):
    """Mel bins of Slaney's scale and area, as librosa has them by default."""

    kind: Literal["log_mel"] = "log_mel"
    window_ms: float = Field(default=25, gt=0, le=1000)
    n_mels: int = Field(default=80, ge=1, le=1024)

    @property
    def n_freqs(self) -> int:
        """Bins of a frame."""
        return self.n_mels

    def build(self) -> FeatureExtractor:
        """The module that makes these features."""
        return FeatureExtractor(self, self._filters())

    def _filters(self) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of empty filters, which are refused below
            return torchaudio.functional.melscale_fbanks(
                self.n_fft // 2 + 1,
                f_min=0.0,
                f_max=self.sample_rate / 2,
                n_mels=self.n_mels,
                sample_rate=self.sample_rate,
                norm="slaney",
                mel_scale="slaney",
            )

    @model_validator(mode="after")
    def _no_empty_filter(self) -> Self:
        n_empty = int((self._filters().amax(0) == 0).sum())
        if n_empty:
            raise ValueError(
                f"n_mels {self.n_mels} leaves {n_empty} mel bins without any of the "
                f"{self.n_fft // 2 + 1} bins of a {self.window_ms:g} ms window: lower n_mels or "
                "lengthen window_ms"
            )
        return self


FeaturesConfig = Annotated[SpectrogramConfig | LogMelConfig, Field(discriminator="kind")]
