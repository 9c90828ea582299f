"""Tests of what is measured of a prepared corpus."""

from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from asr.new.measure import measure
from data_prep.table import prepare


@pytest.mark.parametrize(
    ("dev", "is_unseen"),
    [
        ("eve; dan", True),
        ("fay; Ann", False),
        ("fay, ann", False),
        ("fay; ?", False),
        ("Smith, Bob", True),
        ("", False),
    ],
)
def test_people_of_dev_are_unseen_where_none_of_them_is_beside_another_in_train(
    dev: str, is_unseen: bool, tmp_path: Path
) -> None:
    takes = tmp_path / "takes"
    takes.mkdir()
    rows = ["file,text,speaker,split"]
    said = [("ann", "train"), ("cat; dot", "train"), ("Smith, Ann", "train"), (dev, "dev")]
    for i, (who, split) in enumerate(said):
        sf.write(takes / f"{i}.wav", 0.1 * np.random.default_rng(i).standard_normal(8000), 8000)
        rows.append(f'{i}.wav,word {i},"{who}",{split}')
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n", "utf-8")
    prepare(takes, tmp_path / "t.csv", tmp_path / "data")
    corpus = measure(tmp_path / "data", ["train", "dev"])
    assert corpus.splits["dev"].is_unseen == is_unseen
    assert corpus.speakers == 4
