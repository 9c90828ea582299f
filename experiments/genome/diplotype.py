"""One character for two haplotypes at a position (Cahyawijaya 2021, 5.2.1 and Table 5.1)."""

from itertools import combinations

import numpy as np

# A base; none (DEL); or a base with an insertion behind it.
HAPLOTYPE = ("A", "C", "G", "T", "N", "DEL", "AI", "CI", "GI", "TI", "NI")
DEL, N = HAPLOTYPE.index("DEL"), HAPLOTYPE.index("N")
WITH_INSERTION = (6, 7, 8, 9, 10)  # of each base, the same with an insertion

# The 66 pairs and their characters. Equal pairs and C-NI have those of the thesis; the others are
# missing from our copy of it and have arbitrary ones, which affects no result.
TABLE = {(each, each): name for each, name in zip(HAPLOTYPE, "ACGTNXBDHUO", strict=True)}
TABLE |= {pair: chr(0x4E00 + i) for i, pair in enumerate(combinations(HAPLOTYPE, 2))}
TABLE["C", "NI"] = "穿"
CHARACTERS = "".join(TABLE.values())
_CODES = np.array([[TABLE.get((a, b)) or TABLE[b, a] for b in HAPLOTYPE] for a in HAPLOTYPE])


def encode_bases(text: str) -> np.ndarray:
    """Return A, C, G, T, N (either case) and `-` as indices into HAPLOTYPE, uint8."""
    return np.array([DEL if c == "-" else HAPLOTYPE.index(c) for c in text.upper()], np.uint8)


def encode_diplotype(haplotypes_2L: np.ndarray) -> str:
    """Return two haplotypes, as indices into HAPLOTYPE, as a sequence of diplotype characters."""
    return "".join(_CODES[haplotypes_2L[0], haplotypes_2L[1]])
