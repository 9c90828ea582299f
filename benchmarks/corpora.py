"""Write the tables and lists from which the recorded trainings of real speech were made.

    python -m benchmarks.corpora SPEECH OUT
    asr prepare table SPEECH/words20 OUT/words20.csv data/words20

SPEECH has the folders of benchmarks/recipes/README.md. The script writes to OUT a table for each
corpus, and the lists of words for `asr train-lm --words`. With `--counts ARPA` it also writes
`triples.txt`, the pairs and triples of words of a 3-gram model in the ARPA format.
"""

import argparse
import csv
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.new_words import split

_TEST = {"W000", "W008", "W011", "W022", "W023", "W028"}  # of words20
_DEV = "W001"
_SPEAKER, _N_HELD_OUT = "S0150", 36
_PER_BILLION = 1e9
_FEWEST = 3

Row = dict[str, str]


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def sentences(speech: Path) -> list[Row]:
    """Return commonvoice_zh, split as its own table says."""
    rows = _read(speech / "commonvoice_zh" / "commonvoice_zh.tsv")
    return [_row(r, f"{r['speaker']}/{r['id']}.ogg", r["speaker"], r["split"]) for r in rows]


def words(speech: Path) -> list[Row]:
    """Return words20: six people are test, one is dev."""
    names = dict.fromkeys(_TEST, "test") | {_DEV: "dev"}
    return [
        _row(r, f"{r['speaker']}/{r['id']}.ogg", r["speaker"], names.get(r["speaker"], "train"))
        for r in _read(speech / "words20" / "words20.tsv")
    ]


def one_person(speech: Path) -> list[Row]:
    """Return the sentences of S0150 in an order drawn by chance: 36 are test, 36 are dev."""
    rows = _read(speech / "sentences" / "sentences.tsv")
    rows = [r for r in rows if r["speaker"] == _SPEAKER and r["text"]]
    random.Random(1).shuffle(rows)
    names = ["test"] * _N_HELD_OUT + ["dev"] * _N_HELD_OUT
    names += ["train"] * (len(rows) - len(names))
    return [_row(r, f"{r['id']}.flac", _SPEAKER, name) for r, name in zip(rows, names, strict=True)]


def new_words(speech: Path) -> list[Row]:
    """Return hsk as `benchmarks.new_words` splits it."""
    rows = _read(speech / "hsk" / "hsk.tsv")
    names = split([r["text"] for r in rows], seed=1)
    return [_row(r, f"{r['id']}.ogg", "", name) for r, name in zip(rows, names, strict=True)]


def _row(row: Row, file: str, speaker: str, name: str) -> Row:
    return {"file": file, "text": row["text"], "speaker": speaker, "split": name}


def counts(arpa: Iterable[str]) -> Iterator[str]:
    """Yield "words count" for each pair and triple of Chinese words, as of a billion words.

    `arpa` are the lines of a 3-gram model, in which a triple follows its first pair.
    """
    order, singles, pairs = "", dict[str, float](), dict[str, float]()
    for line in arpa:
        if line.startswith("\\"):
            order = line[1:2]
            continue
        if "\t" not in line:
            continue
        logarithm, words = line.rstrip("\n").split("\t")[:2]
        chance = 10 ** float(logarithm)
        first, _, last = words.rpartition(" ")
        if order == "1":
            singles[words] = chance
            continue
        if order == "2":
            pairs[words] = chance
            chance *= singles.get(first, 0.0)
        else:
            chance *= singles.get(first.partition(" ")[0], 0.0) * pairs.get(first, 0.0)
        found, text = int(_PER_BILLION * chance + 0.5), first.replace(" ", "") + last
        if found >= _FEWEST and all("\u4e00" <= character <= "\u9fff" for character in text):
            yield f"{text} {found}"


def main() -> None:
    """Write the tables and lists."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("speech", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--counts", type=Path, metavar="ARPA", help="a 3-gram model of words")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    makers = {
        "commonvoice_zh": sentences, "words20": words, "s0150": one_person, "hsk": new_words,
    }  # fmt: skip
    for name, maker in makers.items():
        rows = maker(given.speech)
        with (given.out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    _write(given.out / "list.txt", sorted({row["text"] for row in words(given.speech)}))
    _write(given.out / "hsk_all.txt", [row["text"] for row in new_words(given.speech)])
    if given.counts:
        with given.counts.open(encoding="utf-8") as lines:
            _write(given.out / "triples.txt", list(counts(lines)))


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
