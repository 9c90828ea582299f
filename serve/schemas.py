"""What the routes take and give, as OpenAI's clients know it."""

from typing import Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, Field, field_validator
from starlette.datastructures import UploadFile as Part


class TranscriptionForm(BaseModel):
    """The fields of POST /v1/audio/transcriptions; others are ignored."""

    file: UploadFile = Field(
        description="The recording: wav, flac, ogg or mp3, at any rate, of up to 8 channels. Its "
        "content decides on the format, never its name."
    )
    model: str = Field(description="A name that GET /v1/models lists.")
    response_format: Literal["json", "text"] = "json"
    language: str | None = Field(None, description="Accepted and ignored: the model's own.")
    prompt: str | None = Field(None, description="Accepted and ignored.")
    temperature: float = Field(0, ge=0, le=1, description="Ignored: the search is deterministic.")
    stream: bool = Field(False, description="Only false: the answer comes whole.")
    timestamp_granularities: list[str] = Field(
        [], alias="timestamp_granularities[]", description="Only empty: there are no timestamps."
    )

    @field_validator("file", mode="before")
    @classmethod
    def _is_a_file(cls, value: Any) -> Any:
        if not isinstance(value, Part):
            raise ValueError("send a file part with a file name, as `curl -F file=@a.wav` does")
        return value

    @field_validator("stream")
    @classmethod
    def _is_whole(cls, value: bool) -> bool:
        if value:
            raise ValueError("streaming is not supported, leave it out")
        return value

    @field_validator("timestamp_granularities")
    @classmethod
    def _has_no_times(cls, value: list[str]) -> list[str]:
        if value:
            raise ValueError("needs response_format verbose_json, which is not supported")
        return value


class Usage(BaseModel):
    """How much audio was transcribed, in seconds of the recording."""

    type: Literal["duration"] = "duration"
    seconds: float


class Transcription(BaseModel):
    """The text; `warnings` only where something was amiss, such as a truncated file."""

    text: str
    usage: Usage
    warnings: list[str] | None = None


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
    """Given only once the model is loaded."""

    status: Literal["ok"] = "ok"
