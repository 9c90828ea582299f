"""A request to transcribe in the engine process, and its progress."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from asr.decoding.hotwords import Hotword
from asr.decoding.options import DecodingOptions
from asr.decoding.request import Request
from asr.transcription.chunks import Chunk, ChunkedRecording
from asr.transcription.recognizer import Recognizer
from serve.engine import messages

# The assumed cost of the first slice of a recording, in samples: four seconds of speech.
_FIRST_SLICE = 2**16


@dataclass(eq=False)
class Job:
    """A request to transcribe, and its progress."""

    asked: messages.Transcribe
    recording: ChunkedRecording
    slices: Iterator[Chunk | None]
    request: Request
    cost: float = _FIRST_SLICE  # samples decoded for the last slice
    arrived: float = field(default_factory=time.monotonic)
    started: float | None = None
    decode_seconds: float = 0.0
    n_open: int = 0  # chunks in the queue or in a batch
    is_paused: bool = False  # slices are left, but no thread reads them now
    sent: str = ""  # the text of partial results so far
    progress: float = 0.0  # the fraction that is recognized, which never decreases


def options_of(recognizer: Recognizer, asked: messages.Transcribe) -> DecodingOptions:
    """Return the options for a request: the model's with its hotwords, or greedy if `quick`."""
    options = recognizer.config.decoding
    if asked.quick and recognizer.model.ctc_head is not None:
        # A threshold for the decoder's confidences does not fit those of the CTC head.
        has_decoder = options.method in ("joint", "rescore")
        threshold = {"confidence_threshold": None} if has_decoder else {}
        method = options.method if options.is_greedy else "ctc_greedy"
        return options.model_copy(
            update={"method": method, "lm_weight": 0.0, "hotwords": None} | threshold
        )
    return with_hotwords(options, asked.hotwords)


def with_hotwords(options: DecodingOptions, hotwords: tuple[Hotword, ...]) -> DecodingOptions:
    """Return options with these hotwords added after their own."""
    if not hotwords:
        return options
    return options.model_copy(update={"hotwords": (*(options.hotwords or ()), *hotwords)})
