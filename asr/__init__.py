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

# Modules that define the public names. They are imported at first use: torch alone takes seconds.
_MODULES = (
    "errors", "decoding.endpoint", "decoding.hypothesis", "decoding.options",
    "transcription.transcript", "transcription.recognizer", "audio.recording",
)  # fmt: skip


def load(bundle: str | Path, device: str = "auto", int8: bool = False) -> "Recognizer":
    """Load the recognizer of a bundle's folder onto a device: `auto`, `cpu`, `cuda` or `cuda:N`.

    `int8` computes the larger linear maps and convolutions in 8 bits. This is faster on a CPU, and
    has no effect elsewhere.

    Any number of threads of this process may use the recognizer; a process that is forked later
    must load its own. Raises asr.BundleError, which names the missing or damaged file. Raises
    asr.ConfigError for a device that does not exist or a bundle by URL.
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
