"""The tables and lists of the recorded trainings of real speech."""

import csv
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.corpora import counts

ARPA = r"""
\data\
ngram 1=4

\1-grams:
-1.0	你	-0.1
-2.0	好	-0.1
-1.0	a	-0.1
-0.5	<unk>	0

\2-grams:
-0.5	你 好	-0.2
-9.5	好 你	-0.2
-0.5	a 好	0

\3-grams:
-0.25	你 好 你

\end\
"""


def test_counts_are_those_of_a_billion_words() -> None:
    found = dict(line.split() for line in counts(ARPA.splitlines(keepends=True)))
    assert found.keys() == {"你好", "你好你"}
    assert int(found["你好"]) == pytest.approx(1e9 * 10**-1.5, rel=1e-6)
    assert int(found["你好你"]) == pytest.approx(1e9 * 10**-1.75, rel=1e-6)


def test_every_corpus_has_a_table_and_the_lists_their_words(tmp_path: Path) -> None:
    rows = {
        "words20": [("W000", "train", w) for w in ("北京", "背景")] + [("W002", "dev", "北京")],
        "commonvoice_zh": [("C1", "train", "今天很好"), ("C2", "dev", "明天")],
        "sentences": [("S0150", "", f"第{i}句") for i in range(80)] + [("", "", "別人")],
        "hsk": [("", "", a + b) for a in "天地人" for b in "山川日"],
    }
    for name, lines in rows.items():
        text = "".join(f"{name}{i}\t{s}\t{split}\t{t}\n" for i, (s, split, t) in enumerate(lines))
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / f"{name}.tsv").write_text(f"id\tspeaker\tsplit\ttext\n{text}")
    command = [sys.executable, "-m", "benchmarks.corpora", tmp_path / "in", tmp_path / "out"]
    subprocess.run(command, check=True)
    made = {path.stem: read(path) for path in (tmp_path / "out").glob("*.csv")}
    assert [row["split"] for row in made["words20"]] == ["test", "test", "train"]
    assert [row["split"] for row in made["commonvoice_zh"]] == ["train", "dev"]
    splits = Counter(row["split"] for row in made["s0150"])
    assert splits == {"test": 36, "dev": 36, "train": 8}
    assert made["words20"][0]["file"] == "W000/words200.ogg"
    assert made["s0150"][0]["file"].endswith(".flac") and len(made["hsk"]) == 9
    assert (tmp_path / "out/list.txt").read_text("utf-8") == "北京\n背景\n"
    assert len((tmp_path / "out/hsk_all.txt").read_text("utf-8").splitlines()) == 9


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
