"""Tests of whose a recording is: folders of people, and cells that name several."""

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from asr.data.manifest import load_cuts
from asr.data.people import people_of
from asr.errors import DataError
from data_prep.cuts import Utterance
from data_prep.splits import _groups, divide
from data_prep.table import prepare


def record(takes: Path, *names: str, seconds: float = 1.0) -> Path:
    for i, name in enumerate(names):
        path = takes / name
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(i).standard_normal(round(16_000 * seconds))
        sf.write(path, 0.1 * noise, 16_000)
    return takes


def prepared(takes: Path, header: str, *rows: str) -> dict[str, str]:
    """Return the text of each recording by its name in the folder."""
    table, out = takes.parent / "t.csv", takes.parent / "out"
    table.write_text("\n".join((header, *rows)) + "\n", "utf-8")
    prepare(takes, table, out, dev=0.0, test=0.0)
    return {
        str(Path(cut.recording.sources[0].source).relative_to(takes)): cut.supervisions[0].text
        for cut in load_cuts(out / "train.jsonl.gz")
    }


def test_a_recording_in_anothers_folder_is_not_taken_for_a_missing_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    takes = record(tmp_path / "takes", *(f"ann/{i}.wav" for i in range(4)),
                   *(f"cat/{i}.wav" for i in range(3)))  # fmt: skip
    rows = [f"{i}.wav,ann {i},ann" for i in range(3)] + [f"{i}.wav,cat {i},cat" for i in range(4)]
    texts = prepared(takes, "file,text,speaker", *rows)
    assert texts == {f"{who}/{i}.wav": f"{who} {i}" for who in ("ann", "cat") for i in range(3)}
    assert re.search(r"line 8: 3\.wav is in \S+takes in folders of other speakers", caplog.text)
    parts = [f"{row},0,0.5" for row in rows]
    with caplog.at_level("WARNING"):
        texts = prepared(takes, "file,text,speaker,start,end", *parts)
        assert "ann/3.wav" not in texts
        parts += ["3.wav,ann 3,ann,0.1,0.6"]  # its owner's, who has some silence before
        texts = prepared(takes, "file,text,speaker,start,end", *parts)
    assert texts["ann/3.wav"] == "ann 3" and "cat 3" not in texts.values()


def test_a_name_that_no_other_file_has_may_be_in_anothers_folder(tmp_path: Path) -> None:
    """As of a guest who spoke into the telephone of a person."""
    files = [f"{who}/{who}_{i}.wav" for who in ("ann", "bob") for i in range(4)]
    takes = record(tmp_path / "takes", *files)
    other = {"ann": "bob", "bob": "ann"}
    rows = [
        f"{who}_{i}.wav,{who} {i},{who if i < 3 else other[who]}" for who in other for i in range(4)
    ]
    texts = prepared(takes, "file,text,speaker", *rows)
    assert len(texts) == 8 and texts["bob/bob_3.wav"] == "bob 3"


def test_a_name_of_several_files_is_that_of_the_speakers_own(tmp_path: Path) -> None:
    takes = record(tmp_path / "takes", "ann/1.wav", "cat/1.wav", seconds=3.0)
    assert prepared(takes, "file,text,speaker", "1.wav,one,ann") == {"ann/1.wav": "one"}
    rows = ["1.wav,0,1,one,ann", "1.wav,0,1,two,cat"]  # parts too
    texts = prepared(takes, "file,start,end,text,speaker", *rows)
    assert texts == {"ann/1.wav": "one", "cat/1.wav": "two"}
    with pytest.raises(DataError, match="may be any of 2 files"):
        prepared(takes, "file,text,speaker", "1.wav,one,dan")


def test_a_conversation_may_be_in_the_folder_of_one_of_its_people(tmp_path: Path) -> None:
    files = [f"{who}/{i}.wav" for who in ("ann", "bob") for i in (1, 2)]
    takes = record(tmp_path / "takes", *files, "ann/talk.wav")
    rows = [f"{i}.wav,0,0.5,{who} {i},{who}" for who in ("ann", "bob") for i in (1, 2)]
    rows += ["talk.wav,0,0.4,hi,ann", "talk.wav,0.5,0.9,hello,bob"]
    prepared(takes, "file,start,end,text,speaker", *rows)
    cuts = load_cuts(tmp_path / "out/train.jsonl.gz")
    assert {cut.supervisions[0].text for cut in cuts} >= {"hi", "hello"} and len(cuts) == 6


def test_folders_that_are_no_peoples_may_have_their_names(tmp_path: Path) -> None:
    """As where speakers and sessions both have numbers."""
    takes = record(tmp_path / "takes", "1/a.wav", "2/b.wav", "3/c.wav")
    rows = ["a.wav,one,2", "b.wav,two,3", "c.wav,three,1"]
    texts = prepared(takes, "file,text,speaker", *rows)
    assert texts == {"1/a.wav": "one", "2/b.wav": "two", "3/c.wav": "three"}


def test_people_whom_a_cell_names_together_stay_with_the_lines_of_each() -> None:
    named = ["ann", "ann; bob", "bob & ida", "cat", "dan/eve", "Eve, Dan", "lab/guy", "lab/han"]
    utterances = [Utterance(f"{i}", Path(f"{i}.wav"), "x", who) for i, who in enumerate(named * 3)]
    for share in (0.1, 0.2, 0.3):
        splits = divide(utterances, {"test": share, "dev": share})
        where: dict[str, set[str]] = {}
        for split, ones in splits.items():
            for one in ones:
                where.setdefault(one.speaker, set()).add(split)
        assert all(len(found) == 1 for found in where.values())
        assert where["ann"] == where["ann; bob"] == where["bob & ida"]
        assert where["dan/eve"] == where["Eve, Dan"]
        assert {split for found in where.values() for split in found} == {"train", "dev", "test"}


@pytest.mark.parametrize(
    ("named", "n_groups"),
    [
        ([f"+49170{i}" for i in range(20)] + ["ann", "bob"], 22),
        ([f"s{i}; unknown" for i in range(9)] + ["x"], 10),
        (["ann;", "bob;", "cat;", "ann;bob;", "x"], 3),
        (["Smith, Ann", "Smith, Ann; Jones, Bob", "Smith, Cat", "x"], 3),
        (["ann; bob", "bob; cat", "cat; dan", "eve"], 2),
    ],
)
def test_cells_that_name_a_person_in_common_are_one_group(named: list[str], n_groups: int) -> None:
    assert len(set(_groups(named).values())) == n_groups


@pytest.mark.parametrize(
    "named",
    [
        ["int", *(f"int; s{i}" for i in range(20))],
        ["int", *(f"int, s{i}" for i in range(20))],
        [f"{'ab'[i % 2]}; s{i}" for i in range(20)],
        [f"a; b; s{i}" for i in range(20)],
        ["int", *(f"int; s{i}" for i in range(20)), *(f"s{i}" for i in range(20))],
    ],
)
def test_those_who_ask_all_others_do_not_make_one_person_of_them(
    named: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    utterances = [Utterance(f"{i}", Path(f"{i}.wav"), "x", who) for i, who in enumerate(named * 5)]
    splits = divide(utterances, {"test": 0.1, "dev": 0.1})
    found = {split: {one.speaker for one in ones} for split, ones in splits.items()}
    people = {split: people_of(";".join(cells).replace(",", ";")) for split, cells in found.items()}
    assert people["train"] & (people["dev"] | people["test"]) <= {"int", "a", "b"}
    assert len(found["dev"]) > 1 and len(found["test"]) > 1
    assert "named beside others" in caplog.text and "fewer than" not in caplog.text


@pytest.mark.parametrize("spelled", [["ann; bob", "ann; cat"], ["ann;", "ann; unknown"]])
def test_a_person_of_many_cells_is_in_one_split_where_others_fill_the_rest(
    spelled: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    named = ["ann"] * 50 + [*spelled, "eve", "fay"] * 6
    utterances = [Utterance(f"{i}", Path(f"{i}.wav"), "x", who) for i, who in enumerate(named)]
    splits = divide(utterances, {"test": 0.1, "dev": 0.1})
    held = {one.speaker for one in (*splits["dev"], *splits["test"])}
    assert held == {"eve", "fay"} and not caplog.text


def test_without_dev_and_test_nobody_is_in_several_splits(caplog: pytest.LogCaptureFixture) -> None:
    utterances = [
        Utterance(f"{i}", Path(f"{i}.wav"), "x", f"int; s{i % 9}") for i in range(20)
    ]  # fmt: skip
    splits = divide(utterances, {"test": 0.0, "dev": 0.0})
    assert len(splits["train"]) == 20 and not caplog.text


def test_a_person_of_train_who_is_beside_another_in_test_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    takes = record(tmp_path / "takes", "1.wav", "2.wav", "3.wav")
    rows = ["1.wav,one,ann,train", "2.wav,two,eve,dev", "3.wav,three,Ann; bob,test"]
    with caplog.at_level("WARNING"):
        prepared(takes, "file,text,speaker,split", *rows)
    assert "speakers of train are in dev or test (1)" in caplog.text


def test_people_of_one_house_are_no_one_person() -> None:
    utterances = [
        Utterance(f"{i}", Path(f"{i}.wav"), "x", f"lab/{i % 5}") for i in range(20)
    ]  # fmt: skip
    splits = divide(utterances, {"test": 0.2, "dev": 0.2})
    assert [len(splits[name]) for name in ("train", "dev", "test")] == [12, 4, 4]
