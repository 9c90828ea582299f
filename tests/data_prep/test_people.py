"""Tests of whose a recording is: folders of people, and cells that name several."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from asr.data.manifest import load_cuts
from asr.data.people import in_both
from asr.errors import DataError
from data_prep.cuts import Utterance
from data_prep.owners import _is_talk, _Part
from data_prep.splits import _kept_together, divide
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
    rows = [row for row in rows if row != "3.wav,cat 3,cat"]
    texts = prepared(takes, "file,text,speaker", *rows, "3.wav,both,cat; dan")
    assert "both" not in texts.values()


@pytest.mark.parametrize("parts", [(0, 1, 2), (0.4,)])
def test_sentences_of_a_missing_recording_are_not_put_on_anothers(
    parts: tuple[float, ...], tmp_path: Path
) -> None:
    takes = record(tmp_path / "takes", *(f"ann/{i}.wav" for i in range(4)),
                   *(f"cat/{i}.wav" for i in range(3)), seconds=3.0)  # fmt: skip
    rows = [f"{i}.wav,0,3,ann {i},ann" for i in range(4)]
    rows += [f"{i}.wav,{s},{s + 1},cat {i} {s},cat" for i in range(4) for s in parts]
    prepared(takes, "file,start,end,text,speaker", *rows)
    said = [cut.supervisions[0].text for cut in load_cuts(tmp_path / "out/train.jsonl.gz")]
    assert len(said) == 4 + 3 * len(parts) and "ann 3" in said
    assert not any(text.startswith("cat 3") for text in said)


@pytest.mark.parametrize("both", ["ann; bob", "ann、bob", '"bob, ann"'])
def test_a_recording_of_several_people_may_be_in_the_folder_of_one(
    both: str, tmp_path: Path
) -> None:
    takes = record(tmp_path / "takes", "ann/1.wav", "cat/1.wav", "ann/2.wav", "cat/2.wav")
    rows = ["1.wav,one,cat", f"1.wav,both,{both}", "2.wav,two,cat", "2.wav,three,ann"]
    rows += ["9.wav,missing,bob"]
    texts = prepared(takes, "file,text,speaker", *rows)
    assert texts == {"cat/1.wav": "one", "ann/1.wav": "both", "cat/2.wav": "two",
                     "ann/2.wav": "three"}  # fmt: skip


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


@pytest.mark.parametrize("who", [("ann", "ann+bob"), ("+491701", "+491702")])
def test_a_folder_of_the_whole_name_is_that_speakers(who: tuple[str, str], tmp_path: Path) -> None:
    takes = record(tmp_path / "takes", *(f"{one}/1.wav" for one in who))
    texts = prepared(takes, "file,text,speaker", *(f"1.wav,said by {one},{one}" for one in who))
    assert texts == {f"{one}/1.wav": f"said by {one}" for one in who}


def test_files_of_the_same_name_of_many_people_are_soon_known_for_no_talk() -> None:
    parts = [_Part(0.0, 2.0, frozenset((f"s{i}",))) for i in range(20_000)]
    assert not _is_talk(parts)


def test_a_conversation_may_be_in_the_folder_of_one_of_its_people(tmp_path: Path) -> None:
    files = [f"{who}/{i}.wav" for who in ("ann", "bob") for i in (1, 2)]
    takes = record(tmp_path / "takes", *files, "ann/talk.wav")
    rows = [f"{i}.wav,0,0.5,{who} {i},{who}" for who in ("ann", "bob") for i in (1, 2)]
    rows += ["talk.wav,0,0.4,hi,ann", "talk.wav,0.5,0.8,hello,bob"]
    rows += ["talk.wav,0.8,1,bye,ann", "talk.wav,0.81,1,and bye,bob"]  # at once
    prepared(takes, "file,start,end,text,speaker", *rows)
    said = {cut.supervisions[0].text for cut in load_cuts(tmp_path / "out/train.jsonl.gz")}
    assert said >= {"hi", "hello", "bye", "and bye"} and len(said) == 8


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
    assert len(set(_kept_together(Counter(named), 1, 0.0).values())) == n_groups


_INTERVIEWS = [
    (["int", *(f"int; s{i}" for i in range(20))], "int"),
    (["int", *(f"int, s{i}" for i in range(20))], "int"),
    ([f"int；s{i}" for i in range(20)], "int"),
    (["int", "int;", *(f"int; s{i}" for i in range(20)), *(f"s{i}" for i in range(20))], "int"),
    ([f"{'ab'[i % 2]}; s{i}" for i in range(20)], "a"),
    ([f"a; b; s{i}" for i in range(20)], "a, b"),
    ([f"Smith, Ann; Poe, C{i}" for i in range(20)], "smith, ann"),
    ([f"int; s{i}; n/a" for i in range(20)], "int"),
    ([f"int; s{i}" for i in range(60)] + ["x", "y"], "int"),  # x and y are too little for dev, test
]


@pytest.mark.parametrize(("named", "asking"), _INTERVIEWS)
def test_those_who_ask_all_others_do_not_make_one_person_of_them(
    named: list[str], asking: str, caplog: pytest.LogCaptureFixture
) -> None:
    utterances = [Utterance(f"{i}", Path(f"{i}.wav"), "x", who) for i, who in enumerate(named * 5)]
    splits = divide(utterances, {"test": 0.1, "dev": 0.1})
    found = {split: {one.speaker for one in ones} for split, ones in splits.items()}
    assert in_both(found["train"], found["dev"] | found["test"]) <= {*asking.split(", "), asking}
    assert not {"int", "int;"} & (found["dev"] | found["test"])  # of train in any case
    assert len(found["dev"]) > 1 and len(found["test"]) > 1
    assert (
        f" may be in several splits: {asking}\n" in caplog.text and "fewer than" not in caplog.text
    )


def test_pairs_of_three_people_are_no_two_people(caplog: pytest.LogCaptureFixture) -> None:
    named = ["a; b", "a; c", "b; c"] * 10
    utterances = [Utterance(f"{i}", Path(f"{i}.wav"), "x", who) for i, who in enumerate(named)]
    assert divide(utterances, {"dev": 0.1})["dev"]
    assert "their CER says nothing about other people" in caplog.text


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
    rows = ["1.wav,one,ann,train", "2.wav,two,eve,dev", "3.wav,three,Ann/bob,test"]
    with caplog.at_level("WARNING"):
        prepared(takes, "file,text,speaker,split", *rows)
    assert "speakers of train are in dev or test (1)" in caplog.text


def test_people_are_counted_one_by_one_and_unknown_ones_not(tmp_path: Path) -> None:
    takes = record(tmp_path / "takes", *(f"{i}.wav" for i in range(4)))
    rows = ["0.wav,a,ann", "1.wav,b,bob", "2.wav,c,ann / bob", "3.wav,d,unknown; unknown"]
    (tmp_path / "t.csv").write_text("\n".join(("file,text,speaker", *rows)) + "\n", "utf-8")
    report = prepare(takes, tmp_path / "t.csv", tmp_path / "out", dev=0.0, test=0.0)
    assert report.splits["train"].speakers == 2
    cuts = load_cuts(tmp_path / "out/train.jsonl.gz")
    assert sum(not cut.supervisions[0].speaker for cut in cuts) == 1


def test_people_of_one_house_are_no_one_person() -> None:
    utterances = [
        Utterance(f"{i}", Path(f"{i}.wav"), "x", f"lab/{i % 5}") for i in range(20)
    ]  # fmt: skip
    splits = divide(utterances, {"test": 0.2, "dev": 0.2})
    assert [len(splits[name]) for name in ("train", "dev", "test")] == [12, 4, 4]
