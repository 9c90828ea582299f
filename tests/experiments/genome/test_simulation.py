"""The simulated cohort."""

from pathlib import Path

import numpy as np

from experiments.genome import simulation, vcf
from experiments.genome.diplotype import HAPLOTYPE


def test_the_simulation_has_all_kinds_of_sites_and_a_risk(tmp_path: Path) -> None:
    files = simulation.simulate(tmp_path / "a", 6000, 300, seed=3)
    simulation.simulate(tmp_path / "b", 6000, 300, seed=3)
    for name in ("reference.fa", "cohort.vcf", "panel.vcf", "phenotypes.tsv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    region = vcf.read_reference(files["reference"])
    cohort = vcf.read_vcf(files["vcf"], region)
    kinds = np.bincount(cohort.haplotypes_P2L.ravel(), minlength=len(HAPLOTYPE))
    assert kinds[HAPLOTYPE.index("DEL")] and kinds[HAPLOTYPE.index("AI")] and not kinds[4]
    assert files["baseline"] == [3001, 3181]
    labels = vcf.read_phenotypes(files["phenotypes"], cohort.subjects)
    at_risk = [int(share * 6000) for share, _ in simulation.RISK]
    others_PR = cohort.haplotypes_P2L[:, :, at_risk] != region.bases_L[at_risk]
    risk_P = others_PR.sum(1) @ [effect for _, effect in simulation.RISK]
    assert risk_P[labels == 1].mean() > risk_P[labels == 0].mean() + 0.5
