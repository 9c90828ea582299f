"""`asr prepare table`: recordings of one's own and the tables that people have."""

import json
import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
import torch
from lhotse import CutSet
from lhotse.cut import Cut

from asr.cli import app
from asr.data.manifest import load_cuts, read_wave
from asr.data.sampling import perturb_speed
from asr.errors import AsrError, ConfigError, DataError
from asr.runtime import storage
from asr.runtime.storage import RemoteFile
from data_prep import copies, cuts
from data_prep.cuts import Utterance
from data_prep.lines import Line
from data_prep.splits import divide
from data_prep.table import prepare
from data_prep.transcripts import read_transcripts
from tests.helpers import encode, run_cli, with_keys

TEXTS = {"ann/1": "今天天气很好", "ann/2": "Hello there", "bob/1": "明天见", "cat/1": "two words"}


@pytest.fixture
def takes(tmp_path: Path) -> Path:
    """Recordings of three speakers, one in stereo at 44.1 kHz."""
    folder = tmp_path / "takes"
    for i, name in enumerate(TEXTS):
        rate, channels = (44100, 2) if i == 1 else (16000, 1)
        wave = 0.1 * np.random.default_rng(i).standard_normal((rate, channels))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        sf.write(folder / f"{name}.wav", wave, rate)
    return folder


def test_all_channels_are_heard_as_the_recognizer_hears_them(takes: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "audio,text\n" + lines("{0}.wav,{1}\n"))
    prepare(takes, table, tmp_path / "out")
    stereo = [c for c in all_cuts(tmp_path / "out") if c.sampling_rate == 44100]
    assert len(stereo) == 1
    samples, _ = sf.read(stereo[0].recording.sources[0].source, dtype="float32")
    read_back = read_wave(stereo[0], 44100).numpy()
    np.testing.assert_allclose(read_back, samples.mean(axis=1), atol=1e-6)
    slower = next(iter(perturb_speed(CutSet.from_cuts(stereo), (0.9,))))
    assert len(read_wave(slower, 44100)) == pytest.approx(len(samples) / 0.9, rel=0.01)


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


def all_cuts(out: Path) -> list[Cut]:
    files = (out / f"{split}.jsonl.gz" for split in ("train", "dev", "test"))
    return [cut for file in files if file.is_file() for cut in load_cuts(file)]


def texts_of(out: Path) -> dict[str, str]:
    return {cut.id: cut.supervisions[0].text for cut in all_cuts(out)}


def spoken() -> dict[str, str]:
    return {name.replace("/", "-"): text for name, text in TEXTS.items()}


def lines(form: str) -> str:
    speakers = [(name, text, name.split("/")[0]) for name, text in TEXTS.items()]
    return "".join(form.format(name, text, speaker) for name, text, speaker in speakers)


def with_splits(path: Path, splits: Sequence[str]) -> Path:
    rows = [f"{n}.wav,{t},{s}\n" for (n, t), s in zip(TEXTS.items(), splits, strict=True)]
    return write(path, "path,sentence,split\n" + "".join(rows))


def kaldi(root: Path, takes: Path) -> Path:
    ids = {name: name.replace("/", "-") for name in TEXTS}
    write(root / "k/text", "".join(f"{ids[n]} {t}\n" for n, t in TEXTS.items()))
    write(root / "k/wav.scp", "".join(f"{ids[n]} {takes / n}.wav\n" for n in TEXTS))
    return write(root / "k/utt2spk", "".join(f"{ids[n]} {n[:3]}\n" for n in TEXTS)).parent


SHAPES = {
    "csv": lambda root, takes: write(
        root / "t.csv", "file,text,speaker\n" + lines("{}.wav,{},{}\n")
    ),
    "Excel in Europe": lambda root, takes: write(
        root / "t.csv", "\ufeffFile;Text;Speaker\r\n" + lines("{}.wav;{};{}\r\n")
    ),
    "Common Voice": lambda root, takes: write(
        root / "t.tsv", "client_id\tpath\tsentence\n" + lines("{2}\t{0}.wav\t{1}\n")
    ),
    "LJSpeech": lambda root, takes: write(root / "metadata.csv", lines("{0}|{1}!|{1}\n")),
    "NeMo": lambda root, takes: write(
        root / "m.jsonl",
        "".join(
            json.dumps({"audio_filepath": f"{n}.wav", "text": t, "duration": 0.5}) + "\n"
            for n, t in TEXTS.items()
        ),
    ),
    "audiofolder": lambda root, takes: (
        write(root / "hf/metadata.csv", "file_name,transcription\n" + lines("{}.wav,{}\n")).parent
    ),
    "Kaldi": kaldi,
    "UTF-16": lambda root, takes: write(
        root / "t.csv", "file,text,speaker\n" + lines("{}.wav,{},{}\n"), "utf-16"
    ),
    "GB18030": lambda root, takes: write(
        root / "t.csv", "file,text,speaker\n" + lines("{}.wav,{},{}\n"), "gb18030"
    ),
    "Windows paths": lambda root, takes: write(
        root / "t.csv", "file,text\n" + lines("{}.wav,{}\n").replace("/", "\\")
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_a_table_gives_the_same_utterances(
    shape: str, takes: Path, tmp_path: Path
) -> None:
    report = prepare(takes, SHAPES[shape](tmp_path, takes), tmp_path / "out", dev=0.25, test=0.25)
    assert texts_of(tmp_path / "out") == spoken()
    assert sum(split.utterances for split in report.splits.values()) == 4


def test_speakers_are_kept_apart(takes: Path, tmp_path: Path) -> None:
    prepare(takes, SHAPES["csv"](tmp_path, takes), tmp_path / "out", dev=0.25, test=0.25)
    by_split = {
        split: {
            c.supervisions[0].speaker for c in CutSet.from_file(tmp_path / f"out/{split}.jsonl.gz")
        }
        for split in ("train", "dev", "test")
    }
    assert sorted(s for speakers in by_split.values() for s in speakers) == ["ann", "bob", "cat"]
    assert by_split["train"] == {"ann"}  # who speaks half of all


def test_a_column_of_splits_is_followed(takes: Path, tmp_path: Path) -> None:
    splits = ["train", "validation", "test", "train"]
    table = with_splits(tmp_path / "t.csv", splits)
    report = prepare(takes, table, tmp_path / "out")
    assert {k: v.utterances for k, v in report.splits.items()} == {"train": 2, "dev": 1, "test": 1}


def test_a_line_without_a_split_is_left_out_where_others_have_one(
    takes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    splits = ["train", "", "test", "train"]
    table = with_splits(tmp_path / "t.csv", splits)
    report = prepare(takes, table, tmp_path / "out", dev=0.0)
    assert {k: v.utterances for k, v in report.splits.items()} == {"train": 2, "test": 1}
    assert report.left_out == {"no_split": 1}
    assert "line 3: its cell of the column of splits is empty: left out" in caplog.text
    assert "no utterance is in dev, which training needs" in caplog.text
    table.write_text(table.read_text().replace("train", ""))
    with pytest.raises(DataError, match=r"line 2: .* no line is of train: write train into"):
        prepare(takes, table, tmp_path / "out")


def test_a_split_that_there_is_no_longer_is_removed(
    s3: Any, takes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A manifest of test that stayed would hold what trains now; what others wrote stays."""
    table = SHAPES["csv"](tmp_path, takes)
    for out in (tmp_path / "out", "s3://job/again"):
        prepare(takes, table, out, dev=0.25, test=0.25)
        prepare(takes, table, out, dev=0.25, test=0.0)
        assert f"{out}/test.jsonl.gz is removed" in caplog.text
    write(tmp_path / "out/test.jsonl.gz", "own")
    prepare(takes, table, tmp_path / "out", dev=0.25, test=0.0)
    assert (tmp_path / "out/test.jsonl.gz").read_text() == "own"
    (tmp_path / "out/test.jsonl.gz").unlink()
    s3.get("job/again/", str(tmp_path / "again"), recursive=True)
    for folder in (tmp_path / "out", tmp_path / "again"):
        assert not (folder / "test.jsonl.gz").exists()
        assert len(all_cuts(folder)) == len({cut.id for cut in all_cuts(folder)}) == len(TEXTS)


def test_recordings_in_a_folder_named_as_that_of_copies(takes: Path, tmp_path: Path) -> None:
    (takes / "ann").rename(takes / "audio")
    table = write(takes / "t.csv", "file,text\naudio/1,one\naudio/2,two\nbob/1,three\n")
    prepare(takes, table, takes)
    assert texts_of(takes) == {"audio-1": "one", "audio-2": "two", "bob-1": "three"}


def test_parts_of_a_long_recording(takes: Path, tmp_path: Path) -> None:
    rows = [
        {"audio_filepath": "ann/1.wav", "text": "a", "offset": i / 4, "duration": 0.25}
        for i in range(3)
    ]
    table = write(tmp_path / "m.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    prepare(takes, table, tmp_path / "out", dev=0.3, test=0.0)
    cuts = [c for s in ("train", "dev") for c in CutSet.from_file(tmp_path / f"out/{s}.jsonl.gz")]
    assert sorted((c.start, c.duration) for c in cuts) == [(0, 0.25), (0.25, 0.25), (0.5, 0.25)]


def test_what_is_left_out_is_said_and_listed(takes: Path, tmp_path: Path) -> None:
    bad = "ann/9.wav,text,ann\nbob/1.wav,one,cell,more\n,text,ann\ncat/1.wav,,cat\n"
    table = write(tmp_path / "t.csv", "file,text,speaker\n" + lines("{}.wav,{},{}\n") + bad)
    result = run_cli("prepare", "table", takes, table, tmp_path / "out")
    assert result.returncode == 0, result.stderr
    for sentence in (
        "line 6: ann/9.wav is not in", "line 7: it has 4 cells, the first line has 3: left out",
        "line 8: it names no recording", "line 9: it has no text",
    ):  # fmt: skip
        assert sentence in result.stderr
    left_out = (tmp_path / "out/left_out.tsv").read_text().splitlines()[1:]
    listed = [(line.split("\t")[0], line.split("\t")[3]) for line in left_out]
    assert listed == [
        ("line 7", "bad_row"), ("line 8", "no_recording"), ("line 9", "no_text"),
        ("line 6", "missing"),
    ]  # fmt: skip
    assert "left out: 1 bad_row, 1 no_recording, 1 no_text, 1 missing; listed in" in result.stdout


@pytest.mark.parametrize(
    ("name", "content", "columns", "words"),
    [
        ("t.csv", b"file,text\na.wav,x\n", {"text": "words"}, ["no column words", "file, text"]),
        ("t.csv", b"file,said\na.wav,x\n", {}, ["known to hold the text", "--text-column"]),
        ("t.csv", b"file,text\n", {}, ["no line with a recording"]),
        ("t.csv", b"just one column\n", {}, ["one column"]),
        ("t.csv", b"file,text\nb,x\na,\xff\xfe\xfd\n", {}, ["line 3", "Big5, CP949 or Shift-JIS"]),
        (
            "t.csv",
            b"file,text\nother/7.wav,x\n",
            {},
            ["none of its 1 recordings", "--audio-column"],
        ),
        ("t.jsonl", b"[1]\n", {}, ["no line with a recording"]),
    ],
)
def test_a_table_that_cannot_be_used_is_one_sentence(
    takes: Path,
    tmp_path: Path,
    name: str,
    content: bytes,
    columns: dict[str, str],
    words: list[str],
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        prepare(takes, tmp_path / name, tmp_path / "out", columns=columns)
    assert all(word in str(caught.value) for word in words), caught.value
    assert not (tmp_path / "out").exists()


def test_nothing_outside_of_the_folder_is_used_and_no_command_is_run(
    takes: Path, tmp_path: Path
) -> None:
    sf.write(tmp_path / "outside.wav", np.zeros(1600), 16000)
    rows = f"../outside.wav,a\n{tmp_path}/outside.wav,b\nann/1.wav,c\n"
    table = write(tmp_path / "t.csv", f"file,text\n{rows}")
    prepare(takes, table, tmp_path / "out", dev=0.0, test=0.0)
    assert texts_of(tmp_path / "out") == {"ann-1": "c"}
    folder = kaldi(tmp_path, takes)
    write(folder / "wav.scp", f"ann-1 touch {tmp_path}/ran |\nbob-1 {takes}/bob/1.wav\n")
    found = read_transcripts(folder)
    assert [line.audio for line in found.lines] == [f"{takes}/bob/1.wav"]
    assert found.faults[1].reason == "command" and "not run" in found.faults[1].what
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("where", ["takes", "tables", "."])
@pytest.mark.parametrize("form", ["{}.wav", "{}", "{}.WAV", "../takes/{}.wav", "{takes}/{}.wav"])
def test_paths_are_relative_to_the_recordings_or_the_table_or_absolute(
    where: str, form: str, takes: Path, tmp_path: Path
) -> None:
    rows = "".join(f"{form.format(n, takes=takes)},{t}\n" for n, t in TEXTS.items())
    table = write(tmp_path / where / "t.csv", "file,text\n" + rows)
    prepare(takes, table, tmp_path / "out")
    assert texts_of(tmp_path / "out") == spoken()


def test_a_name_is_found_in_subfolders_unless_it_may_be_several(
    takes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "2.wav,a\n1.wav,b\nann/7/2.wav,c\ndan/2.wav,d\n"
    prepare(takes, write(tmp_path / "t.csv", f"file,text\n{rows}"), tmp_path / "out")
    assert texts_of(tmp_path / "out") == {"ann-2": "a"}  # never the text of another recording
    assert "line 3: 1.wav may be any of 3 files in" in caplog.text
    assert "line 4: ann/7/2.wav is not in" in caplog.text


def test_a_recording_that_cannot_be_used_is_left_out_with_its_reason(
    takes: Path, tmp_path: Path
) -> None:
    (takes / "bob/1.wav").write_bytes(b"no sound")
    (takes / "cat/1.wav").write_bytes((takes / "cat/1.wav").read_bytes()[:9000])
    write(takes / "x.m4a", "#EXTM3U\nfile:///etc/passwd\n")
    table = write(tmp_path / "t.csv", "file,text\n" + lines("{}.wav,{}\n") + "x.m4a,x\n")
    report = prepare(takes, table, tmp_path / "out", dev=0.0, test=0.0)
    assert report.left_out == {"unreadable": 2, "truncated": 1}
    assert len(texts_of(tmp_path / "out")) == 2


def test_shares_leave_a_part_for_each_split_and_the_largest_speaker_for_training() -> None:
    for n, dev, test in ((3, 0.5, 0.4), (3, 0.1, 0.1), (9, 0.3, 0.3), (2, 0.5, 0.0)):
        pairs = []
        for i in range(10 * n):
            who = f"speaker {i % n}" if i < 9 * n else "speaker 0"
            said = Utterance(f"u{i}", Path(f"{i}.wav"), "x", who)
            pairs.append((Line(i, f"{i}.wav", "x", who), said))
        splits = divide([one for _, one in pairs], {"test": test, "dev": dev})
        who_is_in = {name: {one.speaker for one in found} for name, found in splits.items()}
        assert "speaker 0" in who_is_in["train"] and who_is_in["dev"]
        assert bool(who_is_in["test"]) == (test > 0)
        assert sum(map(len, who_is_in.values())) == n, "each speaker is in one split"
    with pytest.raises(ConfigError, match="leave some for training"):
        prepare(Path("a"), Path("b"), Path("c"), dev=0.5, test=0.5)


@pytest.mark.parametrize(
    ("sizes", "named", "least", "told"),
    [
        ((100, 100, 100, 100, 100, 100, 100, 100, 100, 100), True, 0.8, False),
        ((300, 280, 250, 40), True, 0.6, True),
        ((200, 200, 200), False, 0.8, False),
        ((200, 200, 200, 200), False, 0.8, False),
        ((2000, *[1] * 20), False, 0.8, False),
    ],
)
def test_few_speakers_or_recordings_do_not_empty_training(
    sizes: tuple[int, ...], named: bool, least: float, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [
        (Line(i, "", "x", who), Utterance(f"{n}-{i}", Path(f"{n}.wav"), "x", who))
        for n, size in enumerate(sizes)
        for i in range(size)
        for who in [f"speaker {n}" if named else ""]
    ]
    splits = divide([one for _, one in pairs], {"test": 0.1, "dev": 0.1})
    assert all(splits.values()) and sum(map(len, splits.values())) == sum(sizes)
    assert len(splits["train"]) >= least * sum(sizes)
    assert ("in place of 10 %" in caplog.text) == told


def test_splits_of_the_table_are_questioned(
    takes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = lines("{}.wav,{},{}\n").splitlines()
    splits = [f"{row},{s}" for row, s in zip(rows, ["train", "test", "dev", "dev"], strict=True)]
    table = write(tmp_path / "t.csv", "\n".join(["path,text,speaker,split", *splits]))
    prepare(takes, table, tmp_path / "out")
    assert "speakers of train are in dev or test (1)" in caplog.text
    names = {"train": "a", "test": "b", "dev": "b"}
    others = "\n".join(f"{row},{names[s]}" for row, s in (one.rsplit(",", 1) for one in splits))
    prepare(takes, write(table, f"path,text,speaker,split\n{others}"), tmp_path / "out")
    assert "the table's splits are not used: a is none of train, " in caplog.text


def test_a_wrong_name_of_a_split_moves_no_one_else(
    takes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Or those whom a user kept for testing would be in training."""
    names = ["Development", "test.other", "train-clean-100", "train_dev"]
    table = with_splits(tmp_path / "t.csv", names)
    report = prepare(takes, table, tmp_path / "out")
    assert report.left_out == {"unknown_split": 1}
    assert {k: v.utterances for k, v in report.splits.items()} == {"train": 1, "dev": 1, "test": 1}
    said = "line 5: train_dev in the column of splits is none of train, training, dev"
    assert said in caplog.text
    table.write_text(table.read_text().replace("train-clean", "trained"))
    with pytest.raises(DataError, match=r"line 4: trained-100 in .* no line is of train: write"):
        prepare(takes, table, tmp_path / "other")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "gbk"])
@pytest.mark.parametrize("shape", ["csv", "NeMo", "Kaldi"])
def test_encodings(encoding: str, shape: str, takes: Path, tmp_path: Path) -> None:
    table = SHAPES[shape](tmp_path, takes)
    for path in table.iterdir() if table.is_dir() else [table]:
        path.write_bytes(path.read_text("utf-8").encode(encoding))
    prepare(takes, table, tmp_path / "out")
    assert texts_of(tmp_path / "out") == spoken()


def test_damaged_utf_8_is_not_read_as_another_encoding(takes: Path, tmp_path: Path) -> None:
    text = ("file,text\n" + lines("{}.wav,{}\n")).encode()
    (tmp_path / "t.csv").write_bytes(text.replace("见".encode(), b"\xe8\xa7"))
    with pytest.raises(DataError, match=r"t\.csv, line 4: has bytes that are not text in UTF-8"):
        prepare(takes, tmp_path / "t.csv", tmp_path / "out")


@pytest.mark.parametrize("others", ["你好", "打开窗户"])
def test_utf_8_among_other_lines_is_told(others: str, takes: Path, tmp_path: Path) -> None:
    """Two files were joined: in GBK it would be other characters, 浣犲ソ, and train."""
    text = "file,text\n" + lines("{}.wav,{}\n")
    joined = text.encode("gb18030") + f"8.wav,{others}\n9.wav,{others}\n".encode()
    (tmp_path / "t.csv").write_bytes(joined)
    number = text.count("\n") + 1
    with pytest.raises(DataError, match=rf"t\.csv, line {number}: is in UTF-8, and other lines"):
        prepare(takes, tmp_path / "t.csv", tmp_path / "out")


@pytest.mark.parametrize(
    ("columns", "header"),
    [({"audio": "take", "text": "said"}, "take,said"), ({"text": "said"}, "path,said"),
     ({"audio": "take", "text": "said", "speaker": "text"}, "take,said,text")],
)  # fmt: skip
def test_columns_are_named_by_options(
    columns: dict[str, str], header: str, takes: Path, tmp_path: Path
) -> None:
    form = "{}.wav,{},{}\n" if header.count(",") == 2 else "{}.wav,{}\n"
    table = write(tmp_path / "t.csv", f"{header}\n" + lines(form))
    options = [o for kind, name in columns.items() for o in (f"--{kind}-column", name)]
    command = ["prepare", "table", str(takes), str(table)]
    app([*command, str(tmp_path / "out"), *options], standalone_mode=False)
    assert texts_of(tmp_path / "out") == spoken()
    said = f"has no column words, only {header.replace(',', ', ')}: name it with --text-column"
    with pytest.raises(DataError, match=said):
        app(
            [*command, str(tmp_path / "o"), *options, "--text-column", "words"],
            standalone_mode=False,
        )
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("suffix", ["m4a", "webm", "mp4", "aac", "amr"])
def test_formats_that_need_ffmpeg_become_flac(suffix: str, takes: Path, tmp_path: Path) -> None:
    rate = 8000 if suffix == "amr" else 48000
    encode(takes / f"dan/1.{suffix}", rate=rate)
    table = write(tmp_path / "t.csv", "file,text,speaker\ndan/1,text,dan\nann/1,one,ann\n")
    for _ in range(2):  # the second time, the converted files are no recordings of the folder
        prepare(takes, table, takes / "out", dev=0.0, test=0.0)
        assert texts_of(takes / "out") == {"dan-1": "text", "ann-1": "one"}
    cut = next(c for c in CutSet.from_file(takes / "out/train.jsonl.gz") if c.id == "dan-1")
    assert cut.duration == pytest.approx(1.0, abs=0.1) and cut.sampling_rate == rate
    assert np.std(cut.load_audio()[0]) == pytest.approx(0.3 / np.sqrt(2), rel=0.2)


def test_a_truncated_m4a_is_left_out(takes: Path, tmp_path: Path) -> None:
    encode(takes / "dan.m4a", seconds=3.0, movflags="faststart")
    whole = (takes / "dan.m4a").read_bytes()
    (takes / "dan.m4a").write_bytes(whole[: len(whole) // 2])
    (takes / "eve.m4a").write_bytes(whole[:500])
    table = write(tmp_path / "t.csv", "file,text\ndan,a\neve,b\nann/1,c\n")
    report = prepare(takes, table, tmp_path / "out", dev=0.0, test=0.0)
    assert report.left_out == {"truncated": 1, "unreadable_audio": 1}
    assert not list((tmp_path / "out/audio").iterdir())


def test_without_the_extra_a_sentence_says_how_to_install_it(
    takes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(takes / "dan.m4a")
    monkeypatch.setattr(copies, "is_installed", lambda: False)
    table = write(tmp_path / "t.csv", "file,text\ndan,a\nann/1,c\n")
    with pytest.raises(ConfigError, match=r"pip install 'lrt-asr\[media\]'"):
        prepare(takes, table, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_headers_quotes_and_times(takes: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "t.tsv", 'ann/1.wav\tone, two, three\nbob/1.wav\t"four" five\n')
    found = read_transcripts(table)  # no header: audio and text; commas and quotes are text
    words = read_transcripts(write(tmp_path / "words.csv", "0,stop\n1,go\n"))
    assert [line.text for line in words.lines] == ["stop", "go"]
    assert [line.text for line in found.lines] == ["one, two, three", '"four" five']
    table = write(
        tmp_path / "t.csv", 'file,text\na.wav,"one, ""two"""\nb.wav,"three\n' + "c\n" * 50
    )
    with pytest.raises(DataError, match=r"line 3: .*a quote opens there and is not closed"):
        read_transcripts(table)
    ends = "a,b,1.5,2,\nc,d,2,1,\ne,f,,3,\ng,h,1,x,\ni,j,1, ,\nk,l,1,9,0.5\n"
    found = read_transcripts(write(tmp_path / "t.csv", f"file,text,start,end,duration\n{ends}"))
    parts = [(line.start, line.seconds) for line in found.lines]
    assert parts == [(1.5, 0.5), (0, 3), (1, None), (1, 0.5)]
    assert [fault.reason for fault in found.faults.values()] == ["bad_times"] * 2
    rows = "a,b,nan,1\nc,d,-1,1\ne,f,0,inf\ng,h,1,0\ni,j,x,1\nk,l,1,1\n"
    found = read_transcripts(write(tmp_path / "t.csv", f"file,text,start,duration\n{rows}"))
    assert [line.audio for line in found.lines] == ["k"]
    assert [fault.reason for fault in found.faults.values()] == ["bad_times"] * 5


@pytest.mark.parametrize("header", ["文件,文本,说话人\n", "Fichier;Texte;Locuteur\n", ""])
def test_three_columns_without_known_names_are_not_guessed(header: str, tmp_path: Path) -> None:
    """Or the names of speakers would be what is learned."""
    rows = "a.wav,one,ann\nb.wav,two,bob\n".replace(",", ";" if ";" in header else ",")
    table = write(tmp_path / "t.csv", header + rows)
    with pytest.raises(DataError, match=r"has no name that is known .*--text-column"):
        read_transcripts(table)
    if header:
        names = re.split("[,;]", header.strip())
        found = read_transcripts(table, {"audio": names[0], "text": names[1]})
        assert [line.text for line in found.lines] == ["one", "two"]
    piped = read_transcripts(write(tmp_path / "m.csv", "a|One!|one\nb|Two!|two\n"))  # LJSpeech
    assert [line.text for line in piped.lines] == ["one", "two"]


def test_keys_that_the_first_json_object_lacks_are_read(tmp_path: Path) -> None:
    rows = ({"audio": "a", "duration": 2}, {"audio": "a", "text": "x", "offset": 2, "duration": 1})
    found = read_transcripts(
        write(tmp_path / "m.jsonl", "".join(f"{json.dumps(r)}\n" for r in rows))
    )
    assert [(line.text, line.start, line.seconds) for line in found.lines] == [("x", 2, 1)]
    assert [fault.reason for fault in found.faults.values()] == ["no_text"]


def test_a_quote_that_takes_in_lines_is_told(tmp_path: Path) -> None:
    text = 'file,text\na.wav,one\nb.wav,"two\nc.wav,three\nd.wav,"four"\ne.wav,"of\nlines"\n'
    found = read_transcripts(write(tmp_path / "t.csv", text))
    assert [line.text for line in found.lines] == ["one", "of\nlines"]
    assert found.faults[3].reason == "bad_row" and "close it" in found.faults[3].what
    spreadsheet = tmp_path / "t.txt"
    spreadsheet.write_bytes('file\ttext\na.wav\t"say ""hello"", all"\n'.encode("utf-16"))
    assert read_transcripts(spreadsheet).lines[0].text == 'say "hello", all'


def test_quotes_of_a_table_of_tabs_are_around_cells_where_all_are_in_place(tmp_path: Path) -> None:
    """Those of Common Voice are text, and a lone one takes in no further line."""
    text = 'path\tsentence\na\t"text, with ""a"" quote"\nb\t"two\nlines"\nc\tplain\n"d"\t"a\ttab"\n'
    for content in (text, text.replace("\n", "\r\n"), text.rstrip()):
        (table := tmp_path / "t.tsv").write_bytes(content.encode())
        found = [line.text.replace("\r", "") for line in read_transcripts(table).lines]
        assert found == ['text, with "a" quote', "two\nlines", "plain", "a\ttab"]
    said = ['"a lone one', '"Hello" he said', '"All of it"', "five", 'to"', '"']
    rows = "".join(f"{i}\t{one}\n" for i, one in enumerate(said))
    found = [line.text for line in read_transcripts(write(table, f"path\tsentence\n{rows}")).lines]
    assert found == said
    pair = '"lone\ta.wav\tx\nall"\tb.wav\tx\n'  # as if a quoted cell held two others
    found = [
        line.text for line in read_transcripts(write(table, f"text\tpath\tnote\n{pair}")).lines
    ]
    assert found == ['"lone', 'all"']


@pytest.mark.parametrize("first", ["sep=;\r\n", '"sep=;"\n', "sep=;\n"])
def test_the_first_line_of_excel_tells_what_is_between_cells(first: str, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", f'{first}file;text;note,s\na;"one; two";x\n;no,thing;\n')
    found = read_transcripts(table)
    assert [(line.number, line.text) for line in found.lines] == [(3, "one; two")]
    assert found.columns == {"audio": "file", "text": "text"} and list(found.faults) == [4]


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
def test_western_letters_are_not_read_as_chinese(encoding: str, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_bytes("file,text\na.wav,Die Tür öffnen\nb.wav,größer für mich\n".encode(encoding))
    with pytest.raises(DataError, match=r"line 2: .*save the whole file as UTF-8"):
        read_transcripts(table)
    table.write_bytes("file,text\na.wav,用A股和iPhone看股票\nb.wav,好\n".encode("gbk"))
    assert read_transcripts(table).encoding == "gb18030"


def test_a_line_without_a_speaker_keeps_the_others_apart(
    takes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = lines("{}.wav,{},{}\n").replace(",ann\n", ",Ann\n", 1)
    more = rows.splitlines(keepends=True)
    more[-1] = more[-1].rpartition(",")[0] + ",\n"
    table = write(tmp_path / "t.csv", "file,text,speaker\n" + "".join(more))
    prepare(takes, table, tmp_path / "out", dev=0.3, test=0.0)
    speakers = {
        split: {
            c.supervisions[0].speaker for c in CutSet.from_file(tmp_path / f"out/{split}.jsonl.gz")
        }
        for split in ("train", "dev")
    }
    assert speakers["train"] & {None, ""} and not speakers["dev"] & {None, ""}
    named = [who for part in speakers.values() for who in part if who]
    assert sorted(named) == ["Ann", "bob"]
    assert "1 lines name no speaker: they are in train" in caplog.text


@pytest.mark.parametrize(
    "names", [("S01", "Ｓ01"), ("Anna  Smith", "anna smith"), ("张 三", "张三"), ("Groß", "GROẞ")]
)
def test_one_person_is_never_two(names: tuple[str, str], takes: Path, tmp_path: Path) -> None:
    """Or one would be in train and in test."""
    rows = [f"{take}.wav,{text}" for take, text in TEXTS.items()]
    people = [*names, "bob", "cat"]
    said = "".join(f"{row},{who}\n" for row, who in zip(rows, people, strict=True))
    table = write(tmp_path / "t.csv", f"file,text,speaker\n{said}")
    prepare(takes, table, tmp_path / "out", dev=0.25, test=0.25)
    found = [cut.supervisions[0].speaker for cut in all_cuts(tmp_path / "out")]
    assert sorted(found) == sorted([names[0], names[0], "bob", "cat"])


def test_several_texts_of_one_recording_are_left_out(takes: Path, tmp_path: Path) -> None:
    rows = lines("{}.wav,{}\n")
    again = rows.splitlines()[0].partition(",")[0]
    table = write(tmp_path / "t.csv", f"file,text\n{rows}{again},another\n")
    result = run_cli("prepare", "table", takes, table, tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert f"line 2: another line has another text for {again}" in result.stderr
    assert "2 several_texts" in result.stdout
    assert len(texts_of(tmp_path / "out")) == len(spoken()) - 1


def test_utterances_as_speakers_of_kaldi_are_none(takes: Path, tmp_path: Path) -> None:
    folder = kaldi(tmp_path, takes)
    ids = [line.split()[0] for line in (folder / "text").read_text("utf-8").splitlines()]
    write(folder / "utt2spk", "".join(f"{id} {id}\n" for id in ids))
    assert {line.speaker for line in read_transcripts(folder).lines} == {None}


def test_parts_that_end_with_their_recording_are_told_apart(takes: Path, tmp_path: Path) -> None:
    first = next(iter(TEXTS))
    rows = f"{first}.wav,,0.4,a b\n{first}.wav,0.4,,c\n"
    table = write(tmp_path / "t.csv", f"file,start,end,text\n{rows}")
    prepare(takes, table, tmp_path / "out")
    assert sorted(texts_of(tmp_path / "out").values()) == ["a b", "c"]


def test_segments_of_kaldi(takes: Path, tmp_path: Path) -> None:
    folder = kaldi(tmp_path, takes)
    cut = "ann-1 ann-1 0.25 0.5\nann-2 ann-2 0.5 -1.0 A\nbob-1 bob-1 0.5 -10\ncat-1\n"
    write(folder / "segments", cut)
    found = read_transcripts(folder)
    assert [(line.start, line.seconds) for line in found.lines] == [(0.25, 0.25), (0.5, None)]
    assert {number: fault.reason for number, fault in found.faults.items()} == {
        3: "bad_times", 4: "bad_times"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("named", "texts"),
    [
        ({"segments": "u1 a 0 1 A\nu2 a 0 1 B\nu3 c 0 1 A\nu4 c 0 1 1\nu5 c 0 1 7\n"},
         {"u1": 0, "u2": 1, "u3": 0}),
        ({"segments": "u1 a 0 1\nu2 b 0 1\nu3 c 0 1\nu4 x 0 1\nu5 y 0 1\n",
          "reco2file_and_channel": "a a A\nb b B\nc c B\nx x 1\ny y C\n"},
         {"u1": 0, "u2": 1, "u3": 0, "u4": 0}),
    ],
)  # fmt: skip
def test_a_channel_of_kaldi_is_used_or_left_out(
    named: dict[str, str], texts: dict[str, Any], takes: Path, tmp_path: Path
) -> None:
    for name in "abc":  # c holds one side alone, x and y are other names of b
        sf.write(takes / f"{name}.wav", np.zeros((16000, 1 if name == "c" else 2)), 16000)
    write(tmp_path / "k/wav.scp", "".join(f"{name} {takes}/{name}.wav\n" for name in "abc"))
    with (tmp_path / "k/wav.scp").open("a") as file:
        file.write(f"x {takes}/b.wav\ny {takes}/b.wav\n")
    write(tmp_path / "k/text", "".join(f"u{i} u{i}\n" for i in range(1, 6)))
    for name, content in named.items():
        write(tmp_path / "k" / name, content)
    report = prepare(takes, tmp_path / "k", tmp_path / "out", dev=0.0, test=0.0)
    assert {c.supervisions[0].text: c.channel for c in all_cuts(tmp_path / "out")} == texts
    missing = {"missing_channel": 1} if len(texts) == 3 else {}
    assert report.left_out == {"bad_channel": 1, **missing}
    fault = read_transcripts(tmp_path / "k").faults[5].what
    assert re.search("names the channel [7C], neither A", fault)


def test_parts_that_begin_together_are_told_apart(
    takes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "ann/1,one,0,0.5\nann/1,two,0,1\nann/1,three,0.001,1\nbob/1,x,0,1\nbob/1,y,0,1\n"
    table = write(tmp_path / "t.csv", f"file,text,start,end\n{rows}")
    report = prepare(takes, table, tmp_path / "out", dev=0.0, test=0.0)
    texts = texts_of(tmp_path / "out")
    assert sorted(texts.values()) == ["one", "three", "two"] and texts["ann-1-0.00"] == "one"
    assert report.left_out == {"several_texts": 2}
    assert "line 5: another line has another text for bob/1, and the same start" in caplog.text


def test_recordings_that_no_line_names_are_counted(
    takes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = write(tmp_path / "t.csv", "file,text\nann/1.wav,one\nann/2.wav,\nbob/1.wav,two\n")
    prepare(takes, table, tmp_path / "out", dev=0.0, test=0.0)
    said = f"2 of 4 recordings in {takes} have no text that can be used, such as {takes}"
    assert caplog.text.count(f"{said}/ann/2.wav") == 1
    caplog.clear()
    prepare(takes, SHAPES["csv"](tmp_path, takes), tmp_path / "out")
    assert "recordings in" not in caplog.text


def test_speakers_that_no_line_names_are_not_counted(
    takes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write(tmp_path / "t.csv", "file,text,speaker\n" + lines("{}.wav,{},\n"))
    command = ["prepare", "table", str(takes), str(table), str(tmp_path / "out")]
    app(command, standalone_mode=False)
    shown = capsys.readouterr().out
    assert shown.count("not named") == 3
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert [split["speakers"] for split in report["splits"].values()] == [0, 0, 0]
    app([*command[:3], str(SHAPES["csv"](tmp_path, takes)), command[4]], standalone_mode=False)
    assert "not named" not in capsys.readouterr().out


def test_a_column_that_is_named_for_one_kind_serves_no_other(takes: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "text,label\n" + lines("{}.wav,{}\n"))
    found = read_transcripts(table, {"audio": "text"})
    assert found.columns == {"audio": "text", "text": "label"}
    with pytest.raises(DataError, match="known to hold the text, only text: name it with"):
        read_transcripts(write(tmp_path / "u.jsonl", '{"text": "a.wav"}\n'), {"audio": "text"})


def test_a_kaldi_folder_has_no_columns(takes: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no columns: omit --text-column"):
        read_transcripts(kaldi(tmp_path, takes), {"text": "x"})


def test_a_corpus_by_url_is_that_of_its_recordings(s3: Any, takes: Path, tmp_path: Path) -> None:
    """The same utterances as from a disk; what is broken is left out, an outage ends the work."""
    (takes / "bob/2.wav").write_bytes(b"RIFF no audio")
    rows = lines("{0}.wav,{1},{2}\n") + "bob/2.wav,five,bob\n"
    table = write(tmp_path / "t.csv", "audio,text,speaker\n" + rows)
    prepare(takes, table, tmp_path / "out")
    s3.put(f"{takes}/", "job/takes/", recursive=True)
    done = run_cli("prepare", "table", "s3://job/takes", table, "s3://job/made", before=with_keys())
    assert done.returncode == 0, done.stderr
    s3.get("job/made/", str(tmp_path / "made"), recursive=True)
    assert {p.name for p in (tmp_path / "made").iterdir()} == {
        p.name for p in (tmp_path / "out").iterdir()
    }
    for split in ("train", "dev", "test"):
        here = load_cuts(tmp_path / f"out/{split}.jsonl.gz")
        there = load_cuts(f"s3://job/made/{split}.jsonl.gz", ["s3://job"])
        for a, b in zip(here, there, strict=True):
            assert (a.id, a.supervisions, a.duration) == (b.id, b.supervisions, b.duration)
            assert torch.equal(read_wave(a, 16000), read_wave(b, 16000))
    left_out = (tmp_path / "made/left_out.tsv").read_text("utf-8")
    assert "s3://job/takes/bob/2.wav\tunreadable" in left_out


def test_a_short_recording_in_storage_is_one_request(
    s3: Any, takes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that fails at the first try has others."""
    s3.put(f"{takes}/", "job/few/", recursive=True)
    asked = list[str]()
    system = storage.file_system("s3://job")[0]
    call = type(system)._call_s3

    async def counted(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(method)
        if asked.count("get_object") == 2 and method == "get_object":
            raise OSError("by peer")
        return await call(self, method, *args, **kwargs)

    monkeypatch.setattr(type(system), "_call_s3", counted)
    monkeypatch.setattr(storage, "_PAUSE", 0.001)
    table = write(tmp_path / "t.csv", "audio,text\n" + lines("{0}.wav,{1}\n"))
    prepare("s3://job/few", table, tmp_path / "out", test=0.0)
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert sum(split["utterances"] for split in report["splits"].values()) == len(TEXTS)
    assert asked.count("get_object") == len(TEXTS) + 1 and "head_object" not in asked


def test_processes_write_what_threads_write(
    takes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (takes / "bob/1.wav").write_bytes(b"RIFF no audio")
    utterances = [
        Utterance(f"{name}-{i}", RemoteFile(f"file://{takes}/{name}.wav", 32044), text, "ann")
        for i in range(120)
        for name, text in TEXTS.items()
    ]
    threads = list(cuts.make_lines(utterances, False, 2))
    monkeypatch.setattr(cuts, "_MANY", 400)
    monkeypatch.setattr(cuts, "usable_cpus", lambda: 2)
    assert list(cuts.make_lines(utterances, False, 3)) == threads
    assert threads.count("unreadable") == 120 and len(set(threads)) == 361
    monkeypatch.setattr(cuts, "_PER_TASK", 100)
    with cuts._pool(2, True) as pool, pytest.raises(AsrError, match="with fewer --jobs"):
        monkeypatch.setattr(cuts, "_pool", lambda *_: nullcontext(pool))
        pool.submit(os._exit, 1).exception()
        list(cuts.make_lines(utterances, False, 3))


def test_storage_that_is_away_ends_a_preparation(
    takes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, _ = storage.file_system("memory://takes")
    for name in TEXTS:
        memory.pipe_file(f"/takes/{name}.wav", (takes / f"{name}.wav").read_bytes())

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("by peer")

    monkeypatch.setattr(storage, "_PAUSE", 0.001)
    for way in ("_open", "cat_file"):
        monkeypatch.setattr(type(memory), way, away)
    table = write(tmp_path / "t.csv", "audio,text\n" + lines("{0}.wav,{1}\n"))
    with pytest.raises(AsrError, match=r"does not answer \(by peer\): try again"):
        prepare("memory://takes", table, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_what_must_be_converted_needs_a_folder(takes: Path, tmp_path: Path) -> None:
    """The converted copies would be in a temporary folder, which the cuts name."""
    encode(takes / "dan.m4a")
    table = write(tmp_path / "t.csv", "file,text\ndan,a\nann/1,c\n")
    with pytest.raises(ConfigError, match=r"dan\.m4a: .*the copies need a folder"):
        prepare(takes, table, "memory://made", dev=0.0, test=0.0)
    assert not storage.file_system("memory://made")[0].exists("/made")


def test_a_split_of_which_nothing_can_be_read_is_told(
    takes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    splits = ["train", "dev", "test", "train"]
    names = list(TEXTS)
    (takes / f"{names[1]}.wav").write_bytes(b"RIFF and no more")
    table = with_splits(tmp_path / "t.csv", splits)
    report = prepare(takes, table, tmp_path / "out")
    assert report.splits["train"].utterances == 2 and report.splits["dev"].utterances == 0
    assert "no utterance is in dev, which training needs" in caplog.text
    assert "no utterance is in train" not in caplog.text


def test_a_copy_that_cannot_be_written_is_told_in_a_sentence(takes: Path, tmp_path: Path) -> None:
    encode(takes / "dan.m4a")
    table = write(tmp_path / "t.csv", "file,text\n" + lines("{}.wav,{}\n") + "dan.m4a,x\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/audio").write_text("a file where the folder would be")
    with pytest.raises(DataError, match=r"dan\.m4a\.flac: cannot be written \(.*\): free some"):
        prepare(takes, table, tmp_path / "out")


def test_a_name_that_several_have_is_in_its_speakers_folder(tmp_path: Path) -> None:
    for who in ("ann", "bob"):
        (tmp_path / f"takes/{who}").mkdir(parents=True)
        for i in range(3):
            noise = np.random.default_rng(i).standard_normal(16_000)
            sf.write(tmp_path / f"takes/{who}/{i}.wav", 0.1 * noise, 16_000)
    rows = "".join(f"{i}.wav,{who} {i},{who}\n" for who in ("ann", "bob") for i in range(3))
    prepare(tmp_path / "takes", write(tmp_path / "t.csv", f"file,text,speaker\n{rows}"),
            tmp_path / "out")  # fmt: skip
    texts = {one.id: one.supervisions[0].text for one in all_cuts(tmp_path / "out")}
    assert texts == {f"{who}-{i}": f"{who} {i}" for who in ("ann", "bob") for i in range(3)}
    (tmp_path / "takes/bob/2.wav").unlink()  # that of another person is not taken for it
    (tmp_path / "takes/more").mkdir()
    (tmp_path / "takes/ann/1.wav").rename(tmp_path / "takes/more/1.wav")
    prepare(tmp_path / "takes", tmp_path / "t.csv", tmp_path / "less")
    assert {one.id for one in all_cuts(tmp_path / "less")} == {
        "ann-0", "bob-0", "more-1", "bob-1", "ann-2"
    }  # fmt: skip
    (tmp_path / "takes/more/1.wav").rename(tmp_path / "takes/ann/1.wav")
    (tmp_path / "takes/ann/2.wav").unlink()
    rows = "".join(f"{i}.wav,{who} {i}\n" for who in ("ann", "bob") for i in range(2))
    why = r"by its name \(line 2: 0.wav may be any of 2 files in .*takes\): check the folder and"
    with pytest.raises(DataError, match=why):
        prepare(tmp_path / "takes", write(tmp_path / "t.csv", f"file,text\n{rows}"), tmp_path / "o")


def test_several_people_may_speak_in_a_recording_of_one(tmp_path: Path) -> None:
    """As the interviewer in the folder of whom he asks."""
    takes = tmp_path / "takes"
    for name in ("anna/talk_anna", "bob/talk_bob"):
        (takes / name).parent.mkdir(parents=True)
        noise = np.random.default_rng(1).standard_normal(48_000)
        sf.write(takes / f"{name}.wav", 0.1 * noise, 16_000)
    rows = "".join(
        f"talk_{who}.wav,{i},{i + 1},{text},{speaker}\n"
        for who in ("anna", "bob") for i, text, speaker in ((0, "why", "max"), (1, "so", who))
    )  # fmt: skip
    table = write(tmp_path / "t.csv", f"file,start,end,text,speaker\n{rows}")
    prepare(takes, table, tmp_path / "out")
    speakers = sorted(cut.supervisions[0].speaker for cut in all_cuts(tmp_path / "out"))
    assert speakers == ["anna", "bob", "max", "max"]
