"""Measure how many syllables are wrong in what `asr evaluate --out` wrote, with tone and without.

    python -m benchmarks.syllables RECORDS.jsonl

Mandarin has many characters for a syllable, so that a word never heard can be recognized by its
sounds and yet be written wrongly. The syllables are pypinyin's.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import jiwer

from asr.pinyin import units_of


def wrong_syllables(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[float, float]:
    """Return the error rates (0 to 1, more with insertions) of syllables with and without tone."""
    syllables = units_of("syllable")
    said, found = ([syllables(text) for text in texts] for texts in (references, hypotheses))
    plain = ([[one.rstrip("12345") for one in text] for text in texts] for texts in (said, found))
    return _rate(said, found), _rate(*plain)


def _rate(said: list[list[str]], found: list[list[str]]) -> float:
    return float(jiwer.wer([" ".join(text) for text in said], [" ".join(text) for text in found]))


def main() -> None:
    """Print the two rates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("records", type=Path)
    lines = parser.parse_args().records.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    tonal, plain = wrong_syllables(*([row[k] for row in rows] for k in ("reference", "hypothesis")))
    print(f"syllables wrong: {tonal:.2%} with tone, {plain:.2%} without, of {len(rows)} texts")


if __name__ == "__main__":
    main()
