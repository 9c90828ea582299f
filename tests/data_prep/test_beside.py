"""Texts that have the names of their recordings, in the same folders or in others."""

import gzip
import json
import os
import time
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile as sf
from hypothesis import given
from hypothesis import strategies as st

from asr.cli.sources import FromRecordings
from asr.errors import DataError
from data_prep.parts import _has_times
from data_prep.recordings import Recordings
from data_prep.subtitles import Part, read_labels, read_subtitles
from data_prep.table import prepare
from data_prep.transcripts import read_transcripts
from tests.helpers import run_cli

PEOPLE = ("ann", "bob", "cat")


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


def record(path: Path, seconds: float = 0.5) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(str(path))).standard_normal(round(16000 * seconds))
    sf.write(path, 0.1 * noise, 16000)
    return path


@pytest.fixture
def takes(tmp_path: Path) -> Path:
    """Return a folder of four recordings of each of three people, without texts."""
    for who in PEOPLE:
        for i in range(4):
            record(tmp_path / f"takes/{who}/{i}.wav")
    return tmp_path / "takes"


def said(out: Path) -> dict[str, tuple[str, str]]:
    """Return the text and the speaker of each utterance."""
    files = [out / f"{name}.jsonl.gz" for name in ("train", "dev", "test")]
    lines = [gzip.decompress(file.read_bytes()) for file in files if file.is_file()]
    cuts = [json.loads(line) for line in b"".join(lines).splitlines()]
    sups = {cut["id"]: cut["supervisions"][0] for cut in cuts}
    return {id: (one["text"], one.get("speaker", "")) for id, one in sups.items()}


def left_out(out: Path) -> list[list[str]]:
    rows = (out / "left_out.tsv").read_text("utf-8").splitlines()[1:]
    return [row.split("\t") for row in rows]


@pytest.mark.parametrize("folder", ["takes", "texts"])
@pytest.mark.parametrize("name", ["{}.txt", "{}.lab", "{}.wav.txt", "{}.TXT"])
def test_each_recording_has_its_text_beside_it_or_in_a_like_folder(
    folder: str, name: str, takes: Path, tmp_path: Path
) -> None:
    for who in PEOPLE:
        for i in range(4):
            write(tmp_path / folder / who / name.format(i), f"\ufeff{who} says\r\n {i}\r\n\r\n")
    report = prepare(takes, tmp_path / folder, tmp_path / "out", dev=0.3, test=0.3)
    assert said(tmp_path / "out") == {
        f"{who}-{i}": (f"{who} says {i}", who) for who in PEOPLE for i in range(4)
    }
    assert [split.speakers for split in report.splits.values()] == [1, 1, 1]


def test_librispeech(takes: Path, tmp_path: Path) -> None:
    """A file of a folder names its recordings; the set of a speaker's folder is the split."""
    rows = "".join(f"{i} TEXT {i}\n" for i in range(4)) + "\n9 NO SUCH\n5\n"
    for who, split in zip(PEOPLE, ("train-clean-100", "dev-clean", "test-clean"), strict=True):
        for i in range(4):
            record(tmp_path / f"libri/{split}/{who}/{i}.flac")
        write(tmp_path / f"libri/{split}/{who}/{who}.trans.txt", rows)
    for name in ("README", "SPEAKERS", "BOOKS"):
        write(tmp_path / f"libri/{name}.TXT", "14 | F | train-clean-360 | 25.03")
    report = prepare(tmp_path / "libri", tmp_path / "libri", tmp_path / "out")
    assert {name: one.utterances for name, one in report.splits.items()} == {
        "train": 4, "dev": 4, "test": 4,
    }  # fmt: skip
    assert said(tmp_path / "out")["train-clean-100-ann-2"] == ("TEXT 2", "ann")
    reasons = [row[-1] for row in left_out(tmp_path / "out")]
    assert reasons == ["missing"] * 9


def test_parts_of_long_recordings(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        record(tmp_path / f"takes/{name}.wav", 10)
    write(
        tmp_path / "takes/a.srt",
        "1\n00:00:01,000 --> 00:00:02,500\n<i>Hello</i>\nthere\n\n2\n0:00:03,000 --> 0:00:04,000\n"
        "{\\an8}you &amp; I\n\n3\n00:00:05,000 --> 00:00:06,000\n\n4\n1 s --> 2 s\nlost\n",
    )
    write(
        tmp_path / "takes/b.vtt",
        "WEBVTT\n\nNOTE not said\n\nfirst\n00:01.000 --> 00:02.000 align:start\n<v Ann>one\n",
    )
    write(tmp_path / "takes/c.txt", "0.500000\t1.5\ttwo\n\\\t100.0\t200.0\n2,0\t3,25\tthree\n")
    write(tmp_path / "takes/d.srt", "00:00:01 --> 00:00:2\none\n1 2\n2\n00:00:02,5 --> 0:03\ntwo\n")
    prepare(tmp_path / "takes", tmp_path / "takes", tmp_path / "out")
    found = {id: text for id, (text, _) in said(tmp_path / "out").items()}
    assert found == {
        "a-1.00": "Hello there", "a-3.00": "you & I", "b-1.00": "one", "c-0.50": "two",
        "c-2.00": "three", "d-1.00": "one 1 2", "d-2.50": "two",
    }  # fmt: skip
    assert [(row[0].split("/")[-1], row[-1]) for row in left_out(tmp_path / "out")] == [
        ("a.srt, line 11", "no_text"), ("a.srt, line 14", "bad_times"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"a.txt": "whole", "a.vtt": "WEBVTT\n\n00:00.000 --> 00:00.500\npart\n"}, "part"),
        ({"a.txt": "whole", "a.wav.srt": "1\n00:00:00,000 --> 00:00:00,5\npart\n"}, "part"),
        ({"a.txt": "whole", "a.lab": "0.0\t0.5\tpart"}, "part"),
        ({"a.txt": "whole", "a.srt": ""}, "whole"),
        ({"a.txt": "whole", "a.srt": "1\n00:00:00,000 --> 00:00:00,5\n\n"}, "whole"),
        ({"a.txt": "whole", "a.wav.txt": " \n"}, "whole"),
        ({"a.txt": "", "a.lab": "whole"}, "whole"),
        ({"a.txt": "whole", "a.srt": "1\n0 s --> 1 s\nlost\n"}, "whole"),
    ],
)
def test_one_text_of_a_recording_is_used(
    files: dict[str, str], text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Times are preferred, where there is text with them, and then any text."""
    record(tmp_path / "a.wav")
    for name, content in files.items():
        write(tmp_path / name, content)
    found = read_transcripts(tmp_path)
    assert [(line.text, line.is_part) for line in found.lines] == [(text, text == "part")]
    assert not found.faults and "1 texts are not used" in caplog.text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "0.500000 1.000000 one\n1.500000 2.000000 two\n"),
        ("a.txt", "0.5\t1.0\tone\n1.5\t2.0\ttwo\n3.5\t4.0\tthree\nand more\n"),
        ("a.lab", "0 500000 sil\n500000 1200000 h\n"),
        ("a.txt", "0 63488 She had your dark suit\n"),
        ("a.txt", "[00:00.000 --> 00:02.000]  Hello\n"),
        ("a.txt", "1\n00:00:01,000 --> 00:00:02,000\nHello\nthere\n"),
        ("a.txt", "0:05\nhello\n0:09\nyou\n"),
        ("a.txt", "00:00:01.000\t00:00:02.000\thello\n"),
    ],
)
def test_times_are_no_text(name: str, content: str, tmp_path: Path) -> None:
    record(tmp_path / "a.wav")
    write(tmp_path / name, content)
    with pytest.raises(DataError, match=r"a\.(txt|lab): it has times, but not as the labels of"):
        read_transcripts(tmp_path)


@pytest.mark.parametrize("text", ["5 3 1", "10:30 is the time", "10:30 is the time\nof 2"])
@pytest.mark.parametrize("name", ["a.txt", "a.lab"])
def test_numbers_are_text(name: str, text: str, tmp_path: Path) -> None:
    record(tmp_path / "a.wav")
    write(tmp_path / name, f"{text}\n")
    assert [line.text for line in read_transcripts(tmp_path).lines] == [" ".join(text.split())]


def test_numbers_are_text_where_cues_have_none() -> None:
    times = "00:0{}.000 --> 00:0{}.500\n"
    text = times.format(1, 1) + "2\n" + times.format(2, 2) + "6\n" + times.format(3, 3) + "x\n"
    assert [part.text for part in read_subtitles(text, False)] == ["2", "6", "x"]
    assert [part.text for part in read_subtitles(text, True)] == ["", "6", "x"]
    other = "00:01,0 -> 00:02,0\none\n2\n00:03,0 –> 00:04,0\ntwo\n3\n00:05 => 6\nthree\n"
    assert [part.text for part in read_subtitles(other, True)] == [
        "one", "two 3 00:05 => 6 three",
    ]  # fmt: skip


def test_an_empty_line_ends_no_cue_that_has_a_number() -> None:
    times = "00:0{}.000 --> 00:0{}.500\n"
    cues = f"1\n{times.format(1, 1)}one\n\nmore\n\n2\n{times.format(2, 2)}\n\n3\n"
    cues += f"{times.format(3, 3)}\nthree\n\n4\n\n{times.format(4, 4)}\nfour\n"
    assert [part.text for part in read_subtitles(cues, True)] == ["one more", "", "three", "four"]
    joined = f"5\n\n{times.format(1, 1)}one\n\n6.\n\n{times.format(2, 2)}two\n\n\ufeff1\n"
    joined += f"{times.format(3, 3)}3\n\n{times.format(4, 4)}four\n"
    assert [part.text for part in read_subtitles(joined, True)] == ["one", "two", "3", "four"]
    texts = [part.text for part in read_subtitles(f"WEBVTT\n\n{cues}", False)]
    assert texts == ["one", "", "", ""]


def test_what_is_no_text_of_a_recording_is_left_out_and_listed(
    takes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(4):
        write(takes / f"ann/{i}.txt", f"text {i}")
    write(takes / "ann/README.txt", "how it was made")
    write(takes / "ann/._0.txt", "macOS")
    write(takes / "ann/.hidden.txt", "x")
    (takes / "bob/0.txt").write_bytes("ein schöner Tag für ".encode("cp1252") + b"\xff")
    write(takes / "bob/1.txt", " \n")
    result = run_cli("prepare", "table", str(takes), str(takes), str(tmp_path / "out"))
    assert result.returncode == 0, result.stderr
    assert set(said(tmp_path / "out")) == {f"ann-{i}" for i in range(4)}
    assert {tuple(row[:1] + row[-1:]) for row in left_out(tmp_path / "out")} == {
        (f"{takes}/ann/README.txt", "missing"),
        (f"{takes}/bob/0.txt", "bad_text"),
        (f"{takes}/bob/1.txt", "no_text"),
    }
    shown = " ".join(result.stderr.split())
    assert f"{takes}/ann/README.txt: ann/README is not in" in shown
    assert "8 of 12 recordings" in shown


@pytest.mark.parametrize(
    ("encoding", "texts"),
    [
        ("gb18030", ["今天天气很好", "明天见"]),
        ("big5hkscs", ["今天天氣很好", "請問車站在哪裡", "我想喝一杯熱茶", "謝謝您的幫忙", "明天見",
                       "這個多少錢", "請說慢一點", "我聽不懂", "圖書館幾點開門", "時間過得真快",
                       "歡迎光臨本店", "電話號碼是多少", "祝您旅途愉快", "請關上窗戶"]),
        ("cp949", ["불을 켜 주세요", "불을 꺼 주세요", "음악을 틀어 주세요", "볼륨을 높여 주세요",
                   "오늘 날씨 어때요", "내일 아침 일곱 시에 깨워 주세요", "창문을 닫아 주세요",
                   "문을 열어 주세요", "고맙습니다", "안녕하세요", "지금 몇 시예요"]),
    ],
)  # fmt: skip
def test_texts_are_in_one_encoding_which_all_of_them_tell(
    encoding: str, texts: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for i, text in enumerate(texts):
        record(tmp_path / f"takes/{i}.wav")
        write(tmp_path / f"takes/{i}.txt", text, encoding)
    record(tmp_path / "takes/x.wav")
    write(tmp_path / "takes/x.txt", "café")
    prepare(tmp_path / "takes", tmp_path / "takes", tmp_path / "out")
    assert sorted(text for text, _ in said(tmp_path / "out").values()) == sorted([*texts, "café"])
    shown = f"is read as {encoding}: save it as UTF-8 if {tmp_path}/takes/0.txt does not say: "
    assert shown + texts[0] in caplog.text


def test_a_line_that_is_left_out_is_not_shown_as_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("+", "0"):
        record(tmp_path / f"takes/{name}.wav", 3)
    write(tmp_path / "takes/+.txt", "café")
    cues = "1\n00:00:00,5 --> 00:00:00,5\n今天\n\n2\n00:00:01,0 --> 00:00:02,0\n天气很好\n"
    write(tmp_path / "takes/0.srt", cues, "gbk")
    prepare(tmp_path / "takes", tmp_path / "takes", tmp_path / "out", dev=0, test=0)
    assert said(tmp_path / "out") == {"0-1.00": ("天气很好", ""), "+": ("café", "")}
    assert f"{tmp_path}/takes/0.srt, line 6 does not say: 天气很好" in caplog.text
    assert [row[-1] for row in left_out(tmp_path / "out")] == ["bad_times"]


def test_damaged_utf_8_is_not_read_as_the_others(tmp_path: Path) -> None:
    whole = "我们今天去公园散步".encode()
    texts = {"0": "今天天气很好".encode("gbk"), "1": "明天见".encode("gbk"), "2": whole[:-1]}
    for name, data in texts.items():
        record(tmp_path / f"{name}.wav")
        (tmp_path / f"{name}.txt").write_bytes(data)
    found = read_transcripts(tmp_path)
    assert [line.text for line in found.lines] == ["今天天气很好", "明天见"]
    assert [fault.reason for fault in found.faults.values()] == ["bad_text"]


def test_a_guessed_encoding_is_shown_before_one_with_a_mark(tmp_path: Path) -> None:
    for name, encoding in (("0", "utf-16"), ("1", "gbk"), ("2", "utf-16")):
        record(tmp_path / f"{name}.wav")
        write(tmp_path / f"{name}.txt", "今天天气很好", encoding)
    found = read_transcripts(tmp_path)
    assert (found.encoding, found.foreign) == ("gb18030", 2)


def test_zero_bytes_of_one_file_change_no_other(tmp_path: Path) -> None:
    texts = {"0": "今天天气很好".encode("gbk"), "1": "明天见\0\0".encode("gbk"),
             "2": "go on 后天".encode("utf-16-le")}  # fmt: skip
    for name, data in texts.items():
        record(tmp_path / f"{name}.wav")
        (tmp_path / f"{name}.txt").write_bytes(data)
    found = read_transcripts(tmp_path)
    assert {"今天天气很好", "go on 后天"} <= {line.text for line in found.lines}


def test_a_hidden_folder_may_be_given(tmp_path: Path) -> None:
    write(tmp_path / ".takes/metadata.csv", "file,text\n0.wav,x\n")
    assert len(read_transcripts(tmp_path / ".takes").lines) == 1


def test_folders_that_are_no_splits_and_no_people_tell_nothing(tmp_path: Path) -> None:
    layouts = {
        "mixed": ["0", "ann/1", "bob/2"],
        "one": ["ann/0", "ann/1"],
        "test": ["test/0", "test/1"],
        "no train": ["test/0", "dev/1"],
    }
    for name, files in layouts.items():
        for file in files:
            record(tmp_path / name / f"{file}.wav")
            write(tmp_path / name / f"{file}.txt", "x")
        found = read_transcripts(tmp_path / name).lines
        assert [(line.speaker, line.split) for line in found] == [(None, None)] * len(files), name


def texts_at(root: Path, *names: str) -> None:
    """Write recordings and texts of their own names."""
    for name in names:
        record(root / f"{name}.wav")
        write(root / f"{name}.txt", name)


SETS = ("train/ann/1", "dev/bob/2", "test/cat/3")


@pytest.mark.parametrize("above", ["", "corpus/v1/"])
def test_what_is_in_no_folder_of_a_split_is_left_out(above: str, tmp_path: Path) -> None:
    """As of a corpus whose other recordings would train on people of test."""
    names = [above + name for name in (*SETS, "extra/eve/4", "5")]
    texts_at(tmp_path / "takes", *names)
    report = prepare(tmp_path / "takes", tmp_path / "takes", tmp_path / "out")
    sizes = {name: one.utterances for name, one in report.splits.items()}
    assert sizes == {"train": 1, "dev": 1, "test": 1}
    assert [speaker for _, speaker in said(tmp_path / "out").values()] == ["ann", "bob", "cat"]
    assert [row[-1] for row in left_out(tmp_path / "out")] == ["no_split", "unknown_split"]


def test_names_of_splits_that_are_not_followed_are_no_people(tmp_path: Path) -> None:
    texts_at(tmp_path, "train/1", "extra/2")
    assert {(one.split, one.speaker) for one in read_transcripts(tmp_path).lines} == {(None, None)}


def test_the_folder_of_a_recording_tells_and_not_that_of_its_text(tmp_path: Path) -> None:
    for name in SETS:
        record(tmp_path / f"takes/{name}.wav")
        write(tmp_path / f"texts/{name[-1]}.txt", name)
    report = prepare(tmp_path / "takes", tmp_path / "texts", tmp_path / "out")
    assert [one.utterances for one in report.splits.values()] == [1, 1, 1]


def test_the_text_beside_a_recording_is_that_of_no_other(tmp_path: Path) -> None:
    texts_at(tmp_path / "takes", "ann/1", "bob/2", "bob/3")
    write(tmp_path / "takes/1.txt", "of a recording that is not there")
    write(tmp_path / "takes/0.txt", "of no other")
    record(tmp_path / "takes/cat/0.wav")
    found = read_transcripts(tmp_path / "takes")
    texts = {(one.audio, one.text) for one in found.lines}
    assert texts == {("ann/1.wav", "ann/1"), ("bob/2.wav", "bob/2"), ("bob/3.wav", "bob/3"),
                     ("cat/0.wav", "of no other")}  # fmt: skip
    (fault,) = found.faults.values()
    assert fault.reason == "missing" and fault.what.endswith("ann/1.txt")
    for name in ("a.txt", "1.wav"):
        (tmp_path / "takes" / name).write_bytes((tmp_path / "takes/ann/1.wav").read_bytes())
    below = read_transcripts(
        tmp_path / "takes/ann", recordings=Recordings(tmp_path / "takes", tmp_path / "out")
    )
    assert [line.audio for line in below.lines] == ["ann/1.wav"]


def test_a_space_in_a_name_is_kept(tmp_path: Path) -> None:
    texts_at(tmp_path, "a ")
    record(tmp_path / "a.wav")
    assert [(one.audio, one.text) for one in read_transcripts(tmp_path).lines] == [("a .wav", "a")]


def test_an_empty_text_or_one_that_is_not_understood_hides_no_other(tmp_path: Path) -> None:
    for name in ("1", "2", "wav/3", "4"):
        record(tmp_path / f"{name}.wav")
    for name, text in {"1.txt": "", "2.srt": "", "wav/3.lab": "0 500000 h", "3.txt": "C"}.items():
        write(tmp_path / name, text)
    write(tmp_path / "x.trans.txt", "1 A\n2 B\n4 D\n/etc/passwd E\n../1 F\n4\n")
    found = read_transcripts(tmp_path)
    assert sorted((one.audio, one.text) for one in found.lines) == [
        ("1.wav", "A"), ("2.wav", "B"), ("4.wav", "D"), ("wav/3.wav", "C"),
    ]  # fmt: skip
    assert sorted(fault.reason for fault in found.faults.values()) == [
        "bad_times", "missing", "missing", "no_text", "no_text", "no_text",
    ]  # fmt: skip


def test_lines_of_a_file_have_the_folders_of_their_recordings(tmp_path: Path) -> None:
    for name in SETS:
        record(tmp_path / f"takes/{name}.wav")
    rows = "".join(f"{name} TEXT\n" for name in SETS)
    write(tmp_path / "takes/all.trans.txt", rows + "train/eve/9 NO SUCH\n")
    lines = read_transcripts(tmp_path / "takes").lines
    assert [(one.split, one.speaker) for one in lines] == [
        ("dev", "bob"), ("test", "cat"), ("train", "ann"),
    ]  # fmt: skip
    texts_at(tmp_path / "takes", *SETS)
    lines = read_transcripts(tmp_path / "takes").lines
    assert [(one.text, one.speaker) for one in lines] == [
        ("dev/bob/2", "bob"), ("test/cat/3", "cat"), ("train/ann/1", "ann"),
    ]  # fmt: skip
    part = Recordings(tmp_path / "takes", tmp_path / "out")
    (line,) = read_transcripts(tmp_path / "takes/train", recordings=part).lines
    assert (line.split, line.speaker, line.audio) == (None, None, "train/ann/1.wav")


def test_the_place_of_the_recordings_changes_no_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for who in PEOPLE:
        record(tmp_path / f"c/wav/{who}/1.wav")
        write(tmp_path / f"c/{who}/1.txt", who)
    part = Recordings(tmp_path / "c/wav", tmp_path / "out")
    lines = read_transcripts(tmp_path / "c", recordings=part).lines
    assert [line.speaker for line in lines] == list(PEOPLE)
    monkeypatch.chdir(tmp_path)
    texts_at(Path("d"), "train/ann/1", "train/bob/2")
    for texts in (Path("d/train"), tmp_path / "d/train"):
        found = read_transcripts(texts, recordings=Recordings(Path("d"), tmp_path / "out")).lines
        assert [(one.split, one.speaker) for one in found] == [(None, "ann"), (None, "bob")]


def test_a_text_that_is_not_used_says_nothing_of_splits(tmp_path: Path) -> None:
    texts_at(tmp_path, *(f"data/{name}" for name in SETS))
    record(tmp_path / "t.wav")
    write(tmp_path / "t.txt", "")
    found = read_transcripts(tmp_path)
    assert {(one.split, one.speaker) for one in found.lines} == {
        ("train", "ann"), ("dev", "bob"), ("test", "cat"),
    }  # fmt: skip
    assert [fault.reason for fault in found.faults.values()] == ["no_text"]


def test_days_of_one_person_are_no_people(tmp_path: Path) -> None:
    texts_at(tmp_path, "ann/day1/1", "ann/day2/2")
    assert [line.speaker for line in read_transcripts(tmp_path).lines] == [None, None]


@pytest.mark.parametrize("end", ["\r\n", "\r\r\n", "\r"])
def test_lines_may_end_in_any_way(end: str, tmp_path: Path) -> None:
    record(tmp_path / "a.wav", 9)
    cues = "WEBVTT\n\nNOTE no speech\n\nx\n00:01.000 --> 00:02.000\none\n\nNOTE none\n\ny\n"
    cues += "00:03.000 --> 00:04.000\ntwo\n"
    for name in ("a.vtt", "a.srt"):  # whose kind its first line tells
        (tmp_path / name).write_bytes(cues.replace("\n", end).encode())
        assert [line.text for line in read_transcripts(tmp_path).lines] == ["one", "two"]
        (tmp_path / name).unlink()


def test_a_text_of_its_own_comes_before_that_of_the_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        record(tmp_path / f"{name}.wav")
    write(tmp_path / "x.trans.txt", "a OLD\rb TWO\r")
    write(tmp_path / "a.txt", "corrected")
    found = read_transcripts(tmp_path)
    assert [line.text for line in found.lines] == ["corrected", "TWO"] and not found.faults
    assert "1 texts are not used" in caplog.text


def test_texts_of_no_recording_have_no_say(takes: Path) -> None:
    for who in PEOPLE:
        write(takes / who / "0.txt", "x")
    for name in ("README.txt", ".cache/a.txt", "notes/b.txt"):
        write(takes / name, "x")
    found = read_transcripts(takes)
    assert [line.speaker for line in found.lines] == list(PEOPLE)
    assert {fault.reason for fault in found.faults.values()} == {"missing"}
    assert len(found.faults) == 2


def test_other_files_do_not_change_what_asr_new_was_given(takes: Path, tmp_path: Path) -> None:
    for who in PEOPLE:
        write(takes / who / "1.txt", "x")
    source = FromRecordings(takes, takes, {}, None, tmp_path / "data")
    before = source.sources()
    write(takes / "README.txt", "x")
    assert source.sources() == before
    write(takes / "ann/1.txt", "y")
    assert source.sources() != before


def test_tables_of_several_folders_are_one(
    takes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of Hugging Face's audiofolder, whose names are relative to their table."""
    for who, split in zip(PEOPLE, ("train", "validation", "test"), strict=True):
        rows = "".join(f"{i}.wav,{who} {i},né\n" for i in range(4)) + "9.wav,none,\n,none,\n"
        (tmp_path / "hf").mkdir(exist_ok=True)
        (takes / who).rename(tmp_path / "hf" / split)
        write(tmp_path / f"hf/{split}/metadata.csv", f"file_name,text,note\n{rows}")
        write(tmp_path / f"hf/{split}/metadata.jsonl", '{"file_name": "0.wav", "text": "other"}\n')
        write(tmp_path / f"hf/{split}/README.txt", "x")
    write(tmp_path / "hf/.cache/metadata.csv", "file_name,text\n0.wav,x\n")
    report = prepare(tmp_path / "hf", tmp_path / "hf", tmp_path / "out")
    assert {name: one.utterances for name, one in report.splits.items()} == {
        "train": 4, "dev": 4, "test": 4,
    }  # fmt: skip
    assert said(tmp_path / "out")["validation-3"] == ("bob 3", "")
    places = [row[0] for row in left_out(tmp_path / "out")]
    assert sorted(places) == sorted(
        f"{tmp_path}/hf/{split}/metadata.csv, line {n}"
        for split in ("train", "validation", "test")
        for n in (6, 7)
    )
    found = read_transcripts(tmp_path / "hf")
    assert found.columns == {"audio": "file_name", "text": "text"} and found.unused == ["note"]


def test_tables_of_several_folders_tell_more_than_their_folders(
    takes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their own columns count, names may be those of the whole folder, encodings are each one's."""
    write(takes / "ann/metadata.csv", "file,text,split\n0.wav,é,test\nann/1.wav,b,\n")
    write(takes / "bob/metadata.csv", "file,text,speaker\n0.wav,今天天气很好,zoe\n", "gbk")
    found = read_transcripts(takes)
    assert [(one.audio, one.text, one.speaker, one.split) for one in found.lines] == [
        ("ann/0.wav", "é", "ann", "test"), ("ann/1.wav", "b", "ann", None),
        ("bob/0.wav", "今天天气很好", "zoe", None),
    ]  # fmt: skip
    assert found.short_place(found.foreign) == f"{takes}/bob/metadata.csv, line 2"
    (takes / "cat/3.wav").rename(takes / "cat/7.wav")
    write(takes / "ann/metadata.csv", "file,text\n7.wav,wrong\n0.wav,a\n")
    prepare(takes, takes, tmp_path / "alone", dev=0, test=0)
    assert set(said(tmp_path / "alone")) == {"ann-0", "bob-0"}, "7.wav is of another folder"
    write(tmp_path / "tables/x/metadata.csv", "file,text\nann/2.wav,b\n8.wav,c\n")
    prepare(takes, tmp_path / "tables", tmp_path / "out", dev=0, test=0)
    assert said(tmp_path / "out") == {"ann-2": ("b", "")}


def test_splits_and_people_of_tables_come_before_those_of_folders(
    takes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for who, split in zip(PEOPLE, ("train", "dev", "test"), strict=True):
        (takes / who).rename(takes / split)
        rows = f"0.wav,x,clean,{who}\n1.wav,y,noisy,unknown\n"
        write(takes / split / "metadata.csv", f"file_name,text,subset,speaker\n{rows}")
    found = read_transcripts(takes).lines
    assert [line.split for line in found] == ["dev"] * 2 + ["test"] * 2 + ["train"] * 2
    assert [line.speaker for line in found] == ["bob", None, "cat", None, "ann", None]
    for who, split in zip(PEOPLE, ("train", "dev", "test"), strict=True):
        (takes / split).rename(takes / who)
        write(takes / who / "metadata.csv", "file_name,text,speaker\n0.wav,x,zoe\n1.wav,y,\n")
    assert [line.speaker for line in read_transcripts(takes).lines] == ["zoe", None] * 3
    assert "taken for" not in caplog.text
    write(takes / "ann/metadata.csv", "file,text,split\n0.wav,x,train\n1.wav,y,holdout\n")
    assert [line.split for line in read_transcripts(takes).lines[:2]] == ["train", "holdout"]
    for who in PEOPLE:
        write(takes / who / "metadata.csv", "file_name,text,note\n0.wav,x,n\n")
    prepare(takes, takes, tmp_path / "out", dev=0.3, test=0.3)
    assert "are taken for those of speakers" in caplog.text
    assert "no column is known to hold the speaker" not in caplog.text


def test_texts_beside_tables_of_other_folders_are_listed(takes: Path) -> None:
    write(takes / "ann/metadata.csv", "file,text\n0.wav,x\n")
    for name in ("ann/1.txt", "bob/1.txt", "bob/README.txt"):
        write(takes / name, "y")
    found = read_transcripts(takes)
    assert [line.audio for line in found.lines] == ["ann/0.wav"]
    faults = {found.place(number): fault.reason for number, fault in found.faults.items()}
    assert faults == {str(takes / "bob/1.txt"): "no_table"}
    write(takes / "cat/cat.trans.txt", "0 X")
    faults = read_transcripts(takes).faults
    assert [fault.reason for fault in faults.values()] == ["no_table"] * 2
    write(takes / "ann/metadata.csv", "file,text,speaker\n0.wav,x,\n../bob/1.wav,y,\n")
    write(takes / "cat/metadata.csv", "file,text,speaker\n0.wav,x,\n")
    found = read_transcripts(takes)
    assert not found.faults and [line.speaker for line in found.lines] == ["ann", "ann", "cat"]


def test_mistakes_are_sentences(takes: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nor a text such as a\.txt for a\.wav: give the file"):
        read_transcripts(takes)
    write(takes / "takes.csv", "file,text\n")
    with pytest.raises(DataError, match=r"with the transcripts, such as .*takes/takes\.csv"):
        read_transcripts(takes)
    write(takes / "README.txt", "x")
    first = r"recording \(README\.txt: README is not in .*: the text of a\.wav is"
    with pytest.raises(DataError, match=rf"{first} .* give a table, such as .*/takes\.csv"):
        read_transcripts(takes)
    write(tmp_path / "texts/z.txt", "x")
    with pytest.raises(DataError, match=r"has a text for each recording, which has no columns"):
        read_transcripts(tmp_path / "texts", {"text": "said"})
    record(tmp_path / "two/a.wav")
    (tmp_path / "two/a.wav").with_suffix(".flac").write_bytes(b"x")
    write(tmp_path / "two/a.txt", "x")
    with pytest.raises(DataError, match=r"\(a\.txt: a may be any of 2 files in"):
        read_transcripts(tmp_path / "two")
    texts_at(tmp_path / "sets", *SETS)
    write(tmp_path / "sets/train/ann/1.txt", "")
    texts_at(tmp_path / "sets", "train/zoe/5", "6")
    write(tmp_path / "sets/train/zoe/5.txt", "")
    with pytest.raises(DataError, match=r"6.txt: it is in no folder of a split, and no text of tr"):
        prepare(tmp_path / "sets", tmp_path / "sets", tmp_path / "out")
    (tmp_path / "zip").mkdir()
    for suffix in (".wav", ".txt"):
        name = os.fsdecode("你好".encode("gbk")) + suffix
        (tmp_path / "zip" / name).write_bytes(b"hello")
    with pytest.raises(DataError, match=r"its name is not in UTF-8: rename it"):
        read_transcripts(tmp_path / "zip")
    with pytest.raises(DataError, match=r"\(z\.txt: z is not in .*/takes\): the text of a\.wav is"):
        prepare(takes, tmp_path / "texts", tmp_path / "out")


def test_a_table_is_not_asked_for_where_the_recordings_have_texts(tmp_path: Path) -> None:
    file = record(tmp_path / "takes/a.wav")
    new = ("new", str(tmp_path / "mine"), "--recordings")
    assert "nor a text such as a.txt" in run_cli(*new, str(tmp_path / "takes")).stderr
    write(tmp_path / "takes/a.txt", "one")
    assert "no utterance is left for dev" in run_cli(*new, str(tmp_path / "takes")).stderr
    assert "there is no such folder" in run_cli(*new, str(file)).stderr


CUES = st.lists(
    st.tuples(
        st.integers(0, 10**7),
        st.integers(1, 10**5),
        st.lists(
            st.text(st.characters(categories=["L", "N"]), max_size=9), min_size=1, max_size=4
        ).map(lambda lines: [*lines, "end"]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda cue: cue[0],
)


def clock(ms: int) -> str:
    return f"{ms // 3600000:02}:{ms // 60000 % 60:02}:{ms // 1000 % 60:02},{ms % 1000:03}"


@given(CUES)
def test_subtitles_are_read_as_ffmpeg_reads_them(
    tmp_path_factory: pytest.TempPathFactory, cues: list[tuple[int, int, list[str]]]
) -> None:
    """Lines of a cue may be empty."""
    blocks = [
        "\n".join([str(i), f"{clock(start)} --> {clock(start + length)}", *lines, ""])
        for i, (start, length, lines) in enumerate(sorted(cues), 1)
    ]
    path = write(tmp_path_factory.mktemp("s") / "a.srt", "\n".join(blocks) + "\n")
    with av.open(str(path)) as file:
        packets = [packet for packet in file.demux() if packet.pts is not None]
    expected = [(p.pts, p.pts + p.duration, " ".join(bytes(p).decode().split())) for p in packets]
    found = read_subtitles(path.read_text("utf-8"), is_numbered=True)
    assert [
        (round(1000 * float(one.start)), round(1000 * float(one.end)), one.text) for one in found
    ] == expected


def test_texts_that_are_no_labels() -> None:
    assert read_labels("one two\n") is None and not read_labels("")
    assert read_labels("0.5\t1.5\tone\nand more\n") is None
    assert read_labels("0,5\t1,5\n") == [Part(1, "0.5", "1.5", "")]


def test_no_subtitles_stop_the_reading() -> None:
    """Neither numbers that are too long nor markup that never ends."""
    hours = "9" * 5000
    (part,) = read_subtitles(f"{hours}:00:00,000 --> {hours}:00:01,000\n&#{hours};\n", True)
    assert part.start == "nan"
    start = time.process_time()
    for mark in ("<", "<a", "{\\"):
        read_subtitles("00:01.000 --> 00:02.000\n" + mark * 100_000, True)
    for text in ("0:00" + "\t" * 100_000 + "x", "0:00" + "1" * 100_000 + " -" * 100_000):
        assert not _has_times(text)
    read_subtitles("00:01.000 -->" + " " * 100_000 + "\n" + "1:" * 100_000 + " -->\n", True)
    assert time.process_time() - start < 2
    (part,) = read_subtitles("00:01.000 --> 00:02.000\n5 < 6 and 7 > 3\nopen a --> b\n", True)
    assert part.text == "5 < 6 and 7 > 3 open a --> b"


SCROLLING = """WEBVTT

00:00:00.160 --> 00:00:02.470 align:start position:0%
 
hello<00:00:00.480><c> world</c>

00:00:02.470 --> 00:00:02.480 align:start position:0%
hello world
 

00:00:02.480 --> 00:00:05.000 align:start position:0%
hello world
okay

00:00:05.000 --> 00:00:05.010 align:start position:0%
okay
 

00:00:05.010 --> 00:00:07.000 align:start position:0%
okay
so<00:00:05.480><c> then</c>
"""


def test_captions_that_scroll_say_each_line_once() -> None:
    found = read_subtitles(SCROLLING, is_numbered=False)
    assert [(part.start, part.text) for part in found] == [
        ("0.160", "hello world"), ("2.480", "okay"), ("5.010", "so then")
    ]  # fmt: skip
    times = "00:0{}.000 --> 00:0{}.500\n"
    said = ["No.", "No.", "Yes.", "Why?", "So."]  # which people may say twice
    usual = "WEBVTT\n\n" + "\n".join(times.format(i, i) + f"{s}\n" for i, s in enumerate(said))
    assert [part.text for part in read_subtitles(usual, is_numbered=False)] == said
    cues = "WEBVTT\n\n" + "\n".join(times.format(i, i) + "hello snips\n" for i in range(5))
    assert len(read_subtitles(cues, is_numbered=False)) == 5
