"""A simulated cohort: nobody's chromosomes, nobody's disease, nothing known about any gene.

Chromosomes are mosaics of a few founders', as in a population whose sites are inherited together.
The risk is a sum over five sites, of which the baseline is given two, in the place of rs429358 and
rs7412; the other three are what a model of the whole sequence can gain.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asr.runtime.files import write_atomically
from experiments.genome.vcf import COLUMNS

_CHROMOSOME = "simulated"
_FOUNDERS, _SITE_EVERY, _CROSSOVERS = 8, 100, 1.5
# Where the sites of risk are, as shares of the region, and what an allele adds to the log odds.
RISK = ((0.50, 1.0), (0.53, -1.0), (0.15, 1.5), (0.30, -1.5), (0.85, 1.5))
_BASES = np.array(list("ACGT"))


@dataclass
class Site:
    """A place from 0, what stands there, and which founders have the other allele."""

    place: int
    ref: str
    alt: str
    carriers_F: np.ndarray


def simulate(folder: Path, length: int, subjects: int, panel: int, seed: int) -> list[int]:
    """Write reference.fa, cohort.vcf, panel.vcf (no phenotypes) and phenotypes.tsv.

    Returns the coordinates of the two sites that the baseline is given.
    """
    rng = np.random.default_rng(seed)
    reference = "".join(rng.choice(_BASES, length))
    at_risk = [int(share * length) for share, _ in RISK]
    sites = _sites(rng, reference, at_risk)
    folder.mkdir(parents=True, exist_ok=True)
    fasta = f">{_CHROMOSOME}\n{reference}\n"
    write_atomically(folder / "reference.fa", lambda path: path.write_text(fasta))
    for name, n in (("panel", panel), ("cohort", subjects)):
        alleles = _alleles(rng, sites, n, length)
        _write_vcf(folder / f"{name}.vcf", sites, alleles, name)
    index = [[site.place for site in sites].index(place) for place in at_risk]
    dosage_PR = alleles.sum(1)[:, index] @ np.array([effect for _, effect in RISK])
    odds_P = dosage_PR - np.median(dosage_PR)
    ill_P = rng.random(subjects) < 1 / (1 + np.exp(-odds_P))
    rows = "".join(f"cohort{i}\t{int(ill)}\n" for i, ill in enumerate(ill_P))
    write_atomically(folder / "phenotypes.tsv", lambda path: path.write_text(rows))
    return [place + 1 for place in at_risk[:2]]


def _sites(rng: np.random.Generator, reference: str, at_risk: list[int]) -> list[Site]:
    """Most are substitutions, a tenth insertions, a tenth deletions of one to four bases."""
    taken = {place + off for place in at_risk for off in range(-9, 10)}
    others = [p for p in range(9, len(reference) - 9, _SITE_EVERY) if p not in taken]
    sites = []
    for place in sorted({*others, *at_risk}):
        carriers_F = rng.permutation(_FOUNDERS) < rng.integers(1, 4)
        ref = alt = reference[place]
        kind = 1.0 if place in at_risk else rng.random()
        if kind < 0.1:
            alt = ref + "".join(rng.choice(_BASES, rng.integers(1, 5)))
        elif kind < 0.2:
            ref = reference[place : place + rng.integers(2, 6)]
        else:
            alt = rng.choice([base for base in _BASES if base != ref])
        sites.append(Site(place, ref, str(alt), carriers_F))
    return sites


def _alleles(rng: np.random.Generator, sites: list[Site], n: int, length: int) -> np.ndarray:
    """(n, 2, site): whether a haplotype has the other allele."""
    places = np.array([site.place for site in sites])
    carriers_SF = np.stack([site.carriers_F for site in sites])
    rows = []
    for _ in range(2 * n):
        crossings = np.sort(rng.integers(0, length, rng.poisson(_CROSSOVERS)))
        founders = rng.integers(0, _FOUNDERS, len(crossings) + 1)
        founder_S = founders[np.searchsorted(crossings, places)]
        rows.append(carriers_SF[np.arange(len(sites)), founder_S])
    return np.array(rows).reshape(n, 2, -1)


def _write_vcf(path: Path, sites: list[Site], alleles: np.ndarray, name: str) -> None:
    subjects = [f"{name}{i}" for i in range(len(alleles))]
    rows = ["##fileformat=VCFv4.3", "##source=simulated", "\t".join([*COLUMNS, *subjects])]
    for i, site in enumerate(sites):
        genotypes = [f"{a}|{b}" for a, b in alleles[:, :, i].astype(int)]
        fixed = [_CHROMOSOME, str(site.place + 1), ".", site.ref, site.alt, ".", ".", ".", "GT"]
        rows.append("\t".join([*fixed, *genotypes]))
    text = "\n".join(rows) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))
