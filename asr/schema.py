"""The base of all configuration: frozen models without unknown keys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# A number of units in a network: above a million it is a typing error, reported before it
# allocates memory.
Size = Annotated[int, Field(gt=0, le=1 << 20)]


class FrozenModel(BaseModel):
    """A frozen group of values; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
