"""What all units of a layer share: their options, and the residual connection around each.

Legend: B batch, T queries, D d_model.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from asr.model.dropout import Dropout
from asr.model.places import enter, place_problem
from asr.model.projection import LowRankConfig, ProjectionConfig
from asr.schema import FrozenModel, Size

NormOrder = Literal["post", "pre"]


class LayerConfig(FrozenModel):
    """Options that all units share; `norm` is the order of layer normalization (see `Residual`).

    `projection` is the kind of all linear maps. `projections` are other kinds by place (see
    `asr.model.places`); the most specific place counts.
    """

    d_model: Size = 512
    d_inner: Size = 2048
    n_heads: Size = 8
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    norm: NormOrder = "post"
    projection: ProjectionConfig = LowRankConfig(rank=100)
    projections: dict[str, ProjectionConfig] = Field(default={})

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        largest_rank, problems = min(self.d_model, self.d_inner), []
        for key, projection in self.kinds.items():
            problem = projection.problem(largest_rank)
            problems.append(problem and f"{key}.{problem}")
        problems.append(next(filter(None, map(place_problem, self.projections)), None))
        if self.d_model % self.n_heads or self.d_model % 2:
            problems.append(
                f"d_model {self.d_model} must be even and a multiple of n_heads {self.n_heads}"
            )
        if any(problems):
            raise ValueError("; ".join(filter(None, problems)))
        return self

    @property
    def kinds(self) -> dict[str, ProjectionConfig]:
        """Return the default projection and those of places, by their keys."""
        places = {f"projections.{place}": kind for place, kind in self.projections.items()}
        return {"projection": self.projection, **places}

    def at(self, *names: str) -> Self:
        """Return the options within these parts of the network, from the outside to the inside."""
        projection, projections = self.projection, self.projections
        for name in names:
            projection, projections = enter(name, projection, projections)
        return self.model_copy(update={"projection": projection, "projections": projections})

    def build_map(self, name: str, d_in: int, d_out: int) -> nn.Module:
        """Return the linear map of a name from (..., d_in) to (..., d_out)."""
        return self.at(name).projection.build(d_in, d_out)

    def last_norm(self) -> nn.Module:
        """Return the module after the last layer: a normalization if pre, else the identity."""
        return nn.LayerNorm(self.d_model) if self.norm == "pre" else nn.Identity()


class Residual(nn.Module):
    """The connection around a unit f: LayerNorm(x + f(x)) (post) or x + f(LayerNorm(x)) (pre).

    Cahyawijaya 2021, eq. 3.3 and 3.4, has post; pre converges far sooner in short trainings.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.is_pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def pre_norm(self, x_BTD: Tensor) -> Tensor:
        """Return the input of the unit, which is normalized if the order is pre."""
        y_BTD: Tensor = self.norm(x_BTD) if self.is_pre else x_BTD
        return y_BTD

    def add_and_norm(self, x_BTD: Tensor, branch_BTD: Tensor) -> Tensor:
        """Add the output of the unit to x, and normalize the sum if the order is post."""
        x_BTD = x_BTD + self.dropout(branch_BTD)
        y_BTD: Tensor = x_BTD if self.is_pre else self.norm(x_BTD)
        return y_BTD
