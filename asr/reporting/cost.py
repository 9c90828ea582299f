"""What a training run costs: time, floating-point operations, energy, CO2."""

from pathlib import Path
from typing import Any

from pydantic import NonNegativeFloat, ValidationError

from asr.errors import BundleError
from asr.runtime.files import write_atomically
from asr.schema import FrozenModel

COST = "cost.json"


UNKNOWN = "unknown"


class Cost(FrozenModel):
    """What was spent, in all sessions of a run; None is what nobody measured.

    `seconds` of wall time from the first batch to the last epoch's validation; `operations` of
    forward and backward passes in training (multiplications and additions, see
    `operations_of_step`); `energy_kwh` of processor, memory and GPUs, of which `metered_kwh` came
    from a meter and the rest is codecarbon's estimate; `co2_kg` of the electricity of `grid`.
    """

    seconds: NonNegativeFloat = 0.0
    operations: NonNegativeFloat = 0.0
    energy_kwh: NonNegativeFloat | None = 0.0
    metered_kwh: NonNegativeFloat | None = 0.0
    co2_kg: NonNegativeFloat | None = 0.0
    grid: str | None = None

    def __add__(self, later: "Cost") -> "Cost":
        """Both together; what one of them does not know is not known of the sum."""
        values: dict[str, Any] = {"grid": later.grid or self.grid}
        for name in ("seconds", "operations", "energy_kwh", "metered_kwh", "co2_kg"):
            a, b = getattr(self, name), getattr(later, name)
            values[name] = None if a is None or b is None else a + b
        return Cost(**values)

    def facts(self) -> dict[str, str]:
        """Rows of a model card, with units."""
        return {
            "training time": f"{self.seconds / 60:.1f} min",
            "floating-point operations of training": f"{self.operations:.3g}",
            "energy of training": self.energy_text(),
            "CO2 of training": UNKNOWN if self.co2_kg is None
            else f"{self.co2_kg:.3g} kg (electricity of {self.grid})",
        }  # fmt: skip

    def energy_text(self) -> str:
        """The energy, and how much of it is known rather than estimated."""
        if self.energy_kwh is None or self.metered_kwh is None:
            return UNKNOWN
        share = self.metered_kwh / self.energy_kwh if self.energy_kwh else 0.0
        how = f"{share:.0%} metered, the rest estimated" if share else "estimated, no meter"
        return f"{self.energy_kwh:.3g} kWh ({how})"


def write_cost(bundle: Path, cost: Cost) -> None:
    """Keep a run's cost in its bundle."""
    text = cost.model_dump_json(indent=2) + "\n"
    write_atomically(bundle / COST, lambda path: path.write_text(text, "utf-8"))


def read_cost(bundle: Path) -> Cost | None:
    """The cost that a bundle remembers, if it does. Raises BundleError where it is damaged."""
    path = bundle / COST
    if not path.is_file():
        return None
    try:
        return Cost.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BundleError(f"{path}: not a run's cost: remove it, or train again") from error
