"""The base of all configuration: frozen models without unknown keys."""

import re
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# A number of units in a network. A larger one is a typing error, and is reported before it takes
# memory. The limit of layers is lower, because each takes time to build.
Size = Annotated[int, Field(gt=0, le=1 << 16)]
Layers = Annotated[int, Field(gt=0, le=1 << 7)]

# A path that lhotse takes for a command (`pipe:`), for standard input (`-`) or for an address. Path
# keeps only one of the two slashes after a scheme.
_NOT_LOCAL = re.compile(r"pipe:|-\Z|[A-Za-z][A-Za-z0-9+.-]*:/")


def check_local(path: Path) -> Path:
    """Return a path. Raises ValueError if a library could take it for a command or an address."""
    if _NOT_LOCAL.match(str(path)):
        raise ValueError(
            f"{path} is a command or an address, which is not run or fetched: give a file's path"
        )
    return path


LocalPath = Annotated[Path, AfterValidator(check_local)]

# A value that JSON leaves out if it is None.
T = TypeVar("T")
OmitNone = Annotated[T | None, Field(exclude_if=lambda value: value is None)]


class FrozenModel(BaseModel):
    """A frozen group of values; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
