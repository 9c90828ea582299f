"""Augmentation of training utterances: its configuration, and SpecAugment (Park 2019)."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from asr.schema import FrozenModel


class PausesConfig(FrozenModel):
    """Pauses around training utterances; `padded`, `joined` and `noise` are shares of the corpus.

    Padded utterances get a pause before and after, each up to `most_seconds`. Joined utterances are
    followed by others after pauses, up to `joined_seconds` in all. The share `noise` is replaced by
    noise without text. Epochs before `from_epoch` (counted from 1) have no pauses, because an
    alignment is learned sooner without them.
    """

    padded: float = Field(default=0.4, ge=0, le=1)
    joined: float = Field(default=0.1, ge=0, le=1)
    noise: float = Field(default=0.05, ge=0, lt=1)
    most_seconds: float = Field(default=1.0, gt=0)
    joined_seconds: float = Field(default=10.0, gt=0)
    from_epoch: int = Field(default=2, ge=1)

    def longest(self, seconds: float) -> float:
        """Return the most seconds of an utterance with pauses, given the most without."""
        if self.padded or self.joined:
            seconds += 2 * self.most_seconds
        return max(seconds, self.joined_seconds) if self.joined else seconds


# The largest factor of a change. A factor is drawn between it and its inverse; 1 is no change.
Factor = Annotated[float, Field(ge=1, le=2)]
Share = Annotated[float, Field(ge=0, le=1)]


class VoicesConfig(FrozenModel):
    """Voices, rooms and microphones that the corpus lacks; each utterance is changed at random.

    `pitch`, `formants` (the resonances of the vocal tract: Jaitly & Hinton 2013) and `tempo` are
    changed independently, by up to these factors. `filter_db` is the most by which a smooth random
    filter, like that of a microphone, raises or lowers a frequency. `rooms`, `noise` and `overload`
    are shares of utterances: in a simulated room; with noise, at an SNR of `least_snr_db` or more;
    and too loud for the recorder, which cuts off their peaks.
    """

    pitch: Factor = 1.0
    formants: Factor = 1.0
    tempo: Factor = 1.0
    filter_db: Annotated[float, Field(ge=0, le=40)] = 0.0
    rooms: Share = 0.0
    noise: Share = 0.0
    overload: Share = 0.0
    least_snr_db: Annotated[float, Field(ge=-20, le=80)] = 10.0


class AugmentConfig(FrozenModel):
    """Random changes of training utterances: SpecAugment's masks (Park 2019), `pauses`, `voices`.

    A frequency mask covers up to `freq_width` bins, a time mask up to `time_ratio` of the
    utterance's frames.
    """

    freq_masks: int = Field(default=2, ge=0)
    freq_width: int = Field(default=27, ge=0)
    time_masks: int = Field(default=2, ge=0)
    time_ratio: float = Field(default=0.05, ge=0, le=1)
    pauses: PausesConfig | None = None
    voices: VoicesConfig | None = None


def spec_augment(
    feats_BTF: Tensor, lengths_B: Tensor, config: AugmentConfig, generator: torch.Generator
) -> Tensor:
    """Set random bands and spans of each utterance to 0, the mean of normalized features.

    (batch, time, freq) and lengths in frames -> (batch, time, freq), a new tensor. Masks are drawn
    from the generator for each utterance, time masks within its own length.
    """
    n_frames, n_freqs = feats_BTF.shape[1:]
    lengths_B = lengths_B.to(feats_BTF.device)
    bins_B = torch.full_like(lengths_B, n_freqs)
    max_bins_B = bins_B.clamp(max=config.freq_width)
    max_frames_B = (lengths_B * config.time_ratio).long()
    freq_BF = _masks(bins_B, max_bins_B, config.freq_masks, n_freqs, generator)
    time_BT = _masks(lengths_B, max_frames_B, config.time_masks, n_frames, generator)
    return feats_BTF.masked_fill(freq_BF[:, None, :] | time_BT[:, :, None], 0.0)


def _masks(
    limit_B: Tensor, max_width_B: Tensor, n_masks: int, size: int, generator: torch.Generator
) -> Tensor:
    """Return (batch, size), True under `n_masks` spans of 0 to max_width, all before limit."""
    draw = torch.rand(2, len(limit_B), n_masks, generator=generator, device=generator.device)
    width_draw_BK, start_draw_BK = draw.to(limit_B.device)
    width_BK = (width_draw_BK * (max_width_B[:, None] + 1)).long()
    start_BK = (start_draw_BK * (limit_B[:, None] - width_BK + 1)).long()
    position = torch.arange(size, device=limit_B.device)
    after_start: Tensor = position >= start_BK[..., None]
    before_end: Tensor = position < (start_BK + width_BK)[..., None]
    return (after_start & before_end).any(1)
