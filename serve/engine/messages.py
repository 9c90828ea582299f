"""The messages between the service and its engine process, in both directions.

The service first sends its `Settings` without API keys. The engine answers with Ready, or with the
AsrError for which it cannot load a model.
"""

from dataclasses import dataclass

from asr.decoding.hotwords import Hotword
from asr.errors import AsrError
from asr.transcription.transcript import StreamResult, Transcript


@dataclass(frozen=True)
class Ready:
    """The models are loaded; `streaming` names those with a streaming encoder."""

    streaming: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Transcribe:
    """A recording to transcribe: a file, or 16-bit mono PCM of `pcm_rate` Hz.

    `partials` asks for the text of a long recording as it grows. `quick` asks for greedy CTC, which
    has no hotwords, where the model has a CTC head.
    """

    id: int
    model: str
    audio: bytes
    pcm_rate: int | None = None
    partials: bool = False
    quick: bool = False
    hotwords: tuple[Hotword, ...] = ()


@dataclass(frozen=True)
class Open:
    """A stream of 16-bit mono PCM of `pcm_rate` Hz begins; see `Endpoint.silence_seconds`."""

    id: int
    model: str
    pcm_rate: int
    silence_seconds: float | None = None
    hotwords: tuple[Hotword, ...] = ()


@dataclass(frozen=True)
class Audio:
    """A part of a stream's audio; `is_last` tells that the stream ends."""

    id: int
    pcm: bytes
    is_last: bool = False


@dataclass(frozen=True)
class Cancel:
    """A recording or a stream that the client no longer waits for."""

    id: int


@dataclass(frozen=True)
class Alive:
    """The engine makes progress; the number of chunks and seconds of audio in its queue."""

    waiting_chunks: int
    waiting_seconds: float


@dataclass(frozen=True)
class BatchDone:
    """A batch was decoded: the number of its chunks, their audio, and the time, in seconds."""

    n_chunks: int
    audio_seconds: float
    decode_seconds: float


@dataclass(frozen=True)
class Partial:
    """The text that follows the partial texts so far, and the fraction of the recording done."""

    id: int
    delta: str
    progress: float


@dataclass(frozen=True)
class Done:
    """A recording's transcript, the seconds that it waited, and its share of the decoding time."""

    id: int
    transcript: Transcript
    wait_seconds: float
    decode_seconds: float


@dataclass(frozen=True)
class Streamed:
    """The new results of a stream; its current segment begins at `start` seconds."""

    id: int
    results: tuple[StreamResult, ...]
    start: float
    is_last: bool = False


@dataclass(frozen=True)
class Failed:
    """A recording or stream cannot be transcribed: `code` is for programs, `message` a sentence."""

    id: int
    code: str
    message: str


ToEngine = Transcribe | Open | Audio | Cancel
FromEngine = Ready | AsrError | Alive | BatchDone | Partial | Done | Streamed | Failed
