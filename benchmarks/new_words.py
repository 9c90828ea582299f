"""Split a corpus of single words: words of test and dev are not in train, their characters are.

    python -m benchmarks.new_words HSK_DIR hsk.csv [--seed 1]
    asr prepare table HSK_DIR hsk.csv data/hsk

HSK_DIR has `hsk.tsv` (id, text, seconds) and a file ID.ogg of each word. A tenth of the words is
drawn for test, and 200 more for dev.
"""

import argparse
import csv
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

_DEV = 200


def split(texts: Sequence[str], seed: int) -> list[str]:
    """Return the split of each text; every character of test and dev is in train too."""
    remaining = Counter(character for text in texts for character in text)
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)
    found = ["train"] * len(texts)
    for name, size in (("test", len(texts) // 10), ("dev", _DEV)):
        n_chosen = 0
        while n_chosen < size and order:
            i = order.pop()
            own = Counter(texts[i])
            if all(remaining[character] > n for character, n in own.items()):
                remaining -= own
                found[i] = name
                n_chosen += 1
    return found


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with (given.corpus / "hsk.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    splits = split([row["text"] for row in rows], given.seed)
    with given.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "split", "text"))
        for row, name in zip(rows, splits, strict=True):
            writer.writerow((f"{row['id']}.ogg", name, row["text"]))


if __name__ == "__main__":
    main()
