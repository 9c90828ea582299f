"""The cost of a training run: time, floating-point operations, energy, CO2."""

from pathlib import Path
from typing import Any

from pydantic import NonNegativeFloat

from asr.runtime.files import read_json, write_text
from asr.schema import FrozenModel

COST = "cost.json"
UNKNOWN = "unknown"


class Cost(FrozenModel):
    """The cost of all sessions of a run; None where it was not measured.

    `seconds` is wall time from the trainer's setup to its teardown. `core_seconds` is processor
    time meanwhile, of a run in one process and of its readers of data. `operations` counts
    those of forward and backward passes in training (see `operations_of_step`). `energy_kwh` is
    the energy of processor, memory and GPUs: `metered_kwh` of it came from a meter, and codecarbon
    estimated the rest. `co2_kg` is the CO2 of the electricity of `grid`.
    """

    seconds: NonNegativeFloat = 0.0
    core_seconds: NonNegativeFloat | None = None
    operations: NonNegativeFloat = 0.0
    energy_kwh: NonNegativeFloat | None = 0.0
    metered_kwh: NonNegativeFloat | None = 0.0
    co2_kg: NonNegativeFloat | None = 0.0
    grid: str | None = None

    def __add__(self, later: "Cost") -> "Cost":
        """Return the sum; a value that is unknown in one is unknown in the sum."""
        values: dict[str, Any] = {"grid": later.grid or self.grid}
        for name in (
            "seconds",
            "core_seconds",
            "operations",
            "energy_kwh",
            "metered_kwh",
            "co2_kg",
        ):
            a, b = getattr(self, name), getattr(later, name)
            values[name] = None if a is None or b is None else a + b
        return Cost(**values)

    def facts(self) -> dict[str, str]:
        """Return the rows of a model card, with units."""
        co2 = f"{self.co2_kg or 0:.3g} kg (electricity of {self.grid})"
        return {
            "training time": f"{self.seconds / 60:.1f} min",
            "processor time of training": self.core_text(),
            "floating-point operations of training": f"{self.operations:.3g}",
            "energy of training": self.energy_text(),
            "CO2 of training": UNKNOWN if self.co2_kg is None else co2,
        }

    def core_text(self) -> str:
        """Return the processor time in core minutes."""
        return UNKNOWN if self.core_seconds is None else f"{self.core_seconds / 60:.1f} core min"

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
    return read_json(bundle / COST, Cost, "a run's cost: remove it, or train again")
