"""Recordings of every name and kind: each is found, used whole with its own text, or left out."""

import io
import os
import shutil
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import soundfile as sf

from asr.audio.ogg import is_cut_off
from asr.data.manifest import load_cuts, read_wave
from asr.errors import DataError
from data_prep.table import prepare
from data_prep.text_file import read_text
from data_prep.transcripts import read_transcripts
from tests.helpers import encode


def write_wave(path: Path, seconds: float = 1.0, rate: int = 16000, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = 0.1 * np.random.default_rng(1).standard_normal((int(seconds * rate), channels))
    sf.write(path, noise, rate, format="WAV" if path.suffix == ".wave" else None)
    return path


def prepared(takes: Path, rows: dict[str, str], out: Path) -> tuple[dict[str, str], dict[str, int]]:
    """Prepare a table of these rows; return the texts by file, and what was left out."""
    table = takes.parent / "table.csv"
    table.write_text("file,text\n" + "".join(f"{file},{text}\n" for file, text in rows.items()))
    report = prepare(takes, table, out, dev=0.0, test=0.0)
    texts = {
        str(Path(cut.recording.sources[0].source)): cut.supervisions[0].text
        for cut in load_cuts(out / "train.jsonl.gz")
    }
    return texts, report.left_out


def test_a_copy_is_made_again_when_the_recording_is_another(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for folder in ("first", "second"):
        encode(tmp_path / folder / "1.m4a", seconds=1.0 if folder == "first" else 2.0)
        os.utime(tmp_path / folder / "1.m4a", (1e9, 1e9))  # older than any copy
    for _ in range(2):
        prepared(tmp_path / "first", {"1.m4a": "one"}, out)
        changed = (out / "audio/1.m4a.flac").stat().st_mtime_ns
    prepared(tmp_path / "first", {"1.m4a": "one"}, out)
    assert (out / "audio/1.m4a.flac").stat().st_mtime_ns == changed  # kept
    prepared(tmp_path / "second", {"1.m4a": "two"}, out)
    assert sf.info(out / "audio/1.m4a.flac").duration == pytest.approx(2.0, abs=0.1)
    shutil.copy2(tmp_path / "first/1.m4a", tmp_path / "second/1.m4a")  # in place, not newer
    prepared(tmp_path / "second", {"1.m4a": "one"}, out)
    assert sf.info(out / "audio/1.m4a.flac").duration == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("suffix", ["webm", "mka", "ogg", "opus", "aiff", "wav", "flac", "m4a"])
def test_half_a_recording_is_left_out_and_a_whole_one_is_not(suffix: str, tmp_path: Path) -> None:
    takes = tmp_path / "takes"
    takes.mkdir()
    whole = takes / f"whole.{suffix}"
    if suffix in ("webm", "mka", "m4a"):
        encode(whole, seconds=4.0)
    else:
        noise = 0.1 * np.random.default_rng(1).standard_normal(64000)
        kind = {"opus": "OPUS", "ogg": "VORBIS"}.get(suffix)
        sf.write(whole, noise, 16000, kind, format="OGG" if kind else None)
    content = whole.read_bytes()
    (takes / f"half.{suffix}").write_bytes(content[: len(content) // 2])
    rows = {f"whole.{suffix}": "all of it", f"half.{suffix}": "all of it"}
    texts, left_out = prepared(takes, rows, tmp_path / "out")
    assert len(texts) == 1 and "whole" in next(iter(texts))
    assert sum(left_out.values()) == 1


def test_a_rate_or_channels_that_no_reader_takes_are_left_out(tmp_path: Path) -> None:
    takes = tmp_path / "takes"
    write_wave(takes / "good.wav")
    write_wave(takes / "slow.wav", rate=500)
    write_wave(takes / "many.wav", 0.1, channels=40)
    rows = {"good.wav": "a", "slow.wav": "b", "many.wav": "c"}
    texts, left_out = prepared(takes, rows, tmp_path / "out")  # which loads the manifest too
    assert list(texts.values()) == ["a"]
    assert left_out == {"unusable_rate": 1, "too_many_channels": 1}


def test_a_folder_that_is_called_as_an_archive_is_refused(tmp_path: Path) -> None:
    write_wave(tmp_path / "corpus.tar/a.wav")
    with pytest.raises(DataError, match=r"rename the folder whose name ends in \.tar"):
        prepared(tmp_path / "corpus.tar", {"a.wav": "a"}, tmp_path / "out")


def test_recordings_whose_names_look_alike_are_all_used(tmp_path: Path) -> None:
    takes = tmp_path / "takes"
    names = ["ann/1.wav", "ann-1.wav", "a b.wav", "a_b.wav", "x.wav", "x.flac"]
    for name in names:
        write_wave(takes / name)
    rows = {name: f"text {i}" for i, name in enumerate(names)}
    texts, left_out = prepared(takes, rows, tmp_path / "out")
    assert texts == {str(takes / name): text for name, text in rows.items()}
    assert not left_out


def test_one_recording_with_several_texts_is_told_as_that(tmp_path: Path) -> None:
    write_wave(tmp_path / "takes/a.wav")
    (table := tmp_path / "t.csv").write_text("file,text\na.wav,yes\na.wav,no\n")
    with pytest.raises(DataError, match="several texts: keep one line of each"):
        prepare(tmp_path / "takes", table, tmp_path / "out")


def test_rarer_suffixes_and_linked_folders_are_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    takes = tmp_path / "takes"
    write_wave(takes / "a.wave")
    write_wave(takes / "b.au")
    write_wave(tmp_path / "disk/c.wav")
    (takes / "link").symlink_to(tmp_path / "disk")
    (takes / "loop").symlink_to(takes)
    (takes / "d.txt").write_text("no audio")
    rows = {"a.wave": "a", "b.au": "b", "link/c.wav": "c", "d.txt": "d", "e.wav": "e"}
    texts, left_out = prepared(takes, rows, tmp_path / "out")
    assert sorted(texts.values()) == ["a", "b", "c"] and left_out == {"missing": 2}
    assert "d.txt is in" in caplog.text and "no suffix of a recording" in caplog.text
    assert "e.wav is not in" in caplog.text


def test_a_link_within_the_folder_hides_nothing(tmp_path: Path) -> None:
    takes = tmp_path / "takes"
    for month in ("2024-05", "a", "zz"):
        write_wave(takes / month / f"{month}.wav")
        (takes / f"latest{month}").symlink_to(month)
    rows = {"2024-05/2024-05.wav": "x", "latesta/a.wav": "y", "zz": "z"}
    texts, left_out = prepared(takes, rows, tmp_path / "out")
    assert sorted(texts.values()) == ["x", "y", "z"] and not left_out


def test_what_a_recording_was_made_of_is_not_another_one(tmp_path: Path) -> None:
    takes = tmp_path / "takes"
    write_wave(takes / "x.wav")
    write_wave(takes / "x.au")
    write_wave(takes / "y.au")
    texts, left_out = prepared(takes, {"x": "one", "y": "two"}, tmp_path / "out")
    assert texts == {str(takes / "x.wav"): "one", str(takes / "y.au"): "two"} and not left_out


def test_a_path_precedes_names_in_subfolders(tmp_path: Path) -> None:
    takes = tmp_path / "takes"
    for name in ("0.wav", "old/0.wav", "old/1.wav", "x/1.wav"):
        write_wave(takes / name)
    texts, left_out = prepared(takes, {"0": "a", "old/0": "b", "1": "c"}, tmp_path / "out")
    assert texts == {str(takes / "0.wav"): "a", str(takes / "old/0.wav"): "b"}
    assert left_out == {"missing": 1}


@pytest.mark.parametrize("named", ["0.au", "0.AU"])
def test_what_a_recording_was_made_of_is_used_where_it_is_named(
    named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_wave(tmp_path / "takes/0.wav")
    original = write_wave(tmp_path / "takes/0.au")
    texts, left_out = prepared(tmp_path / "takes", {named: "a"}, tmp_path / "out")
    assert texts == {str(original): "a"} and not left_out
    assert "recordings in" not in caplog.text, "none is unused: 0.wav is the same one"


def test_a_sentence_in_the_place_of_a_recording_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_wave(tmp_path / "takes/0.wav")
    rows = {"0.wav": "a", "很长的句子" * 30: "b", "x/" * 3000: "c"}
    texts, left_out = prepared(tmp_path / "takes", rows, tmp_path / "out")
    assert list(texts.values()) == ["a"] and left_out == {"missing": 2}
    assert "很长的句子 is not in" in caplog.text


def test_the_copy_of_a_recording_with_the_longest_name_has_a_name_too(tmp_path: Path) -> None:
    takes = tmp_path / "takes"
    names = [f"{first}{'很' * 83}.m4a" for first in "ab"]  # of 254 bytes
    for i, name in enumerate(names):
        encode(takes / name, seconds=1.0 + i)
    rows = dict(zip(names, "ab", strict=True))
    for _ in range(2):  # the second time, copies are no recordings
        texts, left_out = prepared(takes, rows, takes / "out")
        copies = sorted((takes / "out/audio").iterdir())
        assert texts.keys() == set(map(str, copies)) and not left_out
        assert all(copy.name.endswith("很.m4a.flac") for copy in copies)
    assert sorted(round(sf.info(copy).duration) for copy in copies) == [1, 2]


def test_copies_can_be_the_recordings_of_another_corpus(tmp_path: Path) -> None:
    encode(tmp_path / "takes/1.m4a")
    prepared(tmp_path / "takes", {"1.m4a": "one"}, tmp_path / "out")
    texts, _ = prepared(tmp_path / "out/audio", {"1.m4a": "one"}, tmp_path / "new")
    assert texts == {str(tmp_path / "out/audio/1.m4a.flac"): "one"}


def test_lengths_that_programs_do_not_know_are_none(tmp_path: Path) -> None:
    """As sox writes aiff to a pipe, and FFmpeg Matroska; and a track that begins late."""
    takes = tmp_path / "takes"
    content = bytearray(write_wave(takes / "sox.aiff").read_bytes())
    at = content.index(b"SSND") + 4
    content[at : at + 4] = (0x7F000008).to_bytes(4, "big")
    (takes / "sox.aiff").write_bytes(content)
    for name, codec, start in (("pipe.mka", "pcm_s16le", 0), ("late.mka", "flac", 48000)):
        pipe = (takes / name).open("wb")
        with pipe, av.open(SimpleNamespace(write=pipe.write), "w", format="matroska") as file:
            stream = file.add_stream(codec, rate=16000)
            for i in range(0, 32000, 1600):
                tone = (8000 * np.sin(np.arange(i, i + 1600) / 5)).astype(np.int16)[None]
                frame = av.AudioFrame.from_ndarray(tone, format="s16", layout="mono")
                frame.sample_rate, frame.pts, frame.time_base = 16000, start + i, Fraction(1, 16000)
                file.mux(stream.encode(frame))
            file.mux(stream.encode(None))
    rows = {name: "whole" for name in ("sox.aiff", "pipe.mka", "late.mka")}
    texts, left_out = prepared(takes, rows, tmp_path / "out")
    assert len(texts) == 3 and not left_out


def test_a_length_that_no_header_gives_is_measured(s3: Any, tmp_path: Path) -> None:
    """As of an MP3 or FLAC that was written to a pipe; libsndfile would end the MP3 too early."""
    takes = tmp_path / "takes"
    takes.mkdir()
    noise = np.random.default_rng(1).standard_normal(64000) * np.repeat((0.5, 0.0001), 32000)
    for name in ("vbr.mp3", "whole.mp3", "piped.flac"):
        rate = {"compression_level": 0.5, "bitrate_mode": "VARIABLE"} if "mp3" in name else {}
        sf.write(takes / name, 0.2 * noise, 16000, **rate)
    tag, mp3 = b"ID3\x03\0\0\0\0\x02\0" + bytes(256), (takes / "vbr.mp3").read_bytes()
    behind = mp3.index(b"\xff\xf3", mp3.index(b"Xing") + 100)  # its second frame
    (takes / "vbr.mp3").write_bytes(tag + mp3[behind:])
    assert sf.info(takes / "vbr.mp3").duration < 3.5
    flac = bytearray((takes / "piped.flac").read_bytes())
    flac[21:26] = (flac[21] & 0xF0, 0, 0, 0, 0)
    (takes / "piped.flac").write_bytes(flac)
    rows = {"vbr.mp3": "a", "piped.flac": "b", "whole.mp3": "c"}
    texts, left_out = prepared(takes, rows, tmp_path / "out")
    assert not left_out and str(takes / "whole.mp3") in texts
    for cut in load_cuts(tmp_path / "out/train.jsonl.gz"):
        assert cut.duration == pytest.approx(4.0, abs=0.2), cut.id
        assert len(read_wave(cut, 16000)) == cut.num_samples
    s3.put(f"{takes}/", "job/unknown/", recursive=True)  # of which none is converted
    report = prepare("s3://job/unknown", tmp_path / "table.csv", tmp_path / "o", dev=0.0, test=0.0)
    assert report.left_out == {"no_length": 2} and report.splits["train"].utterances == 1


def test_copies_of_an_earlier_preparation_are_no_recordings(tmp_path: Path) -> None:
    takes = tmp_path / "takes"
    encode(takes / "1.m4a")
    for out in ("out1", "out2"):  # within the folder of the recordings
        texts, left_out = prepared(takes, {"1": "one"}, takes / out)
        assert list(texts.values()) == ["one"] and not left_out


def test_what_killed_runs_left_is_removed_a_day_later(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / ".partial-old").mkdir(parents=True)
    (out / "audio").mkdir()
    encode(tmp_path / "takes/1.m4a")
    for path in (out / "audio/.asr-1.tmp", out / "audio/.asr-2.tmp", out / ".partial-old/x"):
        path.touch()
    for path in (out / "audio/.asr-1.tmp", out / ".partial-old"):
        os.utime(path, (1e9, 1e9))
    prepared(tmp_path / "takes", {"1.m4a": "one"}, out)
    assert not (out / ".partial-old").exists() and not (out / "audio/.asr-1.tmp").exists()
    assert (out / "audio/.asr-2.tmp").exists()  # another process may be writing it


@pytest.mark.parametrize("text", ["yes\nno\0\nstop\n", "是\n不\0\n停\n"])
def test_a_damaged_byte_does_not_make_a_text_utf_16(text: str, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_bytes(text.encode())
    with pytest.raises(DataError, match="line 2: has bytes that are not text"):
        read_text(tmp_path / "words.txt")


def test_a_text_is_what_its_column_says(tmp_path: Path) -> None:
    (table := tmp_path / "t.csv").write_text('file, text,speaker,text\n0.wav, "a, b",x,note\n')
    assert read_transcripts(table).lines[0].text == "a, b"
    (table := tmp_path / "t.jsonl").write_text(
        '{"audio": "a", "text": ["x", "y"]}\n{"audio": "b", "text": true}\n'
        '{"audio": "c", "text": 7}\n'
    )
    found = read_transcripts(table)
    assert [line.text for line in found.lines] == ["7"]
    assert [fault.reason for fault in found.faults.values()] == ["no_text", "no_text"]


def test_the_last_page_of_an_ogg_file_is_whole_or_not() -> None:
    sf.write(content := io.BytesIO(), np.zeros(16000), 16000, format="OGG", subtype="VORBIS")
    whole = content.getvalue()
    assert not is_cut_off(io.BytesIO(whole))
    last = whole.rfind(b"OggS")
    for size in (last + 5, last + 20, last + 27, len(whole) - 1):
        assert is_cut_off(io.BytesIO(whole[:size]))
    assert not is_cut_off(io.BytesIO(whole[:last]))


@pytest.mark.parametrize("name", ["one.m4a", "one.flac"])
def test_the_channel_of_a_mono_recording_that_is_copied_is_its_only_one(
    name: str, tmp_path: Path
) -> None:
    """As Kaldi names channel A of data that have one; in stereo it is not the mix of both."""
    takes = tmp_path / "takes"
    for channels in (1, 2):
        path = takes / f"{channels}{name}"
        encode(path, channels=channels) if path.suffix == ".m4a" else without_length(path, channels)
    kaldi = {
        "wav.scp": "{n} {takes}/{n}{name}\n", "text": "{n} {n}\n", "segments": "{n} {n} 0 1\n",
        "reco2file_and_channel": "{n} {n} A\n",
    }  # fmt: skip
    (tmp_path / "k").mkdir()
    for file, row in kaldi.items():
        rows = "".join(row.format(n=n, name=name, takes=takes) for n in (1, 2))
        (tmp_path / "k" / file).write_text(rows)
    report = prepare(takes, tmp_path / "k", tmp_path / "out", dev=0.0, test=0.0)
    assert report.left_out == {"missing_channel": 1}
    (cut,) = load_cuts(tmp_path / "out/train.jsonl.gz")
    assert cut.supervisions[0].text == "1"


def without_length(path: Path, channels: int) -> None:
    """Write a FLAC whose header does not tell its length, as a pipe has it."""
    write_wave(path, channels=channels)
    content = bytearray(path.read_bytes())
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    path.write_bytes(content)


def test_a_copy_of_a_rarer_format_is_no_recording(tmp_path: Path) -> None:
    takes = tmp_path / "takes"
    encode(takes / "one.m4a").rename(takes / "one.m4b")
    for _ in range(2):  # the second time the copy of the first is there
        texts, left_out = prepared(takes, {"one": "hello"}, takes / "out")
        assert list(texts.values()) == ["hello"] and not left_out
