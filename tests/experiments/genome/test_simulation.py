"""The simulated cohort."""

from collections import Counter
from math import log2
from pathlib import Path

import numpy as np

from experiments.genome import simulation, vcf
from experiments.genome.diplotype import HAPLOTYPE


def test_the_simulation_has_all_kinds_of_sites_and_a_risk(tmp_path: Path) -> None:
    files = simulation.simulate(tmp_path / "a", 6000, 300, 20, seed=3)
    simulation.simulate(tmp_path / "b", 6000, 300, 20, seed=3)
    for name in ("reference.fa", "cohort.vcf", "panel.vcf", "phenotypes.tsv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    region = vcf.read_reference(files["reference"])
    cohort = vcf.read_vcf(files["vcf"], region)
    assert len(vcf.read_vcf(files["panel"], region).subjects) == 20
    kinds = np.bincount(cohort.haplotypes_P2L.ravel(), minlength=len(HAPLOTYPE))
    assert kinds[HAPLOTYPE.index("DEL")] and kinds[HAPLOTYPE.index("AI")] and not kinds[4]
    assert files["baseline"] == [3001, 3181]
    labels = vcf.read_phenotypes(files["phenotypes"], cohort.subjects)
    at_risk = [int(share * 6000) for share, _ in simulation.RISK]
    others_PR = cohort.haplotypes_P2L[:, :, at_risk] != region.bases_L[at_risk]
    risk_P = others_PR.sum(1) @ [effect for _, effect in simulation.RISK]
    assert risk_P[labels == 1].mean() > risk_P[labels == 0].mean() + 0.5


def test_the_reference_has_the_statistics_of_a_genome() -> None:
    bases = simulation.draw_reference(np.random.default_rng(4), 60_000)
    n, shares = len(bases), {base: count / len(bases) for base, count in Counter(bases).items()}
    assert n == 60_000 and 0.35 < shares["C"] + shares["G"] < 0.45
    assert bases.count("CG") / n < 0.4 * shares["C"] * shares["G"]
    quads, triples = (Counter(bases[i : i + k] for i in range(n - k + 1)) for k in (4, 3))
    entropy = -sum(c / n * log2(c / triples[quad[:-1]]) for quad, c in quads.items())
    assert 1.8 < entropy < 1.95
    again = n - len({bases[i : i + 24] for i in range(n - 23)})
    assert again > 0.02 * n  # by chance 24 bases are repeated once in 10^5 references
