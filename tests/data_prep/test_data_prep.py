"""Corpora on disk become cuts: the synthetic demo, AISHELL-1's layout, and bad recordings."""

import gzip
import io
import json
import os
import shutil
import signal
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from asr.errors import AsrError, DataError
from data_prep import aishell1, demo, synthesis
from data_prep.corpus_writer import write_corpus
from data_prep.cuts import Utterance
from tests.helpers import TEXTS, make_tree, tone

SMALL = {"train": 12, "dev": 4, "test": 5}


def read_cuts(out: Path) -> dict[str, list[dict]]:
    cuts = {}
    for path in out.glob("*.jsonl.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            cuts[path.name.split(".")[0]] = [json.loads(line) for line in file]
    return cuts


def supervisions(out: Path) -> dict[str, set[tuple[str, str, str, float]]]:
    return {
        split: {
            (c["id"], s["text"], s["speaker"], round(c["duration"], 4))
            for c in cuts
            for s in c["supervisions"]
        }
        for split, cuts in read_cuts(out).items()
    }


def left_out(out: Path) -> set[tuple[str, str, str]]:
    lines = (out / "left_out.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    assert rows[0] == ["id", "split", "path", "reason"]
    return {(row[0], row[1], row[3]) for row in rows[1:]}


def wavs(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in out.glob("wav/*/*/*.wav")}


# --- the demo ---


@pytest.fixture(scope="module")
def spoken(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    demo.prepare(out, jobs=1, **SMALL)
    return out


def test_demo_is_the_same_in_any_number_of_processes(spoken, tmp_path):
    demo.prepare(tmp_path, jobs=3, **SMALL)
    assert len(wavs(spoken)) == sum(SMALL.values())
    assert wavs(tmp_path) == wavs(spoken)
    assert supervisions(tmp_path) == supervisions(spoken)


def test_demo_resumes_and_keeps_finished_recordings(spoken, tmp_path):
    shutil.copytree(spoken / "wav", tmp_path / "wav")
    finished = sorted(tmp_path.glob("wav/train/*/*.wav"))
    stamps = {path: path.stat().st_mtime_ns for path in finished[1::2]}
    for path in finished[::2]:
        path.rename(path.with_suffix(".partial"))  # as a killed run leaves them
        path.with_suffix(".partial").write_bytes(b"RIFF")
    demo.prepare(tmp_path, jobs=2, **SMALL)
    assert wavs(tmp_path) == wavs(spoken)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_a_process_that_dies_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(synthesis, "_takes", lambda plan: [signal.SIGKILL])
    monkeypatch.setattr(synthesis, "_synthesize_in_fork", signal.raise_signal)
    with pytest.raises(AsrError, match="fewer --jobs"):
        demo.prepare(tmp_path, jobs=1)


def test_demo_grows_without_changing(spoken, tmp_path):
    demo.prepare(tmp_path, jobs=2, **{**SMALL, "train": 15})
    assert wavs(spoken).items() < wavs(tmp_path).items()


def test_demo_has_the_rate_and_length_of_16_khz_speech(spoken):
    for cuts in read_cuts(spoken).values():
        for cut in cuts:
            source = Path(cut["recording"]["sources"][0]["source"])
            wave_N, rate = sf.read(source)
            supervision = cut["supervisions"][0]
            assert rate == 16000 and source.is_absolute()
            assert cut["duration"] == pytest.approx(len(wave_N) / rate)
            # Mandarin at these rates: 80 to 350 ms a character, and no long silence at the ends.
            assert 0.08 < cut["duration"] / len(supervision["text"]) < 0.35
            for end in (wave_N[:1600], wave_N[-1600:]):
                assert np.abs(end).max() > 0.01
            assert 0.1 < np.abs(wave_N).max() <= 1.0
            assert supervision["speaker"] == source.parent.name
            assert supervision["custom"] == {"synthetic": True}
    assert json.loads((spoken / "report.json").read_text())["synthetic"] is True


def test_demo_voices_and_texts_are_audible():
    def speak(voice: str, text: str) -> np.ndarray:
        return synthesis._speak(synthesis.Line(text, voice, 280, 50, 50, (0.03, 0.03), -24.0))[0]

    def pitch(wave_N: np.ndarray) -> float:
        autocorrelation = np.correlate(wave_N, wave_N, "full")[len(wave_N) - 1 :]
        return 22050 / (60 + autocorrelation[60:330].argmax())

    assert pitch(speak("f2", "妈")) > 1.3 * pitch(speak("m3", "妈"))
    assert len(speak("f2", "请打开客厅的灯")) > 2 * len(speak("f2", "打开"))


def test_demo_test_split_is_unseen():
    lines = demo.script({"test": 400, "dev": 200, "train": 3000}, seed=1)
    texts = {split: {line.text for line in some} for split, some in lines.items()}
    voices = {split: {line.voice for line in some} for split, some in lines.items()}
    assert {split: len(some) for split, some in texts.items()} == {
        "test": 400, "dev": 200, "train": 3000,
    }  # fmt: skip
    for one, other in (("test", "train"), ("dev", "train"), ("test", "dev")):
        assert not texts[one] & texts[other]
        assert not voices[one] & voices[other]
    assert len(voices["train"]) >= 20
    count = {c: sum(text.count(c) for text in texts["train"]) for c in set("".join(texts["train"]))}
    assert 105 <= len(count) <= 125 and min(count.values()) >= 20
    assert set("".join(texts["test"])) <= set(count)
    assert all(4 <= len(text) <= 14 for some in texts.values() for text in some)


def test_demo_seed_changes_the_sentences():
    one, other = (demo.script({"train": 50}, seed)["train"] for seed in (1, 2))
    assert {line.text for line in one} != {line.text for line in other}


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "一"), (10, "十"), (12, "十二"), (20, "二十"), (59, "五十九"), (100, "一百"),
     (105, "一百零五"), (110, "一百一十"), (119, "一百一十九"), (999, "九百九十九")],
)  # fmt: skip
def test_numbers_are_written_as_spoken(number, text):
    assert demo._hanzi(number) == text


# --- bad recordings -------------------------------------------------------------------------


def bad_files(folder: Path) -> dict[str, Path]:
    whole = tone(folder / "whole.wav", 1.0).read_bytes()
    contents = {
        "zero_bytes": b"",
        "cut": whole[:9000],
        "header_only": whole[:44],
        "text": b"this is no audio at all\n" * 9,
    }
    paths = {name: folder / f"{name}.wav" for name in contents}
    for name, content in contents.items():
        paths[name].write_bytes(content)
    paths["flac_cut"] = folder / "flac_cut.flac"
    sf.write(paths["flac_cut"], np.random.default_rng(0).normal(0, 0.1, 32000), 16000)
    paths["flac_cut"].write_bytes(paths["flac_cut"].read_bytes()[:20000])
    paths["no_samples"] = folder / "no_samples.wav"
    sf.write(paths["no_samples"], np.zeros(0), 16000)
    paths["nan"] = folder / "nan.wav"
    sf.write(paths["nan"], np.array([0.1, np.nan, 0.1]), 16000, subtype="FLOAT")
    paths["folder"] = folder
    return paths


def test_bad_recordings_are_left_out_counted_and_listed(tmp_path):
    bad = bad_files(tmp_path / "in")
    good = tmp_path / "in" / "whole.wav"
    odd = tmp_path / "in" / "odd.wav"
    sf.write(odd, np.zeros((1, 2)), 44100, subtype="PCM_24")
    gbk = Path(os.fsdecode(bytes(tmp_path) + b"/in/\xc4\xe3.wav"))
    shutil.copy(good, gbk)
    utterances = [
        Utterance("good", good, "你 好", "A"),
        Utterance("gbk", gbk, "你好", "A"),
        *(Utterance(name, path, "你好", "A") for name, path in bad.items()),
        Utterance("odd", odd, "好", "B"),
        Utterance("good", good, "你好", "A"),
        Utterance("wordless", good, " \t", "A"),
        Utterance("part", good, "好", "C", 0.25, 0.5),
        Utterance("outside", good, "好", "C", 0.75, 0.5),
    ]
    report = write_corpus({"train": utterances}, tmp_path / "out", corpus="mine")
    expected = {
        "zero_bytes": "unreadable", "text": "unreadable", "cut": "truncated",
        "header_only": "truncated", "flac_cut": "truncated", "no_samples": "no_samples",
        "nan": "not_finite", "folder": "missing", "good": "duplicate_id",
        "wordless": "empty_transcript", "outside": "outside_recording",
        "gbk": "undecodable_name",
    }  # fmt: skip
    assert left_out(tmp_path / "out") == {(k, "train", v) for k, v in expected.items()}
    train = report.splits["train"]
    assert train.left_out["truncated"] == 3 and sum(train.left_out.values()) == len(expected)
    assert (train.utterances, train.speakers, train.characters) == (3, 3, 2)
    assert train.hours * 3600 == pytest.approx(1.0 + 1 / 44100 + 0.5)
    kept = read_cuts(tmp_path / "out")["train"]
    assert [cut["id"] for cut in kept] == ["good", "odd", "part"]
    assert kept[0]["supervisions"][0]["text"] == "你好"


def test_cuts_load_in_lhotse_with_the_samples_of_the_file(tmp_path):
    from lhotse import CutSet

    path = tone(tmp_path / "a.wav", 1.0)
    part = Utterance("part", path, "好", "A", 0.25, 0.5)
    write_corpus({"train": [part]}, tmp_path / "out", corpus="mine")
    (cut,) = CutSet.from_file(tmp_path / "out" / "train.jsonl.gz")
    np.testing.assert_allclose(cut.load_audio()[0], sf.read(path)[0][4000:12000], atol=1e-6)


def test_a_corpus_of_bad_recordings_only_replaces_nothing(tmp_path):
    good = Utterance("a", tone(tmp_path / "a.wav"), "好", "A")
    bad = Utterance("b", tmp_path / "absent.wav", "好", "A")
    write_corpus({"train": [good]}, tmp_path / "out", corpus="mine")
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    with pytest.raises(DataError, match="missing"):
        write_corpus({"train": [bad]}, tmp_path / "out", corpus="mine")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


# --- AISHELL-1 ------------------------------------------------------------------------------


def pack(tree: Path, archive: Path) -> Path:
    """Make a data_aishell.tgz that holds one archive a speaker, as published."""
    with tarfile.open(archive, "w:gz") as outer:
        outer.add(tree / aishell1.TRANSCRIPT, f"data_aishell/{aishell1.TRANSCRIPT}")
        for speaker in sorted(tree.glob("wav/*/*")):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w:gz") as tar:
                tar.add(speaker, speaker.relative_to(tree / "wav"))
            member = tarfile.TarInfo(f"data_aishell/wav/{speaker.name}.tar.gz")
            member.size = inner.tell()
            inner.seek(0)
            outer.addfile(member, inner)
    return archive


def test_aishell_tree_archive_and_half_extracted_tree_give_the_same(tmp_path):
    tree = make_tree(tmp_path / "corpus")
    archive = pack(tree, tmp_path / "data_aishell.tgz")
    half = tmp_path / "half" / "data_aishell"
    with tarfile.open(archive) as tar:
        tar.extractall(half.parent, filter="data")
    shutil.copytree(tree / "wav" / "train" / "S0003", half / "wav" / "train" / "S0003")

    reports = {}
    # The last extracts the inner archives into the corpus itself.
    corpora = {"tree": tree, "parent": tree.parent, "tgz": archive, "apart": half, "half": half}
    for name, corpus in corpora.items():
        reports[name] = aishell1.prepare(corpus, tmp_path / name)
        assert supervisions(tmp_path / name) == supervisions(tmp_path / "tree")
        assert reports[name] == reports["tree"]
    (line,) = supervisions(tmp_path / "tree")["test"]
    assert line[:3] == ("BAC009S0764W0001", "今天第五句ab", "S0764")
    assert reports["tree"].left_out == {"no_transcript": 1, "no_recording": 1}
    assert {s: (r.utterances, r.speakers) for s, r in reports["tree"].splits.items()} == {
        "train": (3, 2), "dev": (1, 1), "test": (1, 1),
    }  # fmt: skip


def test_aishell_transcript_errors_are_counted(tmp_path):
    tree = make_tree(tmp_path)
    keys = list(TEXTS)
    content = [
        f"{keys[0]} 你好".encode(),
        f"{keys[0]} 再见".encode(),
        f"{keys[1]}".encode(),
        f"{keys[2]} 你好".encode("gbk"),
        *(f"{key} 好".encode() for key in keys[3:]),
    ]
    (tree / aishell1.TRANSCRIPT).write_bytes(b"\n".join(content))
    tone(tree / "wav/train/S0003" / f"{keys[0]}.wav")
    report = aishell1.prepare(tree, tmp_path / "out")
    assert left_out(tmp_path / "out") == {
        (keys[0], "", "duplicate_line"), (keys[0], "train", "duplicate_id"),
        (keys[1], "train", "empty_transcript"), (keys[2], "train", "undecodable_transcript"),
        ("BAC009S0724W0009", "dev", "no_transcript"),
    }  # fmt: skip
    assert "aishell_transcript_v0.8.txt:4\t" in (tmp_path / "out/left_out.tsv").read_text()
    assert {text for _, text, _, _ in supervisions(tmp_path / "out")["train"]} == {"你好"}
    assert report.splits["train"].utterances == 1


def test_aishell_extraction_resumes_where_it_was_cut(tmp_path):
    tree, rng = make_tree(tmp_path / "corpus"), np.random.default_rng(0)
    for path in tree.glob("wav/*/*/*.wav"):  # noise, so that the archive outgrows all read-ahead
        sf.write(path, rng.uniform(-0.5, 0.5, 32_000), 16000, subtype="PCM_16")
    archive = pack(tree, tmp_path / "whole.tgz")
    content, out = archive.read_bytes(), tmp_path / "out"
    size = len(content)
    archive.write_bytes(content[: size * 2 // 3] + bytes(size - size * 2 // 3))
    with pytest.raises(DataError, match=r"whole\.tgz.*again"):
        aishell1.prepare(archive, out)
    kept = {path: path.stat().st_mtime_ns for path in out.rglob("*.wav")}
    archive.write_bytes(content)
    aishell1.prepare(archive, out)
    assert kept and {path: path.stat().st_mtime_ns for path in kept} == kept
    aishell1.prepare(tmp_path / "corpus", tmp_path / "tree")
    assert supervisions(out) == supervisions(tmp_path / "tree")
    # A finished extraction does not need the archive's content again.
    archive.write_bytes(bytes(size))
    aishell1.prepare(archive, out)
    assert supervisions(out) == supervisions(tmp_path / "tree")


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "hostile",
    [
        member("train/../../../../../escaped.wav"),
        member("/tmp/lrt_asr_escaped.wav"),
        member("train/S0002/a.wav", tarfile.SYMTYPE, "/etc/passwd"),
        member("train/S0002/a.wav", tarfile.LNKTYPE, "../../../secret"),
        member("train/S0002/a.wav", tarfile.CHRTYPE),
        member("train/S0002/a.wav", tarfile.FIFOTYPE),
    ],
    ids=["dots", "absolute", "symlink", "hardlink", "device", "fifo"],
)
def test_hostile_archive_is_refused_by_name(tmp_path, hostile):
    tree = make_tree(tmp_path / "corpus")
    speaker = tree / "wav" / "S0900.tar.gz"
    with tarfile.open(speaker, "w:gz") as tar:
        tar.addfile(hostile)
    with pytest.raises(DataError, match=r"S0900\.tar\.gz") as caught:
        aishell1.prepare(tree, tmp_path / "out")
    assert repr(hostile.name) in str(caught.value)
    assert not list(tmp_path.rglob("escaped.wav"))
    assert not Path("/tmp/lrt_asr_escaped.wav").exists()
    assert not [p for p in (tmp_path / "out").rglob("*") if p.is_symlink() or p.suffix == ".wav"]


def test_aishell_archive_of_too_many_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(aishell1, "MAX_MEMBERS", 3)
    archive = pack(make_tree(tmp_path / "corpus"), tmp_path / "data_aishell.tgz")
    with pytest.raises(DataError, match="holds more than 3 files"):
        aishell1.prepare(archive, tmp_path / "out")


def test_aishell_names_differ_in_case_only(tmp_path, capsys):
    tree = make_tree(tmp_path)
    first, second, *_ = TEXTS
    folder = tree / "wav/train/S0002"
    (folder / f"{first}.wav").rename(folder / f"{first.lower()}.WAV")
    shutil.copy(folder / f"{second}.wav", folder / f"{second}.Wav")
    report = aishell1.prepare(tree, tmp_path / "out")
    assert left_out(tmp_path / "out") >= {(second, "train", "duplicate_id")}
    assert {key for key, *_ in supervisions(tmp_path / "out")["train"]} >= {first, second}
    assert report.splits["train"].utterances == 3
    assert "train utterances: 3, published 120,098; warning" in capsys.readouterr().err


def test_aishell_elsewhere_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match=r"is not AISHELL-1: give the folder"):
        aishell1.prepare(tmp_path, tmp_path / "out")
