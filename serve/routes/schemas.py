"""Forms of requests and bodies of responses, as OpenAI's clients know them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from starlette.datastructures import UploadFile as Part

from asr.decoding.hotwords import MOST_CHARACTERS, MOST_PHRASES, Hotword, of_request
from asr.decoding.hypothesis import Ended
from asr.errors import ConfigError
from asr.transcription.transcript import Segment
from asr.transcription.writers import Word

ResponseFormat = Literal["json", "text", "srt", "vtt", "verbose_json"]
Granularity = Literal["word", "segment"]


class RecordingForm(BaseModel):
    """The fields that all routes for recordings share."""

    file: UploadFile = Field(
        description="The recording: wav, flac, ogg or mp3, at any rate, of up to 8 channels. Its "
        "content decides on the format, never its name."
    )
    model: str = Field(
        description="A name that GET /v1/models lists, or whisper-1 for the first of them."
    )

    hotwords: str = Field(
        "",
        description=f"Phrases to expect, one a line or between commas, at most {MOST_PHRASES} of "
        f"{MOST_CHARACTERS} characters. With a tab and a number after it a phrase has a weight of "
        "its own: what each of its tokens but one adds to a score.",
    )
    prompt: str = Field(
        "", description="Its names, which stand between punctuation, are hotwords too."
    )
    keywords: list[str] = Field(
        [], alias="keywords[]", description="OpenAI's name of hotwords, one in each field."
    )

    @field_validator("hotwords")
    @classmethod
    def _are_hotwords(cls, value: str) -> str:
        _check_hotwords(value)
        return value

    @field_validator("keywords")
    @classmethod
    def _are_few_with_hotwords(cls, value: list[str], info: ValidationInfo) -> list[str]:
        _check_hotwords(info.data.get("hotwords", ""), value)
        return value

    @property
    def phrases(self) -> tuple[Hotword, ...]:
        """Return the hotwords of all fields."""
        return of_request(self.hotwords, self.prompt, self.keywords)

    @field_validator("file", mode="before")
    @classmethod
    def _is_a_file(cls, value: object) -> object:
        if not isinstance(value, Part):
            raise ValueError("send a file part with a file name, as `curl -F file=@a.wav` does")
        return value


def _check_hotwords(hotwords: str, keywords: Sequence[str] = ()) -> None:
    """Raise ValueError for hotwords beyond the limits, and for impossible weights."""
    try:
        of_request(hotwords, keywords=keywords)
    except ConfigError as error:
        raise ValueError(str(error)) from error


class NativeForm(RecordingForm):
    """The fields of POST /v1/transcribe; others are ignored."""

    stream: bool = Field(
        False, description="Server-sent events: the text as it grows, then the response."
    )


class TranscriptionForm(RecordingForm):
    """The fields of POST /v1/audio/transcriptions; others are ignored."""

    response_format: ResponseFormat = "json"
    language: str | None = Field(None, description="Repeated in verbose_json, else ignored.")
    temperature: float = Field(0, ge=0, le=1, description="Ignored: decoding is deterministic.")
    stream: bool = Field(
        False, description="Server-sent events: the text as it grows. Needs response_format json."
    )
    timestamp_granularities: list[Granularity] = Field(
        [],
        alias="timestamp_granularities[]",
        description="With verbose_json: word (a Chinese character is one), segment, or both; "
        "segment if empty.",
    )
    include: list[str] = Field(
        [], alias="include[]", description="logprobs, with json or stream; others are ignored."
    )

    @field_validator("stream", "timestamp_granularities")
    @classmethod
    def _fits_the_format(cls, value: object, info: ValidationInfo) -> object:
        needed = "json" if info.field_name == "stream" else "verbose_json"
        if value and info.data.get("response_format") not in (needed, None):
            raise ValueError(f"needs response_format {needed}")
        return value


class Usage(BaseModel):
    """How much audio was transcribed, in seconds of the recording."""

    type: Literal["duration"] = "duration"
    seconds: float


class Logprob(BaseModel):
    """A token, its bytes and the log of its confidence."""

    token: str
    bytes: list[int]
    logprob: float


class Transcription(BaseModel):
    """The text; `warnings` only if there are any, such as of a truncated file."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"text": "今天天气很好", "usage": {"type": "duration", "seconds": 1.52}}
        }
    )
    text: str
    usage: Usage
    logprobs: list[Logprob] | None = None
    warnings: list[str] | None = None


class VerboseSegment(BaseModel):
    """A part of a recording, from `start` to `end` in seconds.

    `avg_logprob` is the mean log of its tokens' confidences, `seek` its start in hundredths of a
    second; `no_speech_prob` is 1 for a segment without speech and 0 elsewhere.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float = 0.0
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class VerboseWord(BaseModel):
    """A word, or a Chinese character, from `start` to `end` in seconds."""

    word: str
    start: float
    end: float


class VerboseTranscription(BaseModel):
    """The text with times. `language` is the request's: the models do not recognize it."""

    task: Literal["transcribe"] = "transcribe"
    language: str
    duration: float
    text: str
    segments: list[VerboseSegment] | None = None
    words: list[VerboseWord] | None = None
    usage: Usage
    warnings: list[str] | None = None


class TextDelta(BaseModel):
    """An event of a stream: more text, which may be empty, and the fraction of the audio done."""

    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str
    progress: float


class TextDone(Transcription):
    """The last event of a stream: the whole text."""

    type: Literal["transcript.text.done"] = "transcript.text.done"


class Timing(BaseModel):
    """Seconds in the queue, of decoding (its share of batches), and of decoding by audio."""

    wait_seconds: float
    decode_seconds: float
    real_time_factor: float


@dataclass(frozen=True)
class TimedSegment(Segment):
    """A segment with its words."""

    words: tuple[Word, ...] = ()


class NativeTranscription(BaseModel):
    """All that is known of a recording.

    `ended` tells why the text ends: `eos`, the model ended it; `length`, no more tokens fit into
    the audio; `no_speech`, there was none; `uncertain`, the text that was found is left out
    and stands in `warnings`. The segment of a short recording has its n best hypotheses; a token's
    confidence is its probability among its alternatives. `srt` and `vtt` are the subtitles in
    these formats.
    """

    model: str
    text: str
    duration: float
    score: float
    ended: Ended
    segments: list[TimedSegment]
    srt: str
    vtt: str
    warnings: list[str]
    timing: Timing


class NativeDone(NativeTranscription):
    """The last event of a stream."""

    type: Literal["transcript.done"] = "transcript.done"


class Model(BaseModel):
    """A model's name; `created` is its bundle's time in Unix seconds."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "lrt-asr"


class ModelList(BaseModel):
    """All models served here."""

    object: Literal["list"] = "list"
    data: list[Model]


class Health(BaseModel):
    """The state of the service."""

    status: Literal["ok"] = "ok"
