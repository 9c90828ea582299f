"""What all kinds of projection share, and dense maps."""

from abc import abstractmethod
from typing import Literal

from torch import nn

from asr.schema import FrozenModel


class Projection(FrozenModel):
    """The options of a kind of projection."""

    @abstractmethod
    def build(self, d_in: int, d_out: int) -> nn.Module:
        """Return a map from (..., d_in) to (..., d_out).

        Raises ConfigError where the options do not fit these sizes.
        """

    def problem(self, largest_rank: int) -> str | None:  # noqa: ARG002
        """Return why maps whose full rank is at most this cannot be built, None if they can."""
        return None


class DenseConfig(Projection):
    """Dense maps, y = x W + b."""

    kind: Literal["dense"] = "dense"

    def build(self, d_in: int, d_out: int) -> nn.Module:
        """Return a map from (..., d_in) to (..., d_out)."""
        dense = nn.Linear(d_in, d_out)
        nn.init.xavier_uniform_(dense.weight)
        nn.init.zeros_(dense.bias)
        return dense
