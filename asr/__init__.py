"""Small, fast speech recognition with the Low-Rank Transformer.

>>> import asr
>>> model = asr.load("exp/aishell1/lrt_r100", device="auto")
>>> print(model.transcribe("a.wav").text)
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asr.transcription.recognizer import Recognizer

__all__ = ["load"]


def load(bundle: str | Path, device: str = "auto", int8: bool = False) -> "Recognizer":
    """A recogniser from a bundle's folder, on `auto`, `cpu` or `cuda`.

    `int8` stores the decoder's larger weights in 8 bits: faster on a CPU, nothing elsewhere.

    Raises asr.errors.BundleError that names the file that is missing or damaged.
    """
    from asr.bundle import Bundle
    from asr.transcription.recognizer import Recognizer

    return Recognizer(Bundle.load(Path(bundle)), device, int8)
