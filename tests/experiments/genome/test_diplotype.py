"""Table 5.1 of Cahyawijaya 2021."""

import unicodedata

import numpy as np

from experiments.genome.diplotype import CHARACTERS, HAPLOTYPE, TABLE, encode_diplotype

# Table 5.1 as it is printed, row by row.
PRINTED = """
A DEL-A A-C AI-C C-G CI-G  C DEL-AI A-G AI-CI C-N CI-GI  G DEL-C A-N AI-G C-T CI-N
N DEL-CI A-T AI-GI C-CI CI-NI  T DEL-G A-AI AI-N C-GI CI-T  AI DEL-GI A-CI AI-NI C-NI CI-TI
CI DEL-N A-GI AI-T C-TI G-GI  GI DEL-NI A-NI AI-TI GI-N G-N  NI DEL-T A-TI N-NI GI-NI G-NI
TI DEL-TI NI-T N-T GI-T G-T  DEL T-TI NI-TI N-TI GI-TI G-TI
"""
THESIS = dict(A="A", C="C", G="G", N="N", T="T", AI="B", CI="D", GI="H", NI="O", TI="U", DEL="X")


def test_the_table_is_that_of_the_thesis() -> None:
    printed = {frozenset(each.split("-")) for each in PRINTED.split()}
    assert len(printed) == 66 and {frozenset(pair) for pair in TABLE} == printed
    assert len(TABLE) == 66 == len(set(CHARACTERS)) == len(CHARACTERS)
    assert all(TABLE[each, each] == character for each, character in THESIS.items())
    assert TABLE["C", "NI"] == "穿"
    assert unicodedata.normalize("NFKC", CHARACTERS) == CHARACTERS


def named(*pairs: str) -> str:
    """The characters of pairs such as A-CI, in either order."""
    table = {frozenset(pair): character for pair, character in TABLE.items()}
    return "".join(table[frozenset(pair.split("-"))] for pair in pairs)


def test_a_diplotype_is_an_unordered_pair() -> None:
    rows_2L = np.array([(i, j) for i in range(11) for j in range(11)], np.uint8).T
    assert encode_diplotype(rows_2L) == encode_diplotype(rows_2L[::-1])
    assert encode_diplotype(rows_2L) == named(
        *(f"{HAPLOTYPE[i]}-{HAPLOTYPE[j]}" for i, j in rows_2L.T)
    )
