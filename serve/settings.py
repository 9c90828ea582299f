"""Settings of the service: options of `asr serve`, else environment variables (ASR_NAME)."""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from asr.errors import ConfigError

Words = Annotated[tuple[str, ...], NoDecode]
Keys = Annotated[tuple[SecretStr, ...], NoDecode]

# What OpenAI's clients ask for by default: the first model answers where none has this name.
DEFAULT_MODEL = "whisper-1"
CLIENT_KEY = "ASR_API_KEY"  # of `asr transcribe --server`, which may run on the same machine
_NEAR = 0.9  # similarity from which a name is taken for a misspelled setting


class Settings(BaseSettings):
    """The service's settings; several values of one setting are separated by commas.

    `max_bytes` is OpenAI's own limit, `max_seconds` about the length of an mp3 of that size. Bodies
    are held in memory, never on the disk; `max_held_bytes` limits all of them together.
    """

    model_config = SettingsConfigDict(env_prefix="ASR_", frozen=True, extra="forbid")

    bundles: Words = Field((), description="Folders of bundles, or NAME=FOLDER.")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    int8: bool = Field(False, description="Compute larger maps in 8 bits, on a CPU.")
    api_keys: Keys = Field((), description="Bearer keys, one of which a client must send.")
    allowed_hosts: Words = Field(
        (), description="Names of this service, beside localhost and addresses; * for all."
    )
    cors_origins: Words = Field((), description="Web origins that may call; * for all.")

    max_bytes: PositiveInt = Field(25 * 2**20, description="Body of a request.")
    max_seconds: PositiveFloat = Field(1800.0, description="Length of a recording.")
    max_samples: PositiveInt = Field(
        2**29, description="Samples of a recording, of all channels and at its own rate."
    )
    max_requests: PositiveInt = Field(256, description="Concurrent requests; more get a 503.")
    max_requests_per_client: PositiveInt | None = Field(
        None, description="Of one key, or address where there are no keys; more get a 429."
    )
    max_held_bytes: PositiveInt = Field(512 * 2**20, description="Bodies of all requests together.")
    upload_seconds: PositiveFloat = Field(60.0, description="For a body to arrive, else 408.")
    deadline_seconds: PositiveFloat = Field(600.0, description="From body to response, else 504.")
    grace_seconds: PositiveFloat = Field(30.0, description="For open requests after SIGTERM.")
    hang_seconds: PositiveFloat = Field(60.0, description="Without progress: killed, restarted.")
    max_live_sessions: PositiveInt = Field(16, description="Concurrent live sessions.")
    max_live_seconds: PositiveFloat = Field(3600.0, description="A live session, its audio.")
    live_idle_seconds: PositiveFloat = Field(30.0, description="Without audio: closed.")
    batch_seconds: float = Field(80.0, ge=0, description="Audio of a batch; 0: no batches.")
    batch_wait: float = Field(0.01, ge=0, description="Seconds to wait for more chunks.")

    @field_validator("bundles", "api_keys", "allowed_hosts", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str):
            return value
        words = [word.strip() for word in value.split(",") if word.strip()]
        if info.field_name == "api_keys" and not words:
            raise ValueError("it holds no key: give one, or unset it to serve without keys")
        return words

    @classmethod
    def read(cls, **given: object) -> "Settings":
        """Return the settings; `given` ones precede the environment.

        Raises ConfigError, also for a variable whose name is nearly that of a setting.
        """
        _check_names({name.upper() for name in os.environ})
        try:
            return cls(**given)  # type: ignore[arg-type]  # pydantic checks them
        except ValidationError as error:
            raise ConfigError("; ".join(map(_sentence, error.errors()))) from error

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy with some values changed; with other bundles it has other models."""
        copy = super().model_copy(update=update, deep=deep)
        if update and "bundles" in update:
            copy.__dict__.pop("models", None)
        return copy

    @cached_property
    def models(self) -> dict[str, Path]:
        """Return the folders of the bundles by name.

        A bundle without a name has that of its folder; symbolic links to it are resolved once, at
        the start. In NAME=FOLDER a link is followed anew at each start of the engine. Raises
        ConfigError where there is no bundle, or two have one name.
        """
        found: dict[str, Path] = {}
        for bundle in self.bundles:
            name, folder = named(bundle)
            path = Path(folder)
            if not name:
                path = path.resolve()
                name = path.name
            if name in found:
                raise ConfigError(f"two bundles are called {name}: write one as NAME={folder}")
            found[name] = path
        if not found:
            raise ConfigError("no model to serve: set ASR_BUNDLES to a bundle's folder")
        return found

    def find_model(self, name: str) -> str | None:
        """Return the name of the model that a client asks for, or None if it is not served.

        `whisper-1` is the first model, unless a model has this name.
        """
        names = list(self.models)
        return name if name in names else names[0] if name == DEFAULT_MODEL else None


def named(bundle: str) -> tuple[str, str]:
    """Return name and folder of NAME=FOLDER, or an empty name; a path before a `=` is no name."""
    name, equals, folder = bundle.partition("=")
    return (name, folder) if equals and "/" not in name else ("", bundle)


def _check_names(variables: set[str]) -> None:
    """Raise ConfigError for a misspelled variable; ignore others, such as those of Kubernetes."""
    known = [f"ASR_{name.upper()}" for name in Settings.model_fields]
    for name in sorted(variables.difference(known)):
        near = get_close_matches(name, known, 1, _NEAR) if name.startswith("ASR_") else []
        if name == CLIENT_KEY and "ASR_API_KEYS" in variables:
            continue
        if near:
            raise ConfigError(f"{name}: is no setting of the service: did you mean {near[0]}?")


def _sentence(fault: ErrorDetails) -> str:
    message = fault["msg"].lower().removeprefix("value error, ")
    return f"ASR_{str(fault['loc'][0]).upper()}: {message}"
