"""Sessions and client events of OpenAI's realtime transcription, in both shapes that there are.

The newer `session.update` nests what `transcription_session.update` has side by side.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, JsonValue

from asr.decoding.hotwords import Hotword, of_request

_Part = TypeVar("_Part", bound=BaseModel)
LOGPROBS = "item.input_audio_transcription.logprobs"
_OLD_FORMATS: dict[JsonValue, JsonValue] = {
    "pcm16": "audio/pcm",
    "g711_ulaw": "audio/pcmu",
    "g711_alaw": "audio/pcma",
}
_NEW_FORMATS = {new: old for old, new in _OLD_FORMATS.items()}


class Format(BaseModel):
    """How audio is sent: 16-bit PCM of any usual rate, or G.711 of 8 kHz."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: Annotated[int, Field(ge=8000, le=96000)] = 24000

    @property
    def sample_rate(self) -> int:
        """Return the rate in Hz."""
        return self.rate if self.type == "audio/pcm" else 8000


class ServerVad(BaseModel):
    """The rule for the end of an item; only the silence counts, the rest is repeated."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=60000)] = 300
    silence_duration_ms: Annotated[int, Field(ge=100, le=10000)] = 800


class TranscriptionOptions(BaseModel):
    """The model, and a prompt, whose names are hotwords; the language changes nothing."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None

    @cached_property
    def hotwords(self) -> tuple[Hotword, ...]:
        """Return the names in the prompt; a long one is read once, not for each turn."""
        return of_request("", self.prompt or "")


class InputUpdate(BaseModel):
    """What changes of the input; `turn_detection: null` turns it off."""

    format: Format | None = None
    transcription: TranscriptionOptions | None = None
    turn_detection: ServerVad | None = None


class AudioUpdate(BaseModel):
    """What changes of the audio."""

    input: InputUpdate = InputUpdate()


class SessionUpdate(BaseModel):
    """What changes of a session."""

    type: Literal["transcription"] = "transcription"
    audio: AudioUpdate = AudioUpdate()
    include: list[str] | None = None


class UpdateEvent(BaseModel):
    """Changes a session: `session.update`."""

    session: SessionUpdate


class AppendEvent(BaseModel):
    """More audio, in base64: `input_audio_buffer.append`."""

    audio: str


@dataclass(frozen=True)
class Options:
    """A session's options."""

    model: str
    transcription: TranscriptionOptions
    format: Format
    vad: ServerVad | None
    include: tuple[str, ...] = ()

    def updated(self, session: SessionUpdate, model: str) -> "Options":
        """Return the options with the fields that an update has."""
        given = session.audio.input
        return replace(
            self,
            model=model,
            format=_merged(self.format, given.format) or self.format,
            transcription=_merged(self.transcription, given.transcription) or self.transcription,
            vad=_merged(self.vad, given.turn_detection)
            if "turn_detection" in given.model_fields_set
            else self.vad,
            include=self.include if session.include is None else tuple(session.include),
        )

    def sounds_like(self, other: "Options") -> bool:
        """Tell whether audio is recognized in the same way with both."""
        mine, theirs = ((o.model, o.format, o.vad, o.transcription.hotwords) for o in (self, other))
        return mine == theirs

    def described(self, is_old: bool) -> dict[str, object]:
        """Return the whole configuration, in the newer or the older shape."""
        transcription = {**self.transcription.model_dump(), "model": self.model}
        vad = self.vad and self.vad.model_dump()
        if is_old:
            return {
                "input_audio_format": _NEW_FORMATS[self.format.type],
                "input_audio_transcription": transcription,
                "input_audio_noise_reduction": None,
                "turn_detection": vad,
                "include": self.include,
            }
        is_pcm = self.format.type == "audio/pcm"
        input: dict[str, object] = {
            "format": self.format.model_dump(exclude=None if is_pcm else {"rate"}),
            "noise_reduction": None,
            "transcription": transcription,
            "turn_detection": vad,
        }
        return {"type": "transcription", "audio": {"input": input}, "include": self.include}


def _merged(old: _Part | None, new: _Part | None) -> _Part | None:
    """Return a part with the fields that an update has, the others as before."""
    if old is None or new is None:
        return new
    return type(new).model_validate(old.model_dump() | new.model_dump(exclude_unset=True))


def as_newer(event: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a `transcription_session.update` in the shape of a `session.update`."""
    session = event.get("session")
    if not isinstance(session, dict):
        return event
    input: dict[str, JsonValue] = {}
    if "input_audio_format" in session:
        old = session["input_audio_format"]
        input["format"] = {"type": _OLD_FORMATS.get(old, old) if isinstance(old, str) else old}
    if "input_audio_transcription" in session:
        input["transcription"] = session["input_audio_transcription"]
    if "turn_detection" in session:
        input["turn_detection"] = session["turn_detection"]
    return {"session": {"audio": {"input": input}, "include": session.get("include")}}
