"""Features of a waveform that is still arriving; each frame is that of the whole waveform.

Legend: N samples, T frames, F frequency bins.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from asr.audio.features import FeatureExtractor, KaldiExtractor


class FeatureStream:
    """Framing of Kaldi's filterbank: frame t is the window around sample (t + ½) · hop.

    Windows that reach beyond a waveform's edges see it reflected there. Full scale is -1 to 1.
    Samples beyond it are cut off, because the peak of a stream is not known.
    """

    def __init__(self, extractor: FeatureExtractor) -> None:
        assert isinstance(extractor, KaldiExtractor), "these features are no stream's"
        self._extractor, config = extractor, extractor.config
        self._window, self._hop = config.n_fft, config.hop_length
        self._edge = self._window // 2 - self._hop // 2

    def n_samples(self, frames: int) -> int:
        """Return the number of samples that the first `frames` frames need, whatever follows."""
        return (frames - 1) * self._hop - self._edge + self._window

    def n_frames(self, samples: int) -> int:
        """Return the number of frames of a waveform that has ended."""
        return (max(samples, self._window) + self._hop // 2) // self._hop if samples else 0

    def frames(self, wave_N: Tensor, first: int, until: int) -> Tensor:
        """Return the normalized features (until - first, F) of the frames from `first` to `until`.

        `wave_N` is the waveform so far; windows beyond its last sample mean that it has ended.
        """
        if len(wave_N) < self._window:
            wave_N = pad(wave_N, (0, self._window - len(wave_N)))
        start = first * self._hop - self._edge
        end = (until - 1) * self._hop - self._edge + self._window
        before = wave_N[: max(0, -start)].flip(0)
        after = wave_N[len(wave_N) - max(0, end - len(wave_N)) :].flip(0)
        part_N = torch.cat((before, wave_N[max(0, start) : end], after)).clamp(-1, 1)
        return self._extractor.normalized(self._extractor.filterbank(part_N, has_edges=False))
