"""A simulated cohort of random chromosomes and an invented disease, unrelated to any real gene.

The reference is a Markov chain with copies of repeated elements. Chromosomes are mosaics of those
of a few founders, so that neighboring sites are inherited together. The log odds of the disease are
a sum over five sites. The baseline sees two of them, in the place of rs429358 and rs7412; a model
of the whole sequence can gain from the other three.
"""

from pathlib import Path
from typing import Any

import numpy as np

from asr.runtime.files import write_text
from experiments.genome.vcf import COLUMNS

_N_FOUNDERS, _SITE_EVERY, _CROSSOVERS = 8, 100, 1.5
# Sites of risk: their position as a share of the region, and the log odds that an allele adds.
RISK = ((0.50, 1.0), (0.53, -1.0), (0.15, 1.5), (0.30, -1.5), (0.85, 1.5))
_BASES = np.array(list("ACGT"))
# As in the human genome (International Human Genome Sequencing Consortium 2001): 41 % are C or G, a
# G after a C is a fifth as frequent as by chance, 45 % are copies of elements of some 300 bases.
_SHARES, _CPG = np.array([0.295, 0.205, 0.205, 0.295]), 0.2
_ORDER, _SHARPNESS = 3, 60  # of the Markov chain; its entropy is 1.9 bits a base, near human DNA's
_FAMILIES, _ELEMENT, _REPEATED, _MUTATED = 3, 300, 0.45, 0.1
Site = tuple[int, str, str]  # position from 0, two alleles


def simulate(folder: Path, length: int, n: int, n_panel: int, seed: int) -> dict[str, Any]:
    """Write a cohort of `n` subjects and a panel of `n_panel` others without phenotypes.

    Returns the options of the script that read these files, with two sites of risk as `baseline`.
    """
    rng = np.random.default_rng(seed)
    reference = draw_reference(rng, length)
    at_risk = [int(share * length) for share, _ in RISK]
    sites, carriers_SF = _draw_sites(rng, reference, at_risk)
    positions = [position for position, _, _ in sites]
    panel = _vcf_lines(sites, _draw_alleles(rng, carriers_SF, positions, n_panel, length), "panel")
    alleles_P2S = _draw_alleles(rng, carriers_SF, positions, n, length)
    dosage_PR = alleles_P2S.sum(1)[:, [positions.index(position) for position in at_risk]]
    risk_P = dosage_PR @ np.array([effect for _, effect in RISK])
    log_odds_P = risk_P - np.median(risk_P)
    cases = rng.random(n) < 1 / (1 + np.exp(-log_odds_P))
    phenotypes = [f"cohort{i}\t{case:d}" for i, case in enumerate(cases)]
    return {
        "reference": _write(folder / "reference.fa", [">simulated", reference]),
        "panel": _write(folder / "panel.vcf", panel),
        "vcf": _write(folder / "cohort.vcf", _vcf_lines(sites, alleles_P2S, "cohort")),
        "phenotypes": _write(folder / "phenotypes.tsv", phenotypes),
        "baseline": [position + 1 for position in at_risk[:2]],
    }


def draw_reference(rng: np.random.Generator, length: int) -> str:
    """Return bases of a Markov chain, with mutated copies of a few elements between them."""
    rows_CX = rng.dirichlet(_SHARPNESS * _SHARES, 4**_ORDER)  # context (its last base last), base
    rows_CX[1::4, 2] *= _CPG
    rows_CX /= rows_CX.sum(1, keepdims=True)

    def chain(n: int) -> list[int]:
        bases: list[int] = rng.choice(4, _ORDER, p=_SHARES).tolist()
        for draw in rng.random(n):
            context = int(np.dot(bases[-_ORDER:], 4 ** np.arange(_ORDER)[::-1]))
            bases.append(min(int(np.searchsorted(rows_CX[context].cumsum(), draw)), 3))
        return bases[_ORDER:]

    families = [np.array(chain(_ELEMENT)) for _ in range(_FAMILIES)]
    gap = _ELEMENT * (1 / _REPEATED - 1)
    bases: list[int] = []
    while len(bases) < length:
        bases += chain(int(rng.exponential(gap)))
        copy = families[rng.integers(_FAMILIES)]
        mutated = rng.random(_ELEMENT) < _MUTATED
        bases += np.where(mutated, rng.integers(0, 4, _ELEMENT), copy).tolist()
    return "".join(_BASES[bases[:length]])


def _write(path: Path, lines: list[str]) -> Path:
    write_text(path, "\n".join(lines) + "\n")
    return path


def _draw_sites(
    rng: np.random.Generator, reference: str, at_risk: list[int]
) -> tuple[list[Site], np.ndarray]:
    """Return the sites, and (sites, founders) True where a founder has the second allele.

    A tenth are insertions, a tenth deletions of one to four bases, the others substitutions.
    """
    taken = {position + offset for position in at_risk for offset in range(-9, 10)}
    others = {p for p in range(9, len(reference) - 9, _SITE_EVERY) if p not in taken}
    sites, carriers = list[Site](), []
    for position in sorted(others.union(at_risk)):
        carriers.append(rng.permutation(_N_FOUNDERS) < rng.integers(1, 4))
        ref = alt = reference[position]
        kind = 1.0 if position in at_risk else rng.random()
        if kind < 0.1:
            alt = ref + "".join(rng.choice(_BASES, rng.integers(1, 5)))
        elif kind < 0.2:
            ref = reference[position : position + rng.integers(2, 6)]
        else:
            alt = str(rng.choice([base for base in _BASES if base != ref]))
        sites.append((position, ref, alt))
    return sites, np.stack(carriers)


def _draw_alleles(
    rng: np.random.Generator, carriers_SF: np.ndarray, positions: list[int], n: int, length: int
) -> np.ndarray:
    """Return (n, 2, sites), True where a haplotype has the second allele."""
    rows = []
    for _ in range(2 * n):
        crossings = np.sort(rng.integers(0, length, rng.poisson(_CROSSOVERS)))
        founders = rng.integers(0, _N_FOUNDERS, len(crossings) + 1)
        founder_S = founders[np.searchsorted(crossings, positions)]
        rows.append(carriers_SF[np.arange(len(positions)), founder_S])
    return np.array(rows).reshape(n, 2, -1)


def _vcf_lines(sites: list[Site], alleles_P2S: np.ndarray, name: str) -> list[str]:
    subjects = [f"{name}{i}" for i in range(len(alleles_P2S))]
    lines = ["##fileformat=VCFv4.3", "##source=simulated", "\t".join([*COLUMNS, *subjects])]
    for i, (position, ref, alt) in enumerate(sites):
        fixed = ["simulated", str(position + 1), ".", ref, alt, ".", ".", ".", "GT"]
        lines.append("\t".join([*fixed, *(f"{a:d}|{b:d}" for a, b in alleles_P2S[:, :, i])]))
    return lines
