"""A language with spaces, from the table of texts to the report: its words, case, punctuation."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
import yaml

from asr.bundle import Bundle
from asr.config import Config
from asr.errors import ConfigError
from asr.runtime.files import write_csv
from asr.train.run import train
from data_prep.corpus_writer import write_corpus
from data_prep.cuts import Utterance
from tests.helpers import RATE, TONES, read_card, run_cli, speak, tones_recipe

NAMES = dict(zip(TONES, ["One", "Two", "Don’t", "e-mail", "Go"], strict=True))
POLICY = {"case": "lower", "punctuation": "remove"}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of tones whose texts are sentences of English words."""
    root, rng = tmp_path_factory.mktemp("words"), np.random.default_rng(0)
    splits: dict[str, list[Utterance]] = {"train": [], "dev": [], "test": []}
    for split, n in (("train", 30), ("dev", 5), ("test", 5)):
        for i in range(n):
            said = "".join(rng.choice(list(TONES), size=rng.integers(2, 5)))
            path = root / f"{split}{i}.wav"
            sf.write(path, speak(said, i), RATE, subtype="PCM_16")
            text = ", ".join(NAMES[c] for c in said) + "!"
            splits[split].append(Utterance(f"{split}{i}", path, text, "tone"))
    path = root / "pause.wav"
    sf.write(path, speak("一", 0), RATE, subtype="PCM_16")
    splits["train"].append(Utterance("pause", path, "…", "tone"))
    write_corpus(splits, root, corpus="words", jobs=1)
    return root


def recipe(words: Path, **tokenizer: str) -> Config:
    values = tones_recipe(words, training={"epochs": 1})
    return Config.model_validate(values | {"tokenizer": tokenizer})


@pytest.fixture(scope="module")
def run(words: Path) -> Path:
    """A run of one epoch."""
    return train(recipe(words, **POLICY), words / "run", device="cpu")


def test_training_shows_and_keeps_the_wer(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(recipe(words, **POLICY), tmp_path / "run", device="cpu")
    names, values = (run / "training" / "history.csv").read_text().splitlines()
    assert names == (
        "epoch,train_loss,val_loss,val_wer_percent,val_cer_percent,confidence_threshold,seconds"
    )
    cer, wer = (float(values.split(",")[i]) for i in (4, 3))
    assert f"dev CER {cer:.2f} %  dev WER {wer:.2f} %  step " in capsys.readouterr().err
    card = " ".join(read_card(run).split())
    assert f"| dev WER of the best epoch, greedy | {wer:.2f}% |" in card
    assert "| training cuts | 30 utterances" in card  # a text of punctuation is none
    assert "(NFKC, lower case, no punctuation, no spaces beside Chinese characters)" in card


def test_the_bundle_writes_and_compares_texts_in_its_own_way(run: Path, words: Path) -> None:
    stored = yaml.safe_load((run / "config.yaml").read_text("utf-8"))["tokenizer"]
    assert {key: stored[key] for key in POLICY} == POLICY
    letters = set("".join(NAMES.values()).lower().replace("’", "'"))
    assert set(Bundle.load(run).tokenizer.tokens()[4:]) == {*letters, "▁"}
    out = run.parent / "all.jsonl"
    test = words / "test.jsonl.gz"
    done = run_cli("evaluate", run, test, "--out", out, "--format", "json")
    result, kept = json.loads(done.stdout), json.loads((run / "evaluation.json").read_text())
    references = [json.loads(line)["reference"] for line in out.read_text().splitlines()]
    spoken = {name.lower().replace("’", "'") for name in NAMES.values()}
    assert {word for text in references for word in text.split()} <= spoken
    counts = result["words"]
    assert counts["reference_length"] == sum(len(text.split()) for text in references)
    errors = counts["substitutions"] + counts["insertions"] + counts["deletions"]
    assert result["wer"] == pytest.approx(errors / counts["reference_length"]) == kept["wer"]
    assert f"WER {100 * result['wer']:.2f}%: " in (run / "README.md").read_text("utf-8")
    assert "WER (%)" in run_cli("report", run).stdout
    (epoch,) = json.loads(run_cli("report", run, "--format", "json").stdout)[0]["run"]["history"]
    assert epoch["val_wer_percent"] is not None
    assert "WER" in run_cli("tune", run, test, "--method", "ctc_greedy").stdout


def test_a_run_from_a_bundle_of_other_texts_is_refused(run: Path, words: Path) -> None:
    config = recipe(words, case="lower")
    training = config.training.model_copy(update={"init": run})
    with pytest.raises(ConfigError, match=r"tokenizer.punctuation is keep, but remove in"):
        train(config.model_copy(update={"training": training}), words / "other", device="cpu")


def test_a_run_of_mandarin_has_no_wer(learned: Path) -> None:
    history = (learned / "training" / "history.csv").read_text().splitlines()
    assert history[0] == "epoch,train_loss,val_loss,val_cer_percent,confidence_threshold,seconds"
    assert "WER" not in (learned / "README.md").read_text("utf-8")


def test_a_history_that_began_without_a_wer_goes_on_with_it(tmp_path: Path) -> None:
    write_csv(tmp_path / "h.csv", [{"epoch": 1}, {"epoch": 2, "val_wer_percent": 3.5}])
    assert (tmp_path / "h.csv").read_text() == "epoch,val_wer_percent\n1,\n2,3.5\n"
