"""Small, fast speech recognition with the Low-Rank Transformer.

>>> import asr
>>> model = asr.load("exp/aishell1/lrt_r100", device="auto")
>>> print(model.transcribe("a.wav").text)
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asr.audio.recording import Samples
    from asr.decoding.endpoint import Endpoint
    from asr.decoding.hypothesis import Hypothesis
    from asr.decoding.options import DecodingOptions
    from asr.errors import AsrError, AudioError, BundleError, ConfigError, DataError
    from asr.transcription.recognizer import Recognizer
    from asr.transcription.transcript import Segment, StreamResult, Token, Transcript

__all__ = [
    "AsrError", "AudioError", "BundleError", "ConfigError", "DataError", "DecodingOptions",
    "Endpoint", "Hypothesis", "Recognizer", "Samples", "Segment", "StreamResult", "Token",
    "Transcript", "load",
]  # fmt: skip

# Modules of public names, which are imported at their first use: torch alone takes seconds.
_MODULES = (
    "errors", "decoding.endpoint", "decoding.hypothesis", "decoding.options",
    "transcription.transcript", "transcription.recognizer", "audio.recording",
)  # fmt: skip


def load(bundle: str | Path, device: str = "auto", int8: bool = False) -> "Recognizer":
    """Load a recognizer from a bundle's folder, on `auto`, `cpu` or `cuda`.

    `int8` computes larger maps in 8 bits: faster on a CPU, without effect elsewhere.

    The process that loads it uses it, in any number of its threads: one that is forked later loads
    its own. Raises asr.BundleError that names the file that is missing or damaged, ConfigError for
    a device that is not there or a bundle by URL.
    """
    from asr.bundle import Bundle
    from asr.errors import ConfigError
    from asr.runtime.storage import is_url
    from asr.transcription.recognizer import Recognizer

    if is_url(str(bundle)):
        raise ConfigError(f"{bundle}: a bundle by URL: copy it to a folder and give that")
    return Recognizer(Bundle.load(Path(bundle)), device, int8)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public name where it is defined."""
    if name in __all__:
        for module in map(import_module, (f"asr.{path}" for path in _MODULES)):
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module 'asr' has no attribute {name!r}")
