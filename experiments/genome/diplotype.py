"""What a subject's two chromosomes have at a place, as one character (thesis 5.2.1, Table 5.1)."""

import unicodedata
from itertools import combinations

import numpy as np

# What one chromosome has there: a base; none of it (DEL); or a base with more inserted behind it.
HAPLOTYPE = ("A", "C", "G", "T", "N", "DEL", "AI", "CI", "GI", "TI", "NI")
DEL = HAPLOTYPE.index("DEL")
_INSERTED = 6

# Both the same. These and C-NI are the thesis's characters; those of the other pairs are lost in
# the copy of it that we have, which does not matter to any result: what they are is only a name.
_SAME = dict(zip(HAPLOTYPE, "ACGTNXBDHUO", strict=True))
_FIRST_OTHER = 0x4E00


def _table() -> dict[tuple[str, str], str]:
    table = {(each, each): character for each, character in _SAME.items()}
    for i, pair in enumerate(combinations(HAPLOTYPE, 2)):
        table[pair] = "穿" if pair == ("C", "NI") else chr(_FIRST_OTHER + i)
    assert all(unicodedata.normalize("NFKC", each) == each for each in table.values())
    return table


# The 66 tokens: a pair, in HAPLOTYPE's order, to its character.
TABLE = _table()
CHARACTERS = "".join(TABLE.values())

_CODES = np.empty((len(HAPLOTYPE), len(HAPLOTYPE)), dtype="U1")
for (_one, _other), _character in TABLE.items():
    _i, _j = HAPLOTYPE.index(_one), HAPLOTYPE.index(_other)
    _CODES[_i, _j] = _CODES[_j, _i] = _character


def bases(text: str) -> np.ndarray:
    """A text of A, C, G, T, N (either case) and `-` as indices into HAPLOTYPE, uint8."""
    return np.array([DEL if c == "-" else HAPLOTYPE.index(c) for c in text.upper()], np.uint8)


def with_insertion(base: int) -> int:
    """The index of a base behind which more is inserted."""
    return base if base >= DEL else base + _INSERTED


def diplotype(haplotypes_2L: np.ndarray) -> str:
    """Two rows of indices into HAPLOTYPE to the sequence of diplotype characters."""
    return "".join(_CODES[haplotypes_2L[0], haplotypes_2L[1]])
