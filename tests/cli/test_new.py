"""`asr new`: from a folder of recordings and a table to a model, and on from wherever it was."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
import torch
from safetensors.torch import load_file

import asr
from asr.cli.new import _is_of
from asr.config import Config
from asr.errors import DataError
from asr.export.sherpa import kind_of
from asr.new.card import expectation, read_expectation, write_expectation
from asr.new.measure import CorpusMeasures, SplitSize, measure
from data_prep.table import prepare
from tests.helpers import RATE, TONES, encode, read_card, run_cli, speak, wait_for

# A model as small as can be, in place of the one that would be chosen.
SMALL = [
    "training.epochs=2", "training.checkpoint_steps=2", "data.batch_seconds=8",
    "data.speed_factors=[1.0]", "features.n_mels=20", "model.d_model=32", "model.d_inner=64",
    "model.n_heads=2", "model.projection.rank=8", "model.frontend.channels=[4, 8]",
    "model.encoder.n_layers=1",
]  # fmt: skip


WORDS = dict(zip(TONES, ["One", "Two", "Go", "Left", "Stop"], strict=True))


@pytest.fixture(scope="session")
def takes(once) -> Path:
    """Tones of four speakers, and a table of them: a folder with `takes` and `t.csv`."""

    def fill(folder: Path) -> None:
        rng, rows = np.random.default_rng(1), ["file,text,speaker"]
        for i in range(80):
            text, who = "".join(rng.choice(list(TONES), size=rng.integers(1, 5))), "abcd"[i % 4]
            (folder / "takes" / who).mkdir(parents=True, exist_ok=True)
            sf.write(folder / "takes" / who / f"{i}.wav", speak(text, i), RATE, subtype="PCM_16")
            rows.append(f"{who}/{i}.wav,{text},{who}")
        (folder / "t.csv").write_text("\n".join(rows) + "\n", "utf-8")

    return once("takes", fill)


def command(root: Path, folder: Path, *options: str, small: list[str] = SMALL) -> list[str]:
    sets = [option for value in small for option in ("--set", value)]
    sources = ["--recordings", str(root / "takes"), "--transcripts", str(root / "t.csv")]
    return ["new", str(folder), *sources, *sets, "--device", "cpu", *options]


@pytest.fixture(scope="session")
def made(once, takes: Path) -> Path:
    """A folder of `asr new`, and what it printed in `shown`."""

    def fill(folder: Path) -> None:
        result = run_cli(*command(takes, folder / "mine"))
        assert result.returncode == 0, result.stderr
        (folder / "shown").write_text(result.stdout, "utf-8")

    return once("made", fill) / "mine"


def texts_of_split(data: Path, split: str) -> list[str]:
    with gzip.open(data / f"{split}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["supervisions"][0]["text"] for line in file]


def test_recordings_become_a_model_that_transcribes(made: Path, tmp_path: Path) -> None:
    corpus = CorpusMeasures.model_validate_json((made / "corpus.json").read_text("utf-8"))
    assert (corpus.speakers, corpus.characters, corpus.sample_rates.keys()) == (2, 5, {RATE})
    trained, tested = (texts_of_split(made / "data", split) for split in ("train", "test"))
    known = sum(text in trained for text in tested) / len(tested)
    assert corpus.splits["test"] == SplitSize(
        utterances=20, speakers=1, is_unseen=True, known_texts=known
    )
    sf.write(tmp_path / "unseen.wav", speak("四一五", 999), RATE)
    result = run_cli("transcribe", made / "model", tmp_path / "unseen.wav", "--device", "cpu")
    assert result.returncode == 0, result.stderr
    card = read_card(made / "model")
    assert "Measured on 20 utterances of one speaker who is not in its training: CER " in card
    assert "which is little" in card and "So few utterances" in card
    assert card.index("## What to expect") < card.index("## Results")
    shown = (made.parent / "shown").read_text("utf-8")
    assert read_expectation(made / "model") in shown and "share of silence" in shown
    for line in ("transcribe", "serve", "new"):
        assert f"  asr {line} {made}" in shown
    assert shown.rstrip().endswith("--set training.epochs=4")
    assert shown.rpartition("asr new")[2].count("training.epochs=") == 1, "not the two that it had"


# The same model, trained until it knows five tones.
LEARNING = [
    *SMALL, "training.epochs=20", "training.average=2", "data.batch_seconds=4",
    "training.schedule.lr=0.004", "training.schedule.warmup_steps=40", "model.d_model=48",
    "model.dropout=0", "augment.voices=null", "augment.pauses=null", "training.precision=float32",
]  # fmt: skip


@pytest.mark.costly
@pytest.mark.parametrize("language", ["Mandarin", "with spaces"])
def test_m4a_and_wav_files_and_a_table_become_a_recognizer(language: str, tmp_path: Path) -> None:
    """From a folder to the text of an unseen file by one command, whose result is right."""
    is_mandarin = language == "Mandarin"
    names = {tone: tone for tone in TONES} if is_mandarin else WORDS

    def said(seed: int) -> tuple[np.ndarray, str]:
        tones = np.random.default_rng(seed).choice(list(TONES), size=1 + seed % 3)
        wave = speak("".join(tone * (1 if is_mandarin else 3) for tone in tones), seed)
        return wave, ("" if is_mandarin else ", ").join(names[tone] for tone in tones)

    (tmp_path / "takes").mkdir()
    rows = ["file,text,speaker"]
    for i in range(120):
        name, (wave, text) = f"{i}.{'m4a' if i % 2 else 'wav'}", said(i)
        if i % 2:
            encode(tmp_path / "takes" / name, RATE, wave=wave)
        else:
            sf.write(tmp_path / "takes" / name, wave, RATE, subtype="PCM_16")
        rows.append(f'{name},"{text}.",{"abcdefgh"[i % 8]}')
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n", "utf-8")
    done = run_cli(*command(tmp_path, tmp_path / "mine", small=LEARNING))
    assert done.returncode == 0, done.stderr
    wave, text = said(302)
    unseen = encode(tmp_path / "unseen.m4a", RATE, wave=wave)
    shown = run_cli("transcribe", tmp_path / "mine/model", unseen, "--device", "cpu")
    assert shown.stdout.strip() == text.replace(",", "").lower()
    assert ("WER" in read_expectation(tmp_path / "mine/model")) == (not is_mandarin)


def test_a_second_run_does_nothing_and_says_so(made: Path, takes: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file()}
    result = run_cli(*command(takes, made))
    assert result.returncode == 0, result.stderr
    assert "nothing is left to do" in result.stderr and "Measured on 20 " in result.stdout
    after = {path: path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file()}
    assert {p: t for p, t in after.items() if p.name != "lock"} == {
        p: t for p, t in before.items() if p.name != "lock"
    }


KILLS = {
    "while preparing": ("import data_prep.corpus_writer as m", "m._write_left_out"),
    "while measuring": ("import asr.new.measure as m", "m._size"),
    "while training": ("import asr.train.module as m", "m.SpeechModule.on_validation_epoch_end"),
    "while evaluating": ("import asr.new.card as m", "m.write_expectation"),
}


@pytest.mark.costly
@pytest.mark.drawn(2)
@pytest.mark.parametrize("kill", KILLS)
def test_what_kill_9_ends_continues_to_the_same_model(
    made: Path, takes: Path, tmp_path: Path, kill: str
) -> None:
    load, place = KILLS[kill]
    killer = (
        f"import os, signal; {load}\n"
        f"{place} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)"
    )
    arguments = command(takes, tmp_path / "mine")
    killed = run_cli(*arguments, before=killer)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    result = run_cli(*arguments)
    assert result.returncode == 0, result.stderr
    assert ("is prepared already" in result.stderr) == (
        kill in ("while training", "while evaluating")
    )
    assert not list((tmp_path / "mine").rglob(".partial-*"))
    assert read_card(tmp_path / "mine/model").count("## What to expect") == 1
    expected, found = (load_file(f / "model/model.safetensors") for f in (made, tmp_path / "mine"))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.costly
def test_an_edited_recipe_is_kept_and_a_longer_training_continues(
    made: Path, takes: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "mine"))
    recipe = folder / "recipe.yaml"
    # A copy is of another place: begin again there, with a value of one's own.
    shutil.rmtree(folder / "model")
    text = recipe.read_text("utf-8").replace(str(made), str(folder))
    own, dev = folder / "data/train.jsonl.gz", folder / "data/dev.jsonl.gz"
    recipe.write_text(f"{text}seed: 7\n".replace(f"train: {own}", f"train: [{own}, {dev}]"))
    edited = recipe.read_bytes()
    assert run_cli(*command(takes, folder, small=[])).returncode == 0
    assert "other recordings than those of this corpus" in read_expectation(folder / "model")
    assert "seed: 7\n" in (folder / "model/config.yaml").read_text("utf-8")
    longer = run_cli(*command(takes, folder, small=["training.epochs=3"]))
    assert longer.returncode == 0, longer.stderr
    assert len((folder / "model/training/history.csv").read_text().splitlines()) == 4
    assert recipe.read_bytes() == edited and read_expectation(folder / "model")
    recipe.write_text(edited.decode().replace("d_model: 32", "d_model: 48"))
    refused = run_cli(*command(takes, folder, small=["training.epochs=3"]))
    assert refused.returncode == 2 and "was begun with another model" in refused.stderr


def refusal(*arguments: str) -> str:
    result = run_cli(*arguments)
    assert result.returncode not in (0, 130) and "Traceback" not in result.stderr
    return result.stderr


def test_other_sources_are_refused(made: Path, takes: Path, tmp_path: Path) -> None:
    shutil.copytree(takes, tmp_path / "other")
    assert "was made with --recordings" in refusal(*command(tmp_path / "other", made))
    said = refusal(*command(takes, made, "--text-column", "speaker"))
    assert "was made with --recordings" in said
    shutil.copytree(takes, tmp_path / "same")
    begun = tmp_path / "begun"
    begun.mkdir()
    sources = json.loads((made / "sources.json").read_text("utf-8"))
    sources["options"] = {
        "--recordings": str(tmp_path / "same/takes"),
        "--transcripts": str(tmp_path / "same/t.csv"),
    }
    (begun / "sources.json").write_text(json.dumps(sources))
    shutil.copy(made / "corpus.json", begun)
    with (tmp_path / "same/t.csv").open("a") as table:
        table.write("a/0.wav,一,a\n")
    assert "t.csv: has changed since" in refusal(*command(tmp_path / "same", begun))
    (tmp_path / "own/data").mkdir(parents=True)
    assert "holds data, which `asr new` did not" in refusal(*command(takes, tmp_path / "own"))
    assert list((tmp_path / "own").iterdir()) == [tmp_path / "own/data"]


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ("file,text\na/0.wav,x\n", ["--text-column", "words"], "has no column words"),
        ("file,text\nnone.wav,x\n", [], "none of its 1 recordings is in"),
        ("file,text\n", [], "has no line with a recording"),
        ("file,text\na/0.wav,x\n", [], "no utterance is left for dev"),
        ("file,text\na/0.wav,x\nb/1.wav,y\n", ["--recordings", "nowhere"], "no such folder"),
    ],
)
def test_mistakes_are_sentences_and_leave_no_folder(
    takes: Path, tmp_path: Path, table: str, options: list[str], said: str
) -> None:
    (tmp_path / "t.csv").write_text(table)
    (tmp_path / "takes").symlink_to(takes / "takes")
    assert said in refusal(*command(tmp_path, tmp_path / "mine", *options))
    assert not (tmp_path / "mine").exists()


def test_what_asr_new_writes_is_no_place_for_recordings(takes: Path, tmp_path: Path) -> None:
    shutil.copytree(takes, tmp_path / "mine/data")
    said = refusal(*command(tmp_path / "mine/data", tmp_path / "mine"))
    assert "is in" in said and "which `asr new` writes" in said
    assert (tmp_path / "mine/data/t.csv").exists()


@pytest.mark.costly
def test_a_live_model_writes_while_one_speaks(made: Path, takes: Path, tmp_path: Path) -> None:
    said = refusal(*command(takes, made, "--live"))
    assert "recipe.yaml: was chosen without --live: give a new folder" in said
    result = run_cli(*command(takes, tmp_path / "mine", "--live"))
    assert result.returncode == 0, result.stderr
    model = asr.load(tmp_path / "mine/model", "cpu")
    assert model.config.model.encoder.streaming and kind_of(model.config) == "zipformer2_ctc"
    wave = speak("".join(TONES), 1).astype(np.float32)
    partial, *_, final = (one for one in model.stream(np.array_split(wave, 9)) if one.text)
    assert final.is_final and not partial.is_final
    said = refusal(
        *command(takes, tmp_path / "no", "--live", "--set", "model.encoder={n_layers: 2}")
    )
    assert "--set leaves out model.encoder.streaming" in said
    assert not (tmp_path / "no/recipe.yaml").exists()
    again = run_cli(*command(takes, tmp_path / "mine", "--live"))
    assert again.returncode == 0 and "nothing is left to do" in again.stderr


def test_a_wrong_override_is_a_sentence_and_writes_no_recipe(takes: Path, tmp_path: Path) -> None:
    said = refusal(*command(takes, tmp_path / "mine", small=["model.d_modle=4"]))
    assert "did you mean model.d_model?" in said
    assert not (tmp_path / "mine/recipe.yaml").exists()


def test_a_folder_whose_name_is_no_text_is_refused(takes: Path, tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    listed = [sys.executable, "-m", "asr.cli", *command(takes, Path(folder))]
    result = subprocess.run(listed, capture_output=True, check=False)
    assert result.returncode == 2 and b"is not in UTF-8: rename it" in result.stderr
    assert not Path(folder).exists()


def test_silence_rates_and_long_utterances_are_measured(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = ["file,text,speaker"]
    takes = [("a", 2, 16000, "x"), ("b", 2, 8000, "x"), ("c", 31, 8000, "x"),
             ("d", 1, 8000, "y"), ("e", 1, 8000, "z")]  # fmt: skip
    for name, seconds, rate, who in takes:
        wave = 0.3 * rng.standard_normal(seconds * rate)
        wave[: len(wave) // 4] = 0
        (tmp_path / "takes").mkdir(exist_ok=True)
        sf.write(tmp_path / f"takes/{name}.wav", wave, rate)
        rows.append(f"{name}.wav,one two,{who}")
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    prepare(tmp_path / "takes", tmp_path / "t.csv", tmp_path / "data", dev=0.2, test=0.2)
    corpus = measure(tmp_path / "data", ["train", "dev", "test"])
    assert (corpus.utterances, corpus.too_long, corpus.words, corpus.characters) == (2, 1, 2, 5)
    assert re.search("left out, longer than 30 s +1 utterances", str(corpus))
    assert corpus.silence == pytest.approx(0.25, abs=0.02)
    assert corpus.sample_rates == {rate: pytest.approx(2 / 3600) for rate in (8000, 16000)}
    assert corpus.seconds_per_character == pytest.approx(2 / 7)
    assert all(size.is_unseen for size in corpus.splits.values())
    rows = [row for row in rows if "a.wav" not in row and "b.wav" not in row]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    prepare(tmp_path / "takes", tmp_path / "t.csv", tmp_path / "long", dev=0.2, test=0.2)
    with pytest.raises(DataError, match="all 1 utterances for training are longer than 30 s"):
        measure(tmp_path / "long", ["train", "dev", "test"])


def test_texts_without_a_letter_are_refused(tmp_path: Path) -> None:
    (tmp_path / "takes").mkdir()
    for i in range(3):
        wave = 0.1 * np.random.default_rng(i).standard_normal(8000)
        sf.write(tmp_path / f"takes/{i}.wav", wave, 16000)
    (tmp_path / "t.csv").write_text(
        "file,text,split\n0.wav,-,train\n1.wav,?,train\n2.wav,yes,dev\n"
    )
    prepare(tmp_path / "takes", tmp_path / "t.csv", tmp_path / "data")
    with pytest.raises(DataError, match=r"no text for training has a letter or digit \(-\)"):
        measure(tmp_path / "data", ["train", "dev"])


def test_the_letters_of_turkish_are_measured(tmp_path: Path) -> None:
    (tmp_path / "takes").mkdir()
    texts = ["Kapıyı aç", "SIĞ", "İyi", "Dur"]
    for i, _ in enumerate(texts):
        wave = 0.1 * np.random.default_rng(i).standard_normal(8000)
        sf.write(tmp_path / f"takes/{i}.wav", wave, 16000)
    rows = [f"{i}.wav,{text},{'dev' if i == 3 else 'train'}" for i, text in enumerate(texts)]
    (tmp_path / "t.csv").write_text("\n".join(["file,text,split", *rows]) + "\n", "utf-8")
    prepare(tmp_path / "takes", tmp_path / "t.csv", tmp_path / "data")
    assert measure(tmp_path / "data", ["train", "dev"]).turkish == pytest.approx(4 / 14)


def test_signs_between_commands_do_not_hide_that_they_are_mandarin(tmp_path: Path) -> None:
    (tmp_path / "takes").mkdir()
    texts = ["开灯。", "关窗！", "停。", "你好，小明。", "开A灯。"]
    for i, _ in enumerate(texts):
        wave = 0.1 * np.random.default_rng(i).standard_normal(8000)
        sf.write(tmp_path / f"takes/{i}.wav", wave, 16000)
    rows = [f"{i}.wav,{text},{'train' if i else 'dev'}" for i, text in enumerate(texts)]
    (tmp_path / "t.csv").write_text("\n".join(["file,text,split", *rows]) + "\n")
    prepare(tmp_path / "takes", tmp_path / "t.csv", tmp_path / "data")
    corpus = measure(tmp_path / "data", ["train", "dev"])
    assert corpus.is_mandarin
    assert (corpus.chinese, corpus.latin) == pytest.approx((9 / 10, 1 / 10))
    assert corpus.marks == pytest.approx(5 / 10)


def test_a_full_disk_leaves_what_was_made(takes: Path, tmp_path: Path) -> None:
    full = """import os, data_prep.corpus_writer as m
def full(*_, **__): raise OSError(28, os.strerror(28))
m._write_left_out = full"""
    given = command(takes, tmp_path / "mine", small=["model.d_modle=4"])
    done = run_cli(*given, before=full)
    assert done.returncode == 3 and "free some space" in done.stderr
    (tmp_path / "mine/data/audio").mkdir(exist_ok=True)
    (tmp_path / "mine/data/audio/converted.flac").write_text("hours of work")
    assert run_cli(*given, before=full).returncode == 3
    assert (tmp_path / "mine/data/audio/converted.flac").exists()
    assert "did you mean model.d_model?" in refusal(*given), "the corpus is there"


def test_what_began_with_another_bundle_claims_no_unseen_speakers(tmp_path: Path) -> None:
    own, other = str(tmp_path / "train.jsonl.gz"), str(tmp_path / "other.jsonl.gz")
    for data, training, is_own in (
        ({"train": own}, {}, True),
        ({"train": [own, other]}, {}, False),
        ({"train": own}, {"init": "mine/model"}, False),
        ({"train": own, "replay": {"train": other}}, {}, False),
    ):
        values = {"data": {"dev": other, **data}, "training": training}
        assert _is_of(Config.model_validate(values), Path(own)) == is_own


def test_the_card_is_honest(made: Path, tmp_path: Path) -> None:
    from asr.reporting.results import read_evaluation

    corpus = CorpusMeasures.model_validate_json((made / "corpus.json").read_text("utf-8"))
    found = read_evaluation(made / "model")
    assert found
    large = corpus.model_copy(update={
        "hours": 50.0, "splits": {
            "test": SplitSize(utterances=900, speakers=8, is_unseen=True),
            "dev": SplitSize(utterances=900, speakers=8, is_unseen=False),
        },
    })  # fmt: skip
    good = found.model_copy(update={"utterances": 900, "cer": 0.0512})
    assert expectation(large, "test", good) == (
        "Measured on 900 utterances of 8 speakers who are not in its training: CER 5.12%; other "
        "voices, rooms and microphones will be worse."
    )
    repeated = SplitSize(utterances=900, speakers=8, is_unseen=True, known_texts=0.8)
    commands = large.model_copy(update={"splits": {"test": repeated}})
    assert "80% of these texts are in its training too" in expectation(commands, "test", good)
    on_dev = expectation(large, "dev", good)
    assert "not named" in on_dev and "chose the epochs" in on_dev
    bad = expectation(corpus, "test", found.model_copy(update={"cer": 0.8}))
    assert "which is little" in bad and "of no use yet" in bad and "asr finetune" in bad
    some = corpus.model_copy(update={"unnamed": 3})
    assert f"h of {corpus.speakers} speakers, which" in bad
    card = expectation(some, "test", found)
    assert f"h of {corpus.speakers} named speakers and others, which" in card
    assert "3 utterances without a name" in str(some) and "without" not in str(corpus)
    copy = Path(shutil.copytree(made / "model", tmp_path / "model"))
    results = read_card(copy).partition("## Results")[2]
    (copy / "README.md").write_text("a card\n\n## Results\n" + results)
    write_expectation(copy, bad)
    assert read_expectation(copy) == bad and read_card(copy).endswith(results)


@pytest.mark.costly
def test_words_alone_become_a_model_that_says_who_spoke(tmp_path: Path) -> None:
    """Two words, spoken by synthetic voices; the list is in GBK, as Windows writes it."""
    (tmp_path / "words.txt").write_bytes("开灯\n关窗\n\n关窗\n".encode("gbk"))
    sets = [option for value in (*SMALL, "data.max_seconds=1.2") for option in ("--set", value)]
    words = ["new", tmp_path / "mine", "--words", tmp_path / "words.txt", *sets, "--device", "cpu"]
    result = run_cli(*words)
    assert result.returncode == 0, result.stderr
    card = read_card(tmp_path / "mine/model")
    assert "synthetic voices that are not in its training" in card
    assert "people will be recognized far worse" in card and "asr finetune" in card
    assert "words.txt in cmn" in result.stderr
    sources = json.loads((tmp_path / "mine/sources.json").read_text("utf-8"))
    assert sources["options"]["--language"] == "cmn"
    with (tmp_path / "words.txt").open("ab") as file:
        file.write(b"one\n")
    assert "words.txt: has changed since" in refusal(*words)


def children(process: str) -> list[str]:
    try:
        return Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has ended
        return []


@pytest.mark.costly
@pytest.mark.drawn(1)
@pytest.mark.parametrize("killed", ["worker", "its fork"])
def test_a_voice_that_dies_leaves_what_was_spoken(tmp_path: Path, killed: str) -> None:
    """A killed process ends the command, not what it had made; the same command would continue."""
    (tmp_path / "words.txt").write_text("\n".join(f"word {i}" for i in range(100)))
    command = ["new", tmp_path / "mine", "--words", tmp_path / "words.txt", "--language", "en-us"]
    listed = [sys.executable, "-m", "asr.cli", *map(str, command)]
    with subprocess.Popen(listed, stderr=subprocess.PIPE, text=True) as process:
        while not (spoken := set(tmp_path.glob("mine/data/wav/**/*.wav"))):
            assert process.poll() is None
            time.sleep(0.05)
        found = children(str(process.pid))
        workers = [c for c in found if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
        if killed == "worker":
            os.kill(int(workers[0]), signal.SIGKILL)
        deadline = time.monotonic() + 60
        while killed == "its fork" and process.poll() is None and time.monotonic() < deadline:
            for fork in children(workers[0]):
                with suppress(ProcessLookupError):
                    os.kill(int(fork), signal.SIGKILL)
        said = process.communicate()[1]
    assert process.returncode == 1 and "a process died" in said and "are kept" in said
    assert all(path.exists() for path in spoken) and (tmp_path / "mine/sources.json").exists()
    (tmp_path / "words.txt").write_text("another")
    said = refusal(*command, "--set", "model.d_modle=4")  # which is met when the corpus is there
    assert "data: is of other recordings or texts" in said and "did you mean" in said
    assert not any(path.exists() for path in spoken) and (tmp_path / "mine/corpus.json").exists()
    (tmp_path / "words.txt").write_text("a third")
    assert "words.txt: has changed since" in refusal(*command)


def test_voices_end_with_the_command(tmp_path: Path) -> None:
    """After `kill -9` they waited for ever."""
    (tmp_path / "words.txt").write_text("\n".join(f"word {i}" for i in range(2000)))
    command = ["new", tmp_path / "mine", "--words", tmp_path / "words.txt", "--language", "en-us"]
    listed = [sys.executable, "-m", "asr.cli", *map(str, command)]
    with subprocess.Popen(listed, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: any(tmp_path.glob("mine/data/wav/**/*.wav")), 120)
            assert process.poll() is None
        finally:
            process.kill()
        process.communicate(timeout=30)  # to the end of what its children may write to


def test_a_table_may_be_corrected_until_there_is_a_corpus(takes: Path, tmp_path: Path) -> None:
    """Whatever ended the first preparation: here a disk that is full, as its system says."""
    (tmp_path / "takes").symlink_to(takes / "takes")
    table = (takes / "t.csv").read_text("utf-8")
    (tmp_path / "t.csv").write_text(table.replace("b/", "other/"))
    full = """import os, data_prep.table as m
def full(*_, **__): raise OSError(28, os.strerror(28))
m.divide = full"""
    given = command(tmp_path, tmp_path / "mine", small=["model.d_modle=4"])
    assert run_cli(*given, before=full).returncode == 1
    (tmp_path / "t.csv").write_text(table)
    copy = tmp_path / "mine/data/audio/b/1.m4a.flac"
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(b"copy")
    assert "did you mean model.d_model?" in refusal(*given), "the corpus is there"
    assert copy.read_bytes() == b"copy", "or hours of conversion are thrown away"
    assert len(texts_of_split(tmp_path / "mine/data", "train")) == 40


def test_what_is_refused_keeps_converted_recordings_and_the_list(tmp_path: Path) -> None:
    (tmp_path / "takes").mkdir()
    waves = [0.1 * np.random.default_rng(i).standard_normal(16000) for i in range(4)]
    for i, wave in enumerate(waves):
        encode(tmp_path / f"takes/{i}.m4a", 16000, wave=wave)
    rows = [f"{i}.m4a,yes,{i},900,950" for i in range(4)]  # in milliseconds
    given = command(tmp_path, tmp_path / "mine", small=["model.d_modle=4"])
    sf.write(tmp_path / "takes/a.wav", waves[0], 16000)
    (tmp_path / "t.csv").write_text("file,text\na.wav,yes\nb.wav,yes\n")
    assert "no utterance is left for dev" in refusal(*given)
    assert "b.wav\tmissing" in (tmp_path / "mine/data/left_out.tsv").read_text()
    (tmp_path / "t.csv").write_text("\n".join(["file,text,speaker,start,end", *rows]) + "\n")
    assert "none of the 4 utterances" in refusal(*given)
    copies = sorted((tmp_path / "mine/data/audio").iterdir())
    times = [copy.stat().st_mtime_ns for copy in copies]
    assert len(copies) == 4
    rows = [f"{i}.m4a,yes,{i},0.1,0.9" for i in range(3)] + ["3.m4a,yes,3,900,950"]
    (tmp_path / "t.csv").write_text("\n".join(["file,text,speaker,start,end", *rows]) + "\n")
    assert "did you mean model.d_model?" in refusal(*given), "the corpus is there"
    assert [copy.stat().st_mtime_ns for copy in copies] == times
    again = refusal(*given)
    assert "is prepared already, without 1 outside_recording (" in again
    assert "mine/data/left_out.tsv): to use them when they are corrected, give a new" in again


@pytest.mark.costly
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "beside them, or --words alone"),
        (["--words", "w.txt", "--recordings", "."], "or --words alone"),
        (
            ["--recordings", ".", "--transcripts", "w.txt", "--language", "Mandarin Chinese"],
            "--language Mandarin Chinese: is no code of a language",
        ),
        (["--words", "w.txt", "--language", "xx"], "--language xx: espeak-ng has none"),
        (["--words", "w.txt", "--language", "../cmn"], "espeak-ng has none"),
        (["--words", "w.txt", "--language", "fo"], "fo: espeak-ng speaks none of the 260 texts"),
        (["--words", "kanji.txt"], "東京: has kanji, which espeak-ng does not read"),
        (["--words", "empty.txt"], "empty.txt: is empty"),
        (["--words", "signs.txt"], "--language: is not known from !?"),
        (["--words", "none.txt"], "none.txt: cannot be read"),
        (["--words", "long.txt"], "an entry has 201 characters"),
    ],
)
def test_mistakes_in_words_are_sentences(tmp_path: Path, options: list[str], said: str) -> None:
    texts = {"w.txt": "yes\nno\n", "empty.txt": "\n \n", "signs.txt": "!?\n", "long.txt": "a" * 201,
             "kanji.txt": "おおさか\n東京\n"}  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text, "utf-8")
    paths = [tmp_path / option if option.endswith(".txt") else option for option in options]
    assert said in refusal("new", tmp_path / "mine", *paths)
    assert not (tmp_path / "mine").exists()
