"""The one rule every piece of configuration follows: frozen, and no unknown keys."""

from pydantic import BaseModel, ConfigDict


class Node(BaseModel):
    """A frozen group of configuration values; a key that it does not know is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
