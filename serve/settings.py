"""What can be set: by `asr serve`'s options, else by environment variables, ASR_ and the name."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from asr.errors import ConfigError

Words = Annotated[tuple[str, ...], NoDecode]
Keys = Annotated[tuple[SecretStr, ...], NoDecode]


class Settings(BaseSettings):
    """The service's settings; those of several values have commas between them.

    A body holds at most `max_bytes` (OpenAI's own limit), its audio at most `max_seconds`: as much
    as an mp3 of that size at a usual rate. All bodies together are held in memory, never on the
    disk, and have `max_held_bytes`.
    """

    model_config = SettingsConfigDict(env_prefix="ASR_", frozen=True, extra="forbid")

    bundles: Words = Field((), description="Bundles' folders, or NAME=FOLDER.")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    int8: bool = Field(False, description="The decoder's larger weights in 8 bits, on a CPU.")
    api_keys: Keys = Field((), description="Bearer keys, one of which a client must send.")
    cors_origins: Words = Field((), description="Web origins that may call; * for all.")

    max_bytes: PositiveInt = Field(25 * 2**20, description="A request's body.")
    max_seconds: PositiveFloat = Field(1800.0, description="A recording's length.")
    max_requests: PositiveInt = Field(256, description="Requests at once; more get a 503.")
    max_requests_per_client: PositiveInt | None = Field(
        None, description="Of one key, or address where there are no keys; more get a 429."
    )
    max_held_bytes: PositiveInt = Field(512 * 2**20, description="Bodies of all requests at once.")
    upload_seconds: PositiveFloat = Field(60.0, description="For a whole body to arrive, else 408.")
    deadline_seconds: PositiveFloat = Field(600.0, description="From body to answer, else 504.")
    grace_seconds: PositiveFloat = Field(30.0, description="For open requests after SIGTERM.")
    hang_seconds: PositiveFloat = Field(60.0, description="Without progress: killed, restarted.")
    max_live_sessions: PositiveInt = Field(16, description="Live sessions at once.")
    max_live_seconds: PositiveFloat = Field(3600.0, description="A live session's audio.")
    live_idle_seconds: PositiveFloat = Field(30.0, description="Without a message: closed.")
    batch_seconds: float = Field(80.0, ge=0, description="Audio that is decoded together; 0: none.")
    batch_wait: float = Field(0.01, ge=0, description="Seconds to wait for company.")

    @field_validator("bundles", "api_keys", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return (
            [w.strip() for w in value.split(",") if w.strip()] if isinstance(value, str) else value
        )

    @classmethod
    def read(cls, **given: Any) -> "Settings":
        """The settings; what is given comes before the environment. Raises ConfigError."""
        try:
            return cls(**given)
        except ValidationError as error:
            told = [f"ASR_{str(e['loc'][0]).upper()}: {e['msg'].lower()}" for e in error.errors()]
            raise ConfigError("; ".join(told)) from error

    @property
    def models(self) -> dict[str, Path]:
        """Folders by the names that clients use. Raises ConfigError for none and for doubles."""
        found: dict[str, Path] = {}
        for bundle in self.bundles:
            name, _, folder = bundle.rpartition("=")
            path = Path(folder)
            name = name or path.resolve().name
            if name in found:
                raise ConfigError(f"two bundles are called {name}: write one as NAME={folder}")
            found[name] = path
        if not found:
            raise ConfigError("no model to serve: set ASR_BUNDLES to a bundle's folder")
        return found
