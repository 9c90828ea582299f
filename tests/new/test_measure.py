"""Tests of what is measured of a prepared corpus."""

from pathlib import Path

import numpy as np
import soundfile as sf

from asr.new.measure import measure
from data_prep.table import prepare


def test_a_person_of_train_beside_another_makes_no_unseen_split(tmp_path: Path) -> None:
    takes = tmp_path / "takes"
    takes.mkdir()
    rows = ["file,text,speaker,split"]
    said = [("ann", "train"), ("bob; cat", "train"), ("eve; dan", "dev"), ("fay; Ann", "test")]
    for i, (who, split) in enumerate(said):
        sf.write(takes / f"{i}.wav", 0.1 * np.random.default_rng(i).standard_normal(8000), 8000)
        rows.append(f"{i}.wav,word {i},{who},{split}")
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n", "utf-8")
    prepare(takes, tmp_path / "t.csv", tmp_path / "data")
    corpus = measure(tmp_path / "data", ["train", "dev", "test"])
    assert {split: size.is_unseen for split, size in corpus.splits.items()} == {
        "dev": True,
        "test": False,
    }
    assert (corpus.speakers, corpus.splits["dev"].speakers) == (3, 2)
