"""`asr pseudo-label`: what a model is sure of is kept, in a manifest that trains; nothing else."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import jiwer
import numpy as np
import pytest
import soundfile as sf
import torch
from lhotse import CutSet

import asr
from asr.audio.segmentation import split_at_silence
from asr.cli.pseudo_label import _expected
from asr.config import Config, load_config
from asr.data.manifest import load_cuts, load_training_cuts, read_wave, text_of
from asr.errors import ConfigError, DataError
from asr.evaluation.agreement import (
    DevGuesses,
    Expected,
    Guess,
    Kept,
    Limits,
    expect,
    guess_dev,
    views,
)
from asr.transcription.chunks import at_speed
from data_prep.corpus_writer import write_corpus
from data_prep.cuts import Utterance
from data_prep.pseudo_label import Labels
from tests.helpers import RATE, copied, encode, run_cli, say, speak, tones_recipe, write_recipe

SAID = {"a/one": "二", "a/two": "三四", "b/one": "二一", "b/a long one": "四三"}
OTHER_AT_ANOTHER_SPEED = "五"  # the highest of the tones is between two when played slower
LIMITS = Limits(confidence=0.8, disagreement=0.0)
FILES = ("train.jsonl.gz", "left_out.tsv", "report.json", "expected.json")


@pytest.fixture(scope="session")
def takes(once, tones: Path) -> Path:
    """Recordings without text: speech, two silences, noise, a damaged file, one of each split."""

    def fill(folder: Path) -> None:
        for i, (name, text) in enumerate(SAID.items()):
            (folder / name).parent.mkdir(exist_ok=True)
            sf.write(folder / f"{name}.wav", speak(text, 700 + i), RATE)
        sf.write(folder / "five.wav", speak(OTHER_AT_ANOTHER_SPEED), RATE)
        for name, level in (("digital", 0.0), ("offset", 0.1)):
            sf.write(folder / f"{name} silence.wav", np.full(RATE, level), RATE)
        for i, level in enumerate((0.003, 0.03, 0.1, 0.3)):  # without hum, which is a tone
            wave = np.random.default_rng(i).normal(0, level, RATE)
            sf.write(folder / f"noise{i}.wav", wave, RATE)
        (folder / "damaged.wav").write_bytes(b"RIFF and nothing else")
        for split in ("dev", "train", "test"):
            (folder / f"of_{split}.wav").symlink_to(tones / f"wav/{split}0.wav")

    return once("takes_without_text", fill)


def command(bundle: Path, takes: Path, out: Path, dev: Path) -> list[str]:
    return ["pseudo-label", str(bundle), str(takes), str(out), "--dev", str(dev)]


@pytest.fixture(scope="session")
def labels(once, learned: Path, takes: Path, tones: Path) -> Path:
    """A folder of labels, and what was printed in `shown` beside it."""

    def fill(folder: Path) -> None:
        done = run_cli(*command(learned, takes, folder / "labels", tones / "dev.jsonl.gz"))
        assert done.returncode == 0, done.stderr
        (folder / "shown").write_text(done.stdout + done.stderr, "utf-8")

    return once("labels", fill) / "labels"


CONFIDENCES = ((0.99, 0.0), (0.5, 0.5))


def reasons(folder: Path) -> dict[str, str]:
    lines = (folder / "left_out.tsv").read_text("utf-8").splitlines()[1:]
    return {line.split("\t")[0].removeprefix("pseudo-"): line.split("\t")[3] for line in lines}


def test_what_is_sure_is_kept_and_all_else_has_a_reason(labels: Path, takes: Path) -> None:
    cuts = {cut.id.removeprefix("pseudo-"): cut for cut in load_cuts(labels / "train.jsonl.gz")}
    wanted = {name.replace("/", "_").replace(" ", "_"): text for name, text in SAID.items()}
    assert {id: text_of(cut) for id, cut in cuts.items()} == wanted
    for cut in cuts.values():
        assert 0.8 <= cut.supervisions[0].custom["confidence"] <= 1
    why = reasons(labels)
    assert why.pop("digital_silence") == why.pop("offset_silence") == "no_speech"
    assert why.pop("damaged") == "unsupported_media"
    assert why.pop("of_train") == why.pop("of_test") == "has_text"
    assert why.pop("of_dev") == "in_dev" and why.pop("five") == "disagreement"
    assert why.keys() == {f"noise{i}" for i in range(4)}
    assert set(why.values()) <= {"low_confidence", "disagreement", "no_speech"}
    shown = (labels.parent / "shown").read_text("utf-8")
    assert "may take noise for words" in shown, "it was trained without pauses"
    assert "damaged.wav" in shown and "CER 0.00% of 8 utterances; the limits keep" in shown
    hours = sum(cut.duration for cut in cuts.values()) / 3600
    assert f"kept {hours:.2f} of " in shown and "--confidence  kept" in shown
    expected = json.loads((labels / "expected.json").read_text("utf-8"))
    assert expected["chosen"]["cer"] == 0.0 and 0 < expected["chosen"]["share"] < 1


@pytest.mark.costly
@pytest.mark.drawn(1)
@pytest.mark.parametrize("n_before", [12, None], ids=["decoding", "writing"])
def test_what_kill_9_ends_continues_to_the_same_bytes(
    labels: Path, learned: Path, takes: Path, tones: Path, tmp_path: Path, n_before: int | None
) -> None:
    place = "data_prep.corpus_writer._write_left_out"
    if n_before is not None:
        place = "asr.transcription.batch.write_transcript"
    code = f"""import importlib, os, signal
module, _, name = {place!r}.rpartition(".")
module = importlib.import_module(module)
real, left = getattr(module, name), {n_before or 0}
def killing(*args):
    global left
    left -= 1
    return real(*args) if left >= 0 else os.kill(os.getpid(), signal.SIGKILL)
setattr(module, name, killing)
from asr.cli import main
main()"""
    out = tmp_path / "labels"
    arguments = command(learned, takes, out, tones / "dev.jsonl.gz")
    killed = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (out / "train.jsonl.gz").exists()
    done = {path: path.stat().st_mtime_ns for path in (out / "decoded").rglob("*.json")}
    assert len(done) == (n_before or 22)
    again = run_cli(*arguments)
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert not list(out.glob(".partial-*"))
    for name in FILES:
        assert (out / name).read_bytes() == (labels / name).read_bytes(), name


@pytest.mark.costly
def test_processes_that_share_the_work_label_alike(
    labels: Path, learned: Path, takes: Path, tones: Path, tmp_path: Path
) -> None:
    given = command(learned, takes, tmp_path / "two", tones / "dev.jsonl.gz")
    done = run_cli(*given, "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert reasons(tmp_path / "two") == reasons(labels)


def test_limits_that_are_given_precede_those_of_dev(
    learned: Path, takes: Path, tones: Path, tmp_path: Path
) -> None:
    given = command(learned, takes, tmp_path / "all", tones / "dev.jsonl.gz")
    done = run_cli(*given, "--confidence", "0", "--disagreement", "9")
    assert done.returncode == 0, done.stderr
    assert not {"low_confidence", "disagreement"} & set(reasons(tmp_path / "all").values())


def test_long_recordings_become_parts_and_foreign_formats_flac(
    learned: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    wave, _ = say(24, 5)
    sf.write(tmp_path / "in/long.wav", wave, RATE)
    encode(tmp_path / "in/tone.webm", seconds=0.5)
    made = Labels(learned, [str(tmp_path / "in")], tmp_path / "out")
    for view in made.views:
        assert not list(made.decode(view, "cpu", 1, lambda _: None))
    with pytest.raises(DataError, match=r"none of the .* can be used .*lower --confidence"):
        made.write(Limits(confidence=1.0, disagreement=0))
    _, hours = made.write(Limits(confidence=0, disagreement=9))
    assert hours == pytest.approx((len(wave) / RATE + 0.5) / 3600, rel=0.05)
    assert not any(made.todo(view) for view in made.views), "other limits decode nothing again"
    cuts = load_cuts(tmp_path / "out/train.jsonl.gz")
    parts = sorted((cut for cut in cuts if "long" in cut.id), key=lambda cut: cut.start)
    assert len(parts) > 4 and max(cut.duration for cut in parts) <= 1.0 + 1e-6
    for one, other in pairwise(parts):
        assert one.end == pytest.approx(other.start)
    assert sum(len(read_wave(cut, RATE)) for cut in parts) == pytest.approx(len(wave), rel=0.01)
    (foreign,) = (cut for cut in cuts if "tone" in cut.id)
    assert foreign.recording.sources[0].source == str(tmp_path / "out/audio/pseudo-tone.flac")
    assert len(read_wave(foreign, RATE)) == pytest.approx(RATE // 2, rel=0.1)
    encode(tmp_path / "in/other.webm", seconds=0.5)
    as_dev = Labels(learned, [str(tmp_path / "in")], tmp_path / "others", cuts)
    of_tone = {tmp_path / "in/tone.webm", tmp_path / "out/audio/pseudo-tone.flac"}
    assert as_dev.dev_files == {tmp_path / "in/long.wav", *of_tone}
    for view in as_dev.views:
        assert [task.path.name for task in as_dev.todo(view)] == ["other.webm"]


def test_copies_of_dev_and_test_are_not_labeled_either(tiny_bundle: Path, tmp_path: Path) -> None:
    """`asr prepare` writes the FLAC that a manifest reads, and the original may be elsewhere."""
    sets = {}
    for name in ("dev", "test", "other"):
        copy = tmp_path / f"audio/{name}.m4a.flac"
        copy.parent.mkdir(exist_ok=True)
        sf.write(copy, speak("一"), RATE)
        sets[name] = [Utterance(name, copy, "一", "", converted_from=tmp_path / f"{name}.m4a")]
    write_corpus(sets, tmp_path / "data", corpus="mine")
    dev, test = (load_cuts(tmp_path / f"data/{name}.jsonl.gz") for name in ("dev", "test"))
    made = Labels(tiny_bundle, [str(tmp_path / "audio")], tmp_path / "out", dev, [test])
    for view in made.views:
        assert [task.path.name for task in made.todo(view)] == ["other.m4a.flac"]
    assert {tmp_path / "dev.m4a", tmp_path / "audio/dev.m4a.flac"} == made.dev_files


def test_what_is_recorded_again_is_decoded_again_and_own_copies_never(
    learned: Path, tmp_path: Path
) -> None:
    encode(tmp_path / "tone.webm", seconds=0.5)
    made = Labels(learned, [str(tmp_path)], tmp_path / "labels")
    for view in made.views:
        assert not list(made.decode(view, "cpu", 1, lambda _: None))
    made.write(Limits(confidence=0, disagreement=9))
    assert (tmp_path / "labels/audio/pseudo-tone.flac").exists()
    again = Labels(learned, [str(tmp_path)], tmp_path / "labels")
    assert [one.recording for one, _ in again.tasks] == [tmp_path / "tone.webm"]
    assert not any(again.todo(view) for view in again.views)
    later = time.time() + 60
    os.utime(tmp_path / "tone.webm", (later, later))
    assert all(len(again.todo(view)) == 1 for view in again.views)


def test_recordings_that_change_their_names_keep_their_texts(learned: Path, tmp_path: Path) -> None:
    """`mv` changes no time: a decoding is of a file, not of whatever has its name later."""
    folder = tmp_path / "in"
    folder.mkdir()

    def decoded() -> dict[str, str]:
        made = Labels(learned, [str(folder)], tmp_path / "labels")
        for view in made.views:
            assert not list(made.decode(view, "cpu", 1, lambda _: None))
        made.write(Limits(confidence=0, disagreement=9))
        assert not any(made.todo(view) for view in made.views)
        return {cut.id[-1]: text_of(cut) for cut in load_cuts(tmp_path / "labels/train.jsonl.gz")}

    for name, text in {"a": "一", "b": "三四"}.items():
        sf.write(folder / f"{name}.wav", speak(text, 700), RATE)
    assert decoded() == {"a": "一", "b": "三四"}
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        (folder / f"{old}.wav").rename(folder / f"{new}.wav")
    assert decoded() == {"a": "三四", "b": "一"}
    for state in (tmp_path / "labels/decoded").rglob("*.stat"):  # which an older version had not
        state.unlink()
    again = Labels(learned, [str(folder)], tmp_path / "labels")
    assert all(len(again.todo(view)) == 2 for view in again.views)


def test_where_nothing_is_left_to_label_nothing_is_decoded(
    learned: Path, tones: Path, tmp_path: Path
) -> None:
    for split in ("dev", "test"):
        (tmp_path / f"{split}.wav").symlink_to(tones / f"wav/{split}0.wav")
    done = run_cli(*command(learned, tmp_path, tmp_path / "out", tones / "dev.jsonl.gz"))
    assert done.returncode == 3 and "decoding dev" not in done.stderr
    assert "all 2 recordings are in dev or have a text already: give" in done.stderr
    assert not (tmp_path / "out").exists()


def test_decodings_of_other_audio_come_with_advice(learned: Path, tmp_path: Path) -> None:
    sf.write(tmp_path / "a.wav", speak("一"), RATE)
    made = Labels(learned, [str(tmp_path / "a.wav")], tmp_path / "out")
    for view in made.views:
        assert not list(made.decode(view, "cpu", 1, lambda _: None))
    second = tmp_path / "out/decoded/second/a.json"
    second.write_text(json.dumps(json.loads(second.read_text("utf-8")) | {"segments": []}))
    with pytest.raises(DataError, match=r"'changed': 1.*when no other program writes"):
        made.write(LIMITS)


def test_a_long_path_of_a_foreign_format_becomes_flac(learned: Path, tmp_path: Path) -> None:
    encode(tmp_path / "in" / ("x" * 200) / f"{'y' * 100}.webm", seconds=0.5)
    made = Labels(learned, [str(tmp_path / "in")], tmp_path / "out")
    for view in made.views:
        assert not list(made.decode(view, "cpu", 1, lambda _: None))
    made.write(Limits(confidence=0, disagreement=9))
    (copy,) = (tmp_path / "out/audio").iterdir()
    (cut,) = load_cuts(tmp_path / "out/train.jsonl.gz")
    assert cut.recording.sources[0].source == str(copy) and copy.name.endswith("y.flac")
    assert cut.id == f"pseudo-{'x' * 200}_{'y' * 100}"


def test_manifests_may_number_their_utterances_alike(tones: Path, tmp_path: Path) -> None:
    lines = gzip.decompress((tones / "train.jsonl.gz").read_bytes()).decode()
    other = tmp_path / "other.jsonl"
    other.write_text(lines.replace("/wav/", "/elsewhere/"), "utf-8")
    values = tones_recipe(tones, data={"train": [str(tones / "train.jsonl.gz"), str(other)]})
    cuts = load_training_cuts(Config.model_validate(values).data)
    assert len(cuts) == len({cut.id for cut in cuts}) == 240
    assert sum("/elsewhere/" in cut.recording.sources[0].source for cut in cuts) == 120


def test_labels_train_beside_the_real_texts(labels: Path, tones: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", tones_recipe(tones))
    both = [str(tones / "train.jsonl.gz"), str(labels / "train.jsonl.gz")]
    config = load_config(recipe, [f"data.train={json.dumps(both)}"])
    assert len(load_training_cuts(config.data)) == 120 + len(SAID)
    twice = load_config(recipe, [f"data.train={json.dumps([both[1], both[1]])}"])
    with pytest.raises(DataError, match=r"train\.jsonl\.gz.* hold pseudo-.* more than once"):
        load_training_cuts(twice.data)


def test_mistakes_are_sentences(labels: Path, learned: Path, takes: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(labels, tmp_path / "labels"))
    other = copied(learned, tmp_path / "other", decoding__beam_size=2)
    with pytest.raises(ConfigError, match="with other weights, another language model"):
        Labels(other, [str(takes)], folder)
    with pytest.raises(ConfigError, match="holds other files: give a new folder"):
        Labels(learned, [str(takes / "a")], takes / "b")
    with pytest.raises(ConfigError, match="- is read once"):
        Labels(learned, ["-"], tmp_path / "new")
    with pytest.raises(DataError, match="no recording in this folder"):
        Labels(learned, [str(other)], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    damaged = next((folder / "decoded/second").rglob("two.json"))
    damaged.write_text("{}")
    with pytest.raises(DataError, match=r"second/a/two\.json: is no decoding"):
        Labels(learned, [str(takes)], folder).write(LIMITS)


def test_another_language_model_needs_another_folder_another_place_of_it_none(
    learned: Path, takes: Path, tmp_path: Path
) -> None:
    bundle = copied(learned, tmp_path / "a", decoding__lm="lm.arpa", decoding__lm_weight=0.3)
    (bundle / "lm.arpa").write_text("one")
    Labels(bundle, [str(takes)], tmp_path / "labels")
    moved = bundle.rename(tmp_path / "b")
    Labels(moved, [str(takes)], tmp_path / "labels")
    (moved / "lm.arpa").write_text("two")
    with pytest.raises(ConfigError, match="another language model"):
        Labels(moved, [str(takes)], tmp_path / "labels")


@pytest.mark.parametrize(
    ("guess", "fault"),
    [
        (Guess("", "", 1.0, True), "no_speech"),
        (Guess("", "一", 1.0, True), "no_speech"),
        (Guess("一二", "一二", 0.9, False), "endless_text"),
        (Guess("一二", "一二", 0.4, True), "low_confidence"),
        (Guess("一二", "一三", 0.9, True), "disagreement"),
        (Guess("一二", "", 0.9, True), "disagreement"),
        (Guess("一二三四五", "一二三四", 0.9, True), None),
    ],
)
def test_a_guess_needs_confidence_and_agreement(guess: Guess, fault: str | None) -> None:
    assert guess.fault(Limits(confidence=0.5, disagreement=0.2)) == fault


def test_a_model_that_writes_sounds_labels_by_characters(tiny_bundle: Path) -> None:
    config = load_config(tiny_bundle / "config.yaml")
    sounds = config.decoding.model_copy(update={"method": "ctc_sounds"})
    for model, methods in (
        (config, (None, "ctc_greedy")),
        (config.model_copy(update={"decoding": sounds}), ("ctc_greedy", "ctc_greedy")),
    ):
        assert tuple(view.changes.get("method") for view in views(model)) == methods


@pytest.mark.parametrize("length", [11, 12, 20, 40])
def test_a_short_attention_takes_both_decodings(tiny_bundle: Path, length: int) -> None:
    """Of 0.44 s, where 0.4 is the shortest chunk, and more; the second decoding is slower."""
    attention = {"kind": "linformer", "rank": 3, "length": length}
    sets = [f"model.encoder.attention={json.dumps(attention)}"]
    config = load_config(tiny_bundle / "config.yaml", sets)
    first, second = (config.decoding.changed(view.changes) for view in views(config))
    speed, rate = views(config)[1].speed, config.features.sample_rate
    assert first.chunk_seconds == second.chunk_seconds and 0.9 <= speed < 1
    assert speed == 0.9 or length == 11
    (chunk, *_) = split_at_silence([np.ones(rate, "float32")], rate, first.chunk_seconds)
    longest = torch.ones(int(first.chunk_seconds * rate))
    assert len(chunk) <= len(longest)
    frames = config.features.n_frames(len(at_speed(longest, rate, speed)))
    assert config.model.frontend.steps(frames) <= length


def test_limits_that_keep_nothing_promise_no_cer(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Kept(limits=Limits(confidence=c, disagreement=0.0), share=share, cer=0.0)
        for c, share in CONFIDENCES
    ]
    found = Expected(utterances=8, cer=0.2, chosen=rows[0], others=tuple(rows))
    monkeypatch.setattr("asr.evaluation.agreement.expect", lambda *_: found)
    labels = SimpleNamespace(read_guesses=lambda _: (), write_expected=lambda _: None)
    shown = _expected(labels, CutSet(), rows[0].limits, "cpu")
    assert "the limits keep none of them: give a lower --confidence" in shown
    cells = [line.split() for line in shown.splitlines()[-2:]]
    assert cells == [["0.99", "0%", "-"], ["0.5", "50%", "0.00%"]]


def test_texts_with_words_have_a_wer_of_what_is_kept() -> None:
    texts = ["ONE TWO THREE", "FOUR FIVE", "SIX SEVEN"]
    guessed = [("ONE TOO THREE", 0.9), ("FOUR FIVE", 0.95), ("SIX", 0.4)]
    found = [
        (text, Guess(guess, guess, confidence, is_whole=True))
        for text, (guess, confidence) in zip(texts, guessed, strict=True)
    ]
    guesses = DevGuesses(dev="", found=tuple(found))
    expected = expect(guesses, LIMITS)
    assert expected.wer == jiwer.wer(texts, [guess for guess, _ in guessed])
    assert expected.chosen.wer == jiwer.wer(texts[:2], [guess for guess, _ in guessed[:2]])
    assert expected.chosen.cer == jiwer.cer(texts[:2], [guess for guess, _ in guessed[:2]])
    labels = SimpleNamespace(read_guesses=lambda _: guesses, write_expected=lambda _: None)
    shown = _expected(labels, CutSet(), LIMITS, "cpu")
    assert (
        "WER 28.57% of 3 utterances; the limits keep 67% of them, with CER 4.55%, WER 20.00%"
        in (shown)
    )
    table = [line.split() for line in shown.splitlines()[2:]]
    assert table[0] == ["--confidence", "kept", "CER", "WER"]
    assert table[2] == ["0", "100%", "22.58%", "28.57%"]
    sure = Limits(confidence=0.99, disagreement=0.0)
    assert expect(guesses, sure).chosen.wer is None and "none of them" in _expected(
        labels, CutSet(), sure, "cpu"
    )
    without = DevGuesses(dev="", found=(("一二", found[0][1]), ("五", found[1][1])))
    assert "wer" not in expect(without, LIMITS).model_dump_json()


def test_texts_of_dev_are_compared_as_the_model_writes_them(learned: Path, tones: Path) -> None:
    spaced = load_cuts(tones / "dev.jsonl.gz").map_supervisions(
        lambda supervision: replace(supervision, text=" ".join(supervision.text or ""))
    )
    found = guess_dev(asr.load(learned, "cpu"), spaced.to_eager())
    assert expect(found, LIMITS).cer == 0.0 and len(found.found) == 8
    turkish = Guess("kadın", "kadin", 1.0, is_whole=True)  # one in upper case
    assert turkish.fault(LIMITS) == "disagreement"


def test_recordings_of_alike_names_keep_their_own_texts(learned: Path, tmp_path: Path) -> None:
    names = ["a/x", "a_x", "b c", "b_c"]
    for i, name in enumerate(names):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        sf.write(tmp_path / "in" / f"{name}.wav", speak("一二"[i % 2], i), RATE)
    labels = Labels(learned, [str(tmp_path / "in")], tmp_path / "out")
    wholes = [labels._whole(first) for first, _ in labels.tasks]
    assert len({one.id for one in wholes}) == len(names) == len({one.path for one in wholes})
    again = Labels(learned, [str(tmp_path / "in")], tmp_path / "out")
    assert [again._whole(first) for first, _ in again.tasks] == wholes


def test_a_device_that_is_not_there_leaves_nothing(learned: Path, tmp_path: Path) -> None:
    sf.write(tmp_path / "a.wav", speak("一"), RATE)
    done = run_cli("pseudo-label", str(learned), str(tmp_path / "a.wav"), str(tmp_path / "out"),
                   "--device", "cuda:77")  # fmt: skip
    assert done.returncode and "cuda" in done.stderr and not (tmp_path / "out").exists()
