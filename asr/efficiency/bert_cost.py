"""The price of pre-training BERT-base as an LRT: Cahyawijaya 2021, eq. 3.10 and table 3.2."""

from asr.efficiency.claims import ratios
from asr.efficiency.grid import BASELINE, Measurement
from asr.schema import FrozenModel

SHARES = {128: 0.9, 512: 0.1}  # of BERT's pre-training at each length


class Price(FrozenModel):
    """Petaflop/s-days, US dollars (lowest, highest), kg of CO2."""

    petaflop_s_days: float
    usd: tuple[float, float]
    co2_kg: float

    def __truediv__(self, efficiency: float) -> "Price":
        """Return the price at `efficiency` times the speed."""
        low, high = self.usd
        days, co2_kg = self.petaflop_s_days / efficiency, self.co2_kg / efficiency
        usd = (low / efficiency, high / efficiency)
        return Price(petaflop_s_days=days, usd=usd, co2_kg=co2_kg)


class Pricing(FrozenModel):
    """A row of table 3.2."""

    rank: int
    efficiency: float
    price: Price


BERT_BASE = Price(petaflop_s_days=2.24, usd=(2074, 6912), co2_kg=652.3)
THESIS = tuple(
    Pricing(
        rank=rank, efficiency=eff, price=Price(petaflop_s_days=days, usd=(low, high), co2_kg=kg)
    )
    for rank, eff, days, low, high, kg in (
        (256, 1.48, 1.52, 1406, 4686, 442.2),
        (128, 1.98, 1.13, 1045, 3484, 328.8),
        (64, 2.50, 0.90, 831, 2768, 261.2),
        (32, 2.63, 0.85, 789, 2629, 248.1),
    )
)


def efficiency(factors: dict[int, float]) -> float:
    """Return Eff = Σ P_k E_k, from the factor E_k at each length k of SHARES (eq. 3.10)."""
    return sum(share * factors[length] for length, share in SHARES.items())


def pricing(rows: list[Measurement]) -> list[Pricing]:
    """Price the training speed-up of LRT at each rank measured at all of SHARES, greatest first."""
    found: dict[int, dict[int, float]] = {}
    for ratio in ratios(rows, "seconds", BASELINE, "lrt", "training"):
        found.setdefault(ratio.rank or 0, {})[ratio.length] = ratio.value
    return [
        Pricing(rank=rank, efficiency=efficiency(factors), price=BERT_BASE / efficiency(factors))
        for rank, factors in sorted(found.items(), reverse=True)
        if factors.keys() >= SHARES.keys()
    ]
