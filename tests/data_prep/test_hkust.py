"""HKUST's layout becomes cuts of one side of a call, and what cannot be used is listed."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from asr.data.manifest import load_cuts, read_wave
from asr.errors import AudioError, DataError
from data_prep import hkust, probe
from tests.helpers import run_cli

RATE = 8000
CALLS = {
    "train": ["20040503_101010_A000001_B000002", "20040504_101010_A000003_B000004"],
    "dev": ["20040505_101010_A000005_B000006"],
}
LINES = [
    "3.25 4.5 B: 我们 {breath} 明天去,",
    "0.5 1.25 A: <foreign language=\"English\"> ok </foreign> 好-.",
    "1.004 2.006 B: %嗯 ((大概))",
]  # fmt: skip
PITCH = {"A": 440, "B": 1000}


def speech(seconds: float = 6.0) -> np.ndarray:
    t = np.arange(int(seconds * RATE)) / RATE
    return np.stack([0.5 * np.sin(2 * np.pi * pitch * t) for pitch in PITCH.values()], axis=1)


def write_call(
    root: Path, split: str, call: str, lines: list[str] | bytes, coding: str = "ALAW",
    sides: np.ndarray | None = None,
) -> tuple[Path, Path]:  # fmt: skip
    """A call as the LDC's two releases have it, in folders whose letters' case they vary."""
    sound = root / "LDC2005S15/hkust/DATA/Audio" / split / f"{call}.sph"
    text = root / "LDC2005T32/hkust/data/trans" / split.capitalize() / f"{call.lower()}.TXT"
    for path in (sound, text):
        path.parent.mkdir(parents=True, exist_ok=True)
    sf.write(sound, speech() if sides is None else sides, RATE, format="NIST", subtype=coding)
    content = lines if isinstance(lines, bytes) else "\n\n".join(lines).encode("gbk")
    text.write_bytes(f"# {call}\n\n".encode() + content)
    return sound, text


def write_corpus(root: Path, coding: str = "ALAW") -> Path:
    for split, calls in CALLS.items():
        for call in calls:
            write_call(root, split, call, LINES, coding)
    return root


def left_out(out: Path) -> dict[str, tuple[str, str]]:
    lines = (out / "left_out.tsv").read_text("utf-8").splitlines()[1:]
    return {key: (reason, path) for key, _, path, reason in (line.split("\t") for line in lines)}


@pytest.mark.parametrize("coding", ["ALAW", "ULAW"])
def test_cuts_are_one_side_of_a_call(tmp_path: Path, coding: str) -> None:
    report = hkust.prepare(write_corpus(tmp_path, coding), tmp_path / "out", jobs=1)
    assert {name: split.utterances for name, split in report.splits.items()} == {
        "train": 5, "dev": 1, "test": 3,
    }  # fmt: skip
    assert report.left_out == {}
    cuts = list(load_cuts(tmp_path / "out" / "test.jsonl.gz"))
    (call,) = CALLS["dev"]
    # As `printf "%06.0f" 100*t+0.5` of other recipes has it, a half rounded to even.
    assert [(c.id, c.supervisions[0].text, c.supervisions[0].speaker) for c in cuts] == [
        (f"{call}-A-000050-000126", "OK好", f"{call}-A"),
        (f"{call}-B-000101-000201", "嗯大概", f"{call}-B"),
        (f"{call}-B-000326-000450", "我们明天去", f"{call}-B"),
    ]
    assert [(c.start, c.end) for c in cuts] == [(0.5, 1.25), (1.004, 2.006), (3.25, 4.5)]
    for cut in cuts:
        side = cut.supervisions[0].speaker[-1]
        wave_N = read_wave(cut, RATE).numpy()
        assert len(wave_N) == pytest.approx(cut.duration * RATE, abs=1)
        loudest = np.abs(np.fft.rfft(wave_N)).argmax() * RATE / len(wave_N)
        assert loudest == pytest.approx(PITCH[side], abs=2)
        whole = sf.read(cut.recording.sources[0].source, dtype="float32")[0]
        first = round(cut.start * RATE)
        np.testing.assert_array_equal(wave_N, whole[first : first + len(wave_N), "AB".index(side)])


@pytest.mark.parametrize(
    ("rule", "line", "expected"),
    [
        (1, '好<foreign language="English">ok go</foreign>', "好 ok go</foreign>"),
        (2, "ok</foreign>好", "ok 好"),
        (3, "a <noise>b</noise> c <noise>d</noise>", "a b</noise> c <noise>d"),
        (4, "a ((b c)) (()) d", "a b c  d"),
        (5, "{breath} a {cough}b <noise> {sneeze} {lipsmack} {laugh}", " a {cough}b    "),
        (6, "a, b-- c.?+ 好，", "a b c 好，"),
        (7, "~A %嗯 100% a~", "A 嗯 100% a~"),
        (8, "{unknown tag}a[noise]b[好]<x>", " a b[好] "),
        (9, "好，。“a”·…[好] don't 'a' a_b", "好a好 don't a ab"),
    ],
)
def test_each_rule_of_normalization(rule: int, line: str, expected: str) -> None:
    pattern, replacement = hkust.RULES[rule - 1]
    assert pattern.sub(replacement, line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('我 说 <foreign language="English"> go on, ok. </foreign> 了', "我说GO ON OK了"),
        ("<noise>你好</noise> 吗?", "你好吗"),
        ("<noise> {breath}", ""),
        ("((%嗯)) 对- 对+", "嗯对对"),
        ("他{laugh}走了</noise>", "他走了"),
        ("ｏｋ，好。", "OK好"),
        (" . ", ""),
    ],
)
def test_normalized_lines_are_the_words(line: str, expected: str) -> None:
    assert hkust.normalize(line) == expected


def test_what_cannot_be_used_is_counted_with_its_line(tmp_path: Path) -> None:
    root = write_corpus(tmp_path / "in")
    head = "# x\n1.0 2.0 A: 好\n1 2 没有\n5.5 6.5 A: 太晚\n2.001 2.002 A: 短\n2.5 2.1 B: 反\n"
    tail = "3 4 A: {cough}\n3 4.01 A: 一 B: 二\n# 20040509_101010_A1_B2\n4 5 A: 谁\n"
    content = head.encode("gbk") + b"1 2 B: \xc4\xe3\xff\n" + tail.encode("gbk")
    bad = "20040506_101010_A000007_B000008"
    write_call(root, "train", bad, content)
    write_call(root, "train", "20040507_1_A1_B2", ["1 2 A: 左", "1 2 B: 右"],
                         sides=speech()[:, :1])  # fmt: skip
    cut, _ = write_call(root, "dev", "20040508_1_A1_B2", ["1 2 A: 一 B: 二"])
    cut.write_bytes(cut.read_bytes()[:60_000])
    _, removed = write_call(root, "train", "20040510_1_A1_B2", ["1 2 A: 好"])
    removed.unlink()
    again = removed.parent / "copy" / f"{CALLS['train'][0]}.txt"
    again.parent.mkdir()
    again.write_bytes(b"1 2 A: a")
    (root / "LDC2005T32" / "loop").symlink_to(root)
    out = tmp_path / "out"
    report = hkust.prepare(root, out, jobs=1)
    found, name = left_out(out), bad.lower()
    offset = len(f"# {bad}\n\n".encode()) + len(head.encode("gbk")) + 9
    assert {key: reason for key, (reason, _) in found.items()} == {
        f"{bad}:5": "malformed_line", f"{bad}-A-000550-000650": "outside_recording",
        f"{bad}-A-000201-000201": "empty_segment", f"{bad}-B-000250-000210": "empty_segment",
        f"{bad}:9": "undecodable_gbk", f"{bad}-A-000300-000400": "empty_transcript",
        f"{bad}-A-000300-000402": "broken_line", "20040509_101010_A1_B2-A-000400-000500":
        "no_recording", "20040507_1_A1_B2-B-000100-000200": "missing_channel",
        "20040508_1_A1_B2-A-000100-000200": "truncated", "20040510_1_A1_B2": "no_transcript",
        again.stem: "duplicate_file",
    }  # fmt: skip
    assert found[f"{bad}:9"][1].endswith(f"{name}.TXT:9 byte {offset}")
    assert sum(report.left_out.values()) == len(found)
    kept = {c.id for name in report.splits for c in load_cuts(out / f"{name}.jsonl.gz")}
    assert len(kept) == 9 + 2


def test_lines_of_two_segments_stay_in_test_calls(tmp_path: Path) -> None:
    root = write_corpus(tmp_path)
    write_call(root, "dev", CALLS["dev"][0], ["1 2 A: 一 B: 二"])
    hkust.prepare(root, tmp_path / "out", jobs=1)
    (cut,) = load_cuts(tmp_path / "out" / "test.jsonl.gz")
    assert cut.supervisions[0].text == "一B二"


def test_shorten_is_reported_with_its_fix(tmp_path: Path) -> None:
    root = write_corpus(tmp_path)
    for path in root.rglob("*.sph"):
        content = path.read_bytes()
        coding = b"sample_coding -s26 alaw,embedded-shorten-v2.00"
        head = content[:1024].replace(b"sample_coding -s4 alaw", coding)[:1024]
        path.write_bytes(head + content[1024:])
    with pytest.raises(AudioError, match="sph2pipe"):
        probe.probe(next(root.rglob("*.sph")))
    with pytest.raises(DataError, match=r"shorten_compressed.*sph2pipe"):
        hkust.prepare(root, tmp_path / "out", jobs=1)


def test_first_sorted_train_utterances_are_dev(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(hkust, "DEV_UTTERANCES", 2)
    lines = [f"{i}.0 {i}.5 {'BA'[i % 2]}: 好" for i in range(6)]
    for call in CALLS["train"]:
        for repeat in range(2):
            write_call(tmp_path, "train", f"{call}{repeat}", lines)
    write_call(tmp_path, "dev", CALLS["dev"][0], lines)
    hkust.prepare(tmp_path, tmp_path / "out", jobs=1)
    ids = {s: [c.id for c in load_cuts(tmp_path / "out" / f"{s}.jsonl.gz")] for s in
           ("train", "dev")}  # fmt: skip
    every = sorted(f"{call}{r}-{'BA'[i % 2]}-{100 * i:06}-{100 * i + 50:06}".encode()
                   for call in CALLS["train"] for r in range(2) for i in range(6))  # fmt: skip
    assert [key.encode() for key in ids["dev"]] == every[:2]
    assert [key.encode() for key in ids["train"]] == every[2:]


def test_a_call_is_opened_once(tmp_path: Path, monkeypatch) -> None:
    lines = [f"{i / 100} {i / 100 + 0.5} {'AB'[i % 2]}: 好" for i in range(500)]
    write_call(tmp_path, "train", CALLS["train"][0], lines)
    write_call(tmp_path, "dev", CALLS["dev"][0], lines[:1])
    opened, info = [], sf.info
    monkeypatch.setattr(probe.sf, "info", lambda p, **k: opened.append(p) or info(p, **k))
    hkust.prepare(tmp_path, tmp_path / "out", jobs=1)
    # Once a split: the train call's first utterances are dev.
    assert len(opened) == 3


def test_utf8_with_a_mark_and_unreadable_transcripts(tmp_path: Path) -> None:
    root = write_corpus(tmp_path)
    _, text = write_call(root, "dev", CALLS["dev"][0], b"")
    text.write_bytes("\ufeff1 2 A: 你好\r\n".encode())
    hkust.prepare(root, tmp_path / "out", jobs=1)
    (cut,) = load_cuts(tmp_path / "out" / "test.jsonl.gz")
    assert cut.supervisions[0].text == "你好" and cut.id.startswith(text.stem)


@pytest.mark.costly
def test_command_prints_the_self_check_and_what_was_left_out(tmp_path: Path) -> None:
    root = write_corpus(tmp_path)
    (root / "LDC2005T32/hkust/data/trans/Train/extra.txt").write_text("???\n")
    result = run_cli(
        "prepare", "hkust", root, tmp_path / "out", env={**os.environ, "COLUMNS": "99"}
    )
    assert result.returncode == 0, result.stderr
    assert "calls: 3, published 897; warning: they differ" in result.stderr
    assert "test characters: 11, published 56,154; warning" in result.stderr
    assert "too few for a dev set" in result.stderr
    assert "1 malformed_line; listed in" in result.stdout
    assert json.loads((tmp_path / "out" / "report.json").read_text())["corpus"] == "hkust"
    nothing = run_cli("prepare", "hkust", tmp_path / "out", tmp_path / "other")
    assert nothing.returncode == 3 and "is not HKUST" in nothing.stderr
    assert "Traceback" not in nothing.stderr
