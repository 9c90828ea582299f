"""Texts that have the names of their recordings, in the same folders or in others."""

import gzip
import json
import logging
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile as sf
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import DataError
from data_prep.subtitles import read_labels, read_subtitles
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
    report = prepare(tmp_path / "libri", tmp_path / "libri", tmp_path / "out")
    assert {name: one.utterances for name, one in report.splits.items()} == {
        "train": 4, "dev": 4, "test": 4,
    }  # fmt: skip
    assert said(tmp_path / "out")["train-clean-100-ann-2"] == ("TEXT 2", "ann")
    reasons = [row[-1] for row in left_out(tmp_path / "out")]
    assert reasons == ["no_text"] * 3 + ["missing"] * 3


def test_parts_of_long_recordings(tmp_path: Path) -> None:
    """Subtitles and the labels of Audacity, of which those with times are preferred."""
    for name in ("a", "b", "c"):
        record(tmp_path / f"takes/{name}.wav", 10)
    write(
        tmp_path / "takes/a.srt",
        "1\n00:00:01,000 --> 00:00:02,500\n<i>Hello</i>\nthere\n\n2\n0:00:03,000 --> 0:00:04,000\n"
        "{\\an8}you &amp; I\n\n3\n00:00:05,000 --> 00:00:06,000\n\n",
    )
    write(tmp_path / "takes/a.txt", "Hello there you and I\n")
    write(
        tmp_path / "takes/b.vtt",
        "WEBVTT\n\nNOTE not said\n\nfirst\n00:01.000 --> 00:02.000 align:start\n<v Ann>one\n",
    )
    write(tmp_path / "takes/c.txt", "0.500000\t1.5\ttwo\n\\\t100.0\t200.0\n2.0\t3.25\tthree\n")
    prepare(tmp_path / "takes", tmp_path / "takes", tmp_path / "out")
    found = {id: text for id, (text, _) in said(tmp_path / "out").items()}
    assert found == {
        "a-1.00": "Hello there", "a-3.00": "you & I", "b-1.00": "one", "c-0.50": "two",
        "c-2.00": "three",
    }  # fmt: skip
    assert [row[-1] for row in left_out(tmp_path / "out")] == ["no_text"]
    assert left_out(tmp_path / "out")[0][0].endswith("a.srt, line 11")


def test_a_text_that_is_not_used_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record(tmp_path / "a.wav")
    write(tmp_path / "a.txt", "whole")
    write(tmp_path / "a.vtt", "WEBVTT\n\n00:00.000 --> 00:00.500\npart\n")
    with caplog.at_level(logging.WARNING):
        found = read_transcripts(tmp_path)
    assert [(line.text, line.seconds) for line in found.lines] == [("part", 0.5)]
    assert f"such as {tmp_path}/a.vtt in place of {tmp_path}/a.txt" in caplog.text


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


def test_texts_in_another_encoding_are_named(takes: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(takes / "ann/0.txt", "今天天气很好", "gbk")
    write(takes / "ann/1.txt", "明天见")
    with caplog.at_level(logging.WARNING):
        found = read_transcripts(takes)
    assert [line.text for line in found.lines] == ["今天天气很好", "明天见"]
    assert "ann/0.txt, and maybe others, is read as gb18030" in caplog.text


def test_folders_that_are_no_splits_and_no_people_tell_nothing(tmp_path: Path) -> None:
    for name in ("0", "ann/1", "bob/2"):  # 0 is of nobody's folder
        write(tmp_path / f"mixed/{name}.txt", "x")
        write(tmp_path / f"one/{name.replace('bob', 'ann').replace('0', 'ann/0')}.txt", "x")
    for folder in ("mixed", "one"):
        found = read_transcripts(tmp_path / folder).lines
        assert [(line.speaker, line.split) for line in found] == [(None, None)] * 3


def test_tables_of_several_folders_are_one(takes: Path, tmp_path: Path) -> None:
    """As of Hugging Face's audiofolder, whose names are relative to their table."""
    for who, split in zip(PEOPLE, ("train", "validation", "test"), strict=True):
        rows = "".join(f"{i}.wav,{who} {i}\n" for i in range(4)) + "9.wav,none\n,none\n"
        (tmp_path / "hf").mkdir(exist_ok=True)
        (takes / who).rename(tmp_path / "hf" / split)
        write(tmp_path / f"hf/{split}/metadata.csv", f"file_name,text\n{rows}")
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


def test_mistakes_are_sentences(takes: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nor a text such as a\.txt for a\.wav: give the file"):
        read_transcripts(takes)
    write(takes / "takes.csv", "file,text\n")
    with pytest.raises(DataError, match=r"with the transcripts, such as .*takes/takes\.csv"):
        read_transcripts(takes)
    write(tmp_path / "texts/z.txt", "x")
    with pytest.raises(DataError, match=r"has a text for each recording, which has no columns"):
        read_transcripts(tmp_path / "texts", {"text": "said"})
    with pytest.raises(DataError, match=r"none of its 1 recordings is in .* a\.wav is in a\.txt"):
        prepare(takes, tmp_path / "texts", tmp_path / "out")


def test_a_table_is_not_asked_for_where_the_recordings_have_texts(tmp_path: Path) -> None:
    record(tmp_path / "takes/a.wav")
    new = ("new", str(tmp_path / "mine"), "--recordings", str(tmp_path / "takes"))
    assert "nor a text such as a.txt" in run_cli(*new).stderr
    write(tmp_path / "takes/a.txt", "one")
    assert "no utterance is left for dev" in run_cli(*new).stderr


CUES = st.lists(
    st.tuples(
        st.integers(0, 10**7),
        st.integers(1, 10**5),
        st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=9),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda cue: cue[0],
)


def clock(ms: int) -> str:
    return f"{ms // 3600000:02}:{ms // 60000 % 60:02}:{ms // 1000 % 60:02},{ms % 1000:03}"


@given(CUES)
def test_subtitles_are_read_as_ffmpeg_reads_them(
    tmp_path_factory: pytest.TempPathFactory, cues: list[tuple[int, int, str]]
) -> None:
    blocks = [
        f"{i}\n{clock(start)} --> {clock(start + length)}\n{text}\n"
        for i, (start, length, text) in enumerate(sorted(cues), 1)
    ]
    path = write(tmp_path_factory.mktemp("s") / "a.srt", "\n".join(blocks) + "\n")
    with av.open(str(path)) as file:
        packets = [packet for packet in file.demux() if packet.pts is not None]
    expected = [(p.pts, p.pts + p.duration, bytes(p).decode().strip()) for p in packets]
    found = read_subtitles(path.read_text("utf-8"))
    assert [
        (round(1000 * float(one.start)), round(1000 * float(one.end)), one.text) for one in found
    ] == expected


def test_texts_that_are_no_labels() -> None:
    assert read_labels("one two\n") is None and read_labels("") is None
    assert read_labels("0.5\t1.5\tone\nand more\n") is None
    assert [part.text for part in read_labels("0,5\t1,5\n") or []] == [""]
