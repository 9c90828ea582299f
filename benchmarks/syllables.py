"""Measure how many syllables are wrong in what `asr evaluate --out` wrote, with tone and without.

    python -m benchmarks.syllables RECORDS.jsonl … [--record]

Mandarin has many characters for a syllable. So the sounds of a new word can be right where its
characters are wrong. The syllables are those of pypinyin.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import jiwer

from asr.pinyin import units_of
from benchmarks import record
from benchmarks.record import Result, Value


def wrong_syllables(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[float, float]:
    """Return the error rates (0 to 1, more with insertions) of syllables with and without tone."""
    syllables = units_of("syllable")
    said, found = ([syllables(text) for text in texts] for texts in (references, hypotheses))
    plain = ([[one.rstrip("12345") for one in text] for text in texts] for texts in (said, found))
    return _rate(said, found), _rate(*plain)


def _rate(said: list[list[str]], found: list[list[str]]) -> float:
    return float(jiwer.wer([" ".join(text) for text in said], [" ".join(text) for text in found]))


def measure(records: Path) -> list[Value]:
    """Return a row: the name of the file, both error rates in percent, and how many texts."""
    rows = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    texts = ([row[kind] for row in rows] for kind in ("reference", "hypothesis"))
    tonal, plain = wrong_syllables(*texts)
    return [records.stem, 100 * tonal, 100 * plain, len(rows)]


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path, nargs="+")
    record.add_option(parser)
    args = parser.parse_args()
    columns = {"recognized": "", "with tone (%)": ".2f", "without (%)": ".2f", "texts": ","}
    rows = [measure(records) for records in args.records]
    title = "Wrong syllables of Mandarin texts"
    record.publish(args, "little-data", [Result(title=title, columns=columns, rows=rows)])


if __name__ == "__main__":
    main()
