"""What pre-training BERT-base would cost as an LRT: thesis eq. 3.10 and table 3.2."""

from asr.efficiency.claims import ratios
from asr.efficiency.grid import BASELINE, Measurement
from asr.schema import FrozenModel

# Of BERT's pre-training, the share at each length.
SHARES = {128: 0.9, 512: 0.1}


class Price(FrozenModel):
    """Petaflop/s-days, US dollars from and to, kg of CO2."""

    petaflop_s_days: float
    usd: tuple[float, float]
    co2_kg: float

    def __truediv__(self, efficiency: float) -> "Price":
        """At so many times the efficiency."""
        low, high = (usd / efficiency for usd in self.usd)
        return Price(
            petaflop_s_days=self.petaflop_s_days / efficiency, usd=(low, high),
            co2_kg=self.co2_kg / efficiency,
        )  # fmt: skip


class Pricing(FrozenModel):
    """A row of table 3.2."""

    rank: int
    efficiency: float
    price: Price


def _printed(rank: int, efficiency: float, days: float, usd: tuple[int, int], kg: float) -> Pricing:
    price = Price(petaflop_s_days=days, usd=usd, co2_kg=kg)
    return Pricing(rank=rank, efficiency=efficiency, price=price)


BERT_BASE = Price(petaflop_s_days=2.24, usd=(2074, 6912), co2_kg=652.3)
THESIS = (
    _printed(256, 1.48, 1.52, (1406, 4686), 442.2),
    _printed(128, 1.98, 1.13, (1045, 3484), 328.8),
    _printed(64, 2.50, 0.90, (831, 2768), 261.2),
    _printed(32, 2.63, 0.85, (789, 2629), 248.1),
)


def efficiency(factors: dict[int, float]) -> float:
    """Eff = Σ P_k E_k, from the factor E_k at each length k of SHARES (eq. 3.10)."""
    return sum(share * factors[length] for length, share in SHARES.items())


def pricing(rows: list[Measurement]) -> list[Pricing]:
    """By the speed-up of LRT's training at each rank; of ranks measured at all lengths of SHARES.

    Greatest rank first, as the thesis has them.
    """
    found: dict[int, dict[int, float]] = {}
    for ratio in ratios(rows, "seconds", BASELINE, "lrt", "training"):
        found.setdefault(ratio.rank or 0, {})[ratio.length] = ratio.value
    return [
        Pricing(rank=rank, efficiency=efficiency(factors), price=BERT_BASE / efficiency(factors))
        for rank, factors in sorted(found.items(), reverse=True)
        if factors.keys() >= SHARES.keys()
    ]
