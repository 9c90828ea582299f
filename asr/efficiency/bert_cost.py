"""The price of pre-training BERT-base as an LRT: Cahyawijaya 2021, eq. 3.10 and table 3.2."""

from asr.efficiency.grid import BASELINE, Measurement
from asr.efficiency.ratios import Ratio, ratios
from asr.schema import FrozenModel

SHARES = {128: 0.9, 512: 0.1}  # of BERT's pre-training at each length


class Price(FrozenModel):
    """A row of table 3.2: the efficiency at a rank, petaflop/s-days, US dollars, kg of CO2."""

    rank: int | None
    efficiency: float
    petaflop_s_days: float
    usd_low: float
    usd_high: float
    co2_kg: float

    def at(self, rank: int, efficiency: float) -> "Price":
        """Return the price at `efficiency` times the speed."""
        _, _, *amounts = self.model_dump().values()
        return _price(rank, efficiency, *(amount / efficiency for amount in amounts))

    @property
    def cells(self) -> list[str]:
        """Return the cells of a table."""
        usd = f"{self.usd_low:,.0f} – {self.usd_high:,.0f}"
        return [f"{self.efficiency:.2f}", f"{self.petaflop_s_days:.2f}", usd, f"{self.co2_kg:.1f}"]


def _price(*cells: float | None) -> Price:
    return Price.model_validate(dict(zip(Price.model_fields, cells, strict=True)))


BERT_BASE = _price(None, 1, 2.24, 2074, 6912, 652.3)
THESIS = (
    _price(256, 1.48, 1.52, 1406, 4686, 442.2),
    _price(128, 1.98, 1.13, 1045, 3484, 328.8),
    _price(64, 2.50, 0.90, 831, 2768, 261.2),
    _price(32, 2.63, 0.85, 789, 2629, 248.1),
)


def efficiency(factors: dict[int, float]) -> float:
    """Return Eff = Σ P_k E_k, from the factor E_k at each length k of SHARES (eq. 3.10)."""
    return sum(share * factors[length] for length, share in SHARES.items())


def efficiencies(found: list[Ratio]) -> list[Ratio]:
    """Return the efficiency of each rank that has a factor at all lengths of SHARES.

    Each is given as the ratio at the greatest of these lengths.
    """
    factors: dict[int, dict[int, float]] = {}
    for value, length, rank in found:
        factors.setdefault(rank, {})[length] = value
    return [
        (efficiency(own), max(SHARES), rank)
        for rank, own in sorted(factors.items())
        if own.keys() >= SHARES.keys()
    ]


def prices(rows: list[Measurement]) -> list[Price]:
    """Return the price at each rank measured at all lengths of SHARES, greatest rank first."""
    found = efficiencies(ratios(rows, "seconds", BASELINE, "lrt", "training"))
    return [BERT_BASE.at(rank, value) for value, _, rank in reversed(found)]
