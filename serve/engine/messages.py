"""What the service and its decoding process send to each other, in either direction."""

from dataclasses import dataclass
from pathlib import Path

from asr.transcription.transcript import Transcript


@dataclass(frozen=True)
class Start:
    """The first message: the models to load, and the limits to hold."""

    models: dict[str, Path]
    device: str
    int8: bool
    max_seconds: float
    batch_seconds: float
    batch_wait: float


@dataclass(frozen=True)
class Ready:
    """The models are loaded."""


@dataclass(frozen=True)
class Refused:
    """A model cannot be loaded: the name of an error of `asr.errors`, and its sentence."""

    error: str
    message: str


@dataclass(frozen=True)
class Transcribe:
    """A recording to transcribe: a file, or 16-bit mono PCM of `pcm_rate` Hz.

    `partials` asks for the text of a long recording as it grows, `quick` for greedy CTC where the
    model has a CTC head.
    """

    id: int
    model: str
    audio: bytes
    pcm_rate: int | None = None
    partials: bool = False
    quick: bool = False


@dataclass(frozen=True)
class Cancel:
    """A recording is no longer wanted."""

    id: int


@dataclass(frozen=True)
class Alive:
    """The decoding makes progress; so many chunks and seconds of audio wait."""

    waiting_chunks: int
    waiting_seconds: float


@dataclass(frozen=True)
class BatchDone:
    """A batch was decoded: its chunks, their seconds of audio, and the seconds that it took."""

    n_chunks: int
    audio_seconds: float
    decode_seconds: float


@dataclass(frozen=True)
class Partial:
    """What the text of a recording goes on with."""

    id: int
    delta: str


@dataclass(frozen=True)
class Done:
    """A recording's transcript, the seconds that it waited, and its share of the decoding."""

    id: int
    transcript: Transcript
    wait_seconds: float
    decode_seconds: float


@dataclass(frozen=True)
class Failed:
    """A recording cannot be transcribed: `code` is a stable word, `message` a sentence."""

    id: int
    code: str
    message: str


ToEngine = Transcribe | Cancel
FromEngine = Ready | Refused | Alive | BatchDone | Partial | Done | Failed
