"""G.711 (ITU-T, 1988): telephone audio of 8 bits a sample to 16-bit PCM."""

import numpy as np

_CODES = np.arange(256)


def _mu_law() -> np.ndarray:
    code = ~_CODES & 0xFF
    magnitude = ((((code & 0x0F) << 3) + 0x84) << (code >> 4 & 7)) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype("<i2")


def _a_law() -> np.ndarray:
    code = _CODES ^ 0x55
    exponent, mantissa = code >> 4 & 7, (code & 0x0F) << 4
    magnitude = np.where(
        exponent == 0, mantissa + 8, (mantissa + 0x108) << np.maximum(exponent - 1, 0)
    )
    return np.where(code & 0x80, magnitude, -magnitude).astype("<i2")


_TABLES = {"audio/pcmu": _mu_law(), "audio/pcma": _a_law()}


def as_pcm(audio: bytes, type: str) -> bytes:
    """Return audio of the type audio/pcmu (μ-law) or audio/pcma (A-law) as 16-bit PCM."""
    pcm: bytes = _TABLES[type][np.frombuffer(audio, np.uint8)].tobytes()
    return pcm
