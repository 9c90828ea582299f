"""Python code, for the README of an export, that computes features without this program."""

from asr.audio.features import FbankConfig, FeaturesConfig, LogMelConfig

_SPECTRUM = """\
import librosa
import numpy as np

def features(wave):  # float samples (samples,) at {rate} Hz -> (time, {n_freqs})
    wave = wave / (np.abs(wave).max() or 1)
    spectrum = librosa.stft(wave, n_fft={n_fft}, hop_length={hop}, pad_mode="constant")
    power = np.abs(spectrum) ** 2
{mel}\
    peak = max(power.max(), 1e-20)
    feats = np.log(np.maximum(power, 1e-8 * peak) / peak).T
{normalized}\
"""
_MEL = """\
    power = librosa.filters.mel(sr={rate}, n_fft={n_fft}, n_mels={n_freqs}) @ power
"""
_FBANK = """\
import numpy as np
import torch
import torchaudio

def features(wave):  # float samples (samples,) at {rate} Hz, of -1 to 1 -> (time, {n_freqs})
    feats = torchaudio.compliance.kaldi.fbank(
        torch.from_numpy(wave)[None] * 2.0**15, sample_frequency={rate}, num_mel_bins={n_freqs},
        frame_length={window:g}, frame_shift={hop_ms:g}, high_freq={high:g}, snip_edges=False,
    ).numpy()
{floor}{normalized}\
"""
_NORMALIZED = {
    "utterance": """\
    return (feats - feats.mean()) / max(feats.std(), 1e-3)  # of all bins together
""",
    "corpus": """\
    return (feats - mean_F) / std_F  # of each bin: `feature_statistics` in the description
""",
}


def how_features(config: FeaturesConfig) -> str:
    """Return the source of a Python function that computes the features of a recipe.

    It uses librosa, or torchaudio for Kaldi's, and needs recordings of at least one window.
    """
    normalized = _NORMALIZED[config.normalize]
    rate, n_freqs = config.sample_rate, config.n_freqs
    if isinstance(config, FbankConfig):
        floor = f"    feats = np.maximum(feats, np.log({config.floor:.9g}))\n"
        return _FBANK.format(
            rate=rate, n_freqs=n_freqs, window=config.window_ms, hop_ms=config.hop_ms,
            high=config.high_hz, floor=floor if config.sherpa_onnx else "", normalized=normalized,
        )  # fmt: skip
    mel = _MEL.format(rate=rate, n_fft=config.n_fft, n_freqs=n_freqs)
    return _SPECTRUM.format(
        rate=rate, n_freqs=n_freqs, n_fft=config.n_fft, hop=config.hop_length,
        mel=mel if isinstance(config, LogMelConfig) else "", normalized=normalized,
    )  # fmt: skip
