"""The one rule every piece of configuration follows: frozen, and no unknown keys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# What a network has so many of: above a million it is a slip of the finger, told before memory is.
Size = Annotated[int, Field(gt=0, le=1 << 20)]


class FrozenModel(BaseModel):
    """A frozen group of configuration values; a key that it does not know is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
