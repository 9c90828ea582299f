"""The cost of a training run: time, floating-point operations, energy, CO2."""

from pathlib import Path
from typing import Any

from pydantic import NonNegativeFloat, ValidationError

from asr.errors import BundleError
from asr.runtime.files import write_text
from asr.schema import FrozenModel

COST = "cost.json"
UNKNOWN = "unknown"


class Cost(FrozenModel):
    """The cost of all sessions of a run; None is not measured.

    `seconds` is wall time from the first batch to the last epoch's validation; `operations` those
    of forward and backward passes in training (see `operations_of_step`); `energy_kwh` that of
    processor, memory and GPUs, of which `metered_kwh` came from a meter and the rest is
    codecarbon's estimate; `co2_kg` that of the electricity of `grid`.
    """

    seconds: NonNegativeFloat = 0.0
    operations: NonNegativeFloat = 0.0
    energy_kwh: NonNegativeFloat | None = 0.0
    metered_kwh: NonNegativeFloat | None = 0.0
    co2_kg: NonNegativeFloat | None = 0.0
    grid: str | None = None

    def __add__(self, later: "Cost") -> "Cost":
        """Return the sum; a value that is unknown in one is unknown in the sum."""
        values: dict[str, Any] = {"grid": later.grid or self.grid}
        for name in ("seconds", "operations", "energy_kwh", "metered_kwh", "co2_kg"):
            a, b = getattr(self, name), getattr(later, name)
            values[name] = None if a is None or b is None else a + b
        return Cost(**values)

    def facts(self) -> dict[str, str]:
        """Return the rows of a model card, with units."""
        co2 = f"{self.co2_kg or 0:.3g} kg (electricity of {self.grid})"
        return {
            "training time": f"{self.seconds / 60:.1f} min",
            "floating-point operations of training": f"{self.operations:.3g}",
            "energy of training": self.energy_text(),
            "CO2 of training": UNKNOWN if self.co2_kg is None else co2,
        }

    def energy_text(self) -> str:
        """Return the energy, and the share of it that was metered."""
        if self.energy_kwh is None or self.metered_kwh is None:
            return UNKNOWN
        share = self.metered_kwh / self.energy_kwh if self.energy_kwh else 0.0
        how = f"{share:.0%} metered, the rest estimated" if share else "estimated, no meter"
        return f"{self.energy_kwh:.3g} kWh ({how})"


def write_cost(bundle: Path, cost: Cost) -> None:
    """Store a run's cost in its bundle."""
    write_text(bundle / COST, cost.model_dump_json(indent=2) + "\n")


def read_cost(bundle: Path) -> Cost | None:
    """Read the cost in a bundle, if there is one. Raises BundleError where it is damaged."""
    path = bundle / COST
    if not path.is_file():
        return None
    try:
        return Cost.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BundleError(f"{path}: not a run's cost: remove it, or train again") from error
