"""`asr prepare table`: recordings of one's own and the tables that people have."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
from lhotse import CutSet

from asr.errors import DataError
from data_prep.table import prepare
from data_prep.transcripts import read_transcripts
from tests.helpers import run_cli, tone

TEXTS = {"ann/1": "今天天气很好", "ann/2": "hello there", "bob/1": "明天见", "cat/1": "two words"}


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


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


def texts_of(out: Path) -> dict[str, str]:
    found = {}
    for split in ("train", "dev", "test"):
        if (out / f"{split}.jsonl.gz").is_file():
            for cut in CutSet.from_file(out / f"{split}.jsonl.gz"):
                found[cut.id] = cut.supervisions[0].text
    return found


def spoken() -> dict[str, str]:
    return {name.replace("/", "-"): text.upper() for name, text in TEXTS.items()}


def lines(form: str) -> str:
    speakers = [(name, text, name.split("/")[0]) for name, text in TEXTS.items()]
    return "".join(form.format(name, text, speaker) for name, text, speaker in speakers)


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
    "LJSpeech": lambda root, takes: write(root / "metadata.csv", lines("{}|raw|{}\n")),
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
    rows = [f"{n}.wav,{t},{s}\n" for (n, t), s in zip(TEXTS.items(), splits, strict=True)]
    table = write(tmp_path / "t.csv", "path,sentence,split\n" + "".join(rows))
    report = prepare(takes, table, tmp_path / "out")
    assert {k: v.utterances for k, v in report.splits.items()} == {"train": 2, "dev": 1, "test": 1}


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
        "line 8: it has no recording", "line 9: it has no text",
    ):  # fmt: skip
        assert sentence in result.stderr
    left_out = (tmp_path / "out/left_out.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[3] for line in left_out] == ["bad_row"] * 3 + ["missing"]


@pytest.mark.parametrize(
    ("name", "content", "columns", "words"),
    [
        ("t.csv", b"file,text\na.wav,x\n", {"text": "words"}, ["no column words", "file, text"]),
        ("t.csv", b"file,said\na.wav,x\n", {}, ["known to hold the text", "--text-column"]),
        ("t.csv", b"file,text\n", {}, ["no line with a recording"]),
        ("t.csv", b"just one column\n", {}, ["one column"]),
        ("t.csv", b"file,text\nb,x\na,\xff\xfe\xfd\n", {}, ["line 3", "neither UTF-8 nor GB18030"]),
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
    assert texts_of(tmp_path / "out") == {"ann-1": "C"}
    folder = kaldi(tmp_path, takes)
    write(folder / "wav.scp", f"ann-1 touch {tmp_path}/ran |\nbob-1 {takes}/bob/1.wav\n")
    found = read_transcripts(folder)
    assert [line.audio for line in found.lines] == [f"{takes}/bob/1.wav"]
    assert "command" in found.faults[1] and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", ["m4a", "webm", "mp4"])
def test_formats_that_need_ffmpeg_become_flac(suffix: str, takes: Path, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    source = tone(tmp_path / "tone.wav", seconds=1.0)
    target = takes / f"dan.{suffix}"
    codec = "libopus" if suffix == "webm" else "aac"
    with av.open(str(source)) as read, av.open(str(target), "w") as written:
        stream = written.add_stream(codec, rate=48000)
        resampler = av.AudioResampler(stream.format, stream.layout, 48000)
        for frame in read.decode(audio=0):
            for part in resampler.resample(frame):
                written.mux(stream.encode(part))
        written.mux(stream.encode(None))
    table = write(tmp_path / "t.csv", f"file,text\n{target.name},text\n")
    prepare(takes, table, tmp_path / "out", dev=0.0, test=0.0)
    (cut,) = CutSet.from_file(tmp_path / "out/train.jsonl.gz")
    assert cut.duration == pytest.approx(1.0, abs=0.1) and cut.sampling_rate == 48000
    wave, original = cut.load_audio()[0], sf.read(source)[0]
    assert np.std(wave) == pytest.approx(np.std(original), rel=0.1)
