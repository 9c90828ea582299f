"""What training knows of sounds: shared output weights, and the head of syllables; in runs too."""

import csv
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from asr.bundle import Bundle
from asr.config import Config
from asr.data.manifest import load_cuts
from asr.decoding.ctc_prefix import BLANK
from asr.decoding.options import DecodingOptions
from asr.errors import ConfigError
from asr.evaluation.evaluate import evaluate
from asr.tokenizer import SPECIAL, Tokenizer
from asr.train.module import SpeechModule
from asr.train.run import train
from asr.train.sounds import Readings, SharedSounds
from asr.transcription.recognizer import Recognizer
from tests.helpers import run_cli, speak, tones_recipe, write_recipe

pytest.importorskip("pypinyin")
TOKENS = ["<blank>", "中", "钟", "种", "猪", "国", "A", "中国"]


def _filled(head: nn.Linear) -> SharedSounds:
    sounds = SharedSounds(TOKENS, head)
    with torch.no_grad():
        sounds.table.weight[1:].normal_()
    return sounds


def test_the_head_adds_the_weights_of_a_characters_sounds() -> None:
    head = nn.Linear(6, len(TOKENS))
    x, before = torch.randn(2, 5, 6), head.weight.clone()
    sounds = _filled(head)
    row = dict(zip(sounds.units, sounds.table.weight[1:], strict=True))
    added = torch.zeros(len(TOKENS), 6)
    added[1] = added[2] = row["-zhong"] + row["-zhong1"] + row["zh"] + row["ong1"]
    added[3] = row["-zhong"] + row["-zhong3"] + row["zh"] + row["ong3"]
    added[4] = row["-zhu"] + row["-zhu1"] + row["zh"] + row["u1"]
    added[5] = row["-guo"] + row["-guo2"] + row["g"] + row["uo2"]
    torch.testing.assert_close(sounds.added(), added)
    torch.testing.assert_close(head(x), linear(x, before + added, head.bias))


def test_a_character_without_recordings_learns_from_one_that_sounds_so() -> None:
    torch.manual_seed(1)
    x, y = torch.eye(6), torch.tensor([1, 5, 6, 1, 5, 6])  # 中, 国 and A alone
    shares: list[float] = []
    for shared in (False, True):
        head = nn.Linear(6, len(TOKENS))
        weights = [*head.parameters()]
        weights += [*SharedSounds(TOKENS, head).parameters()] if shared else []
        adam = torch.optim.Adam(weights, lr=0.05)
        for _ in range(40):
            adam.zero_grad()
            cross_entropy(head(x), y).backward()
            adam.step()
        probabilities = head(x[:1]).softmax(-1)[0].detach()
        assert probabilities.argmax() == 1
        shares.append(float(probabilities[2] / probabilities[[4, 7]].mean()))  # 钟 of 猪 and 中国
    assert shares[1] > 3 * shares[0]


def test_the_bundle_has_the_sum_and_the_dev_cer_of_training(tones: Path, tmp_path: Path) -> None:
    training = {"shared_sounds": True, "epochs": 3, "average": 1}
    decoding = {"method": "ctc_greedy", "confidence_threshold": 0.0}
    recipe = write_recipe(
        tmp_path / "r.yaml", tones_recipe(tones, training=training, decoding=decoding)
    )
    done = run_cli("train", recipe, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "run/training/history.csv").read_text().splitlines()))
    best = min(float(row["val_cer_percent"]) for row in rows)
    recognizer = Recognizer(Bundle.load(tmp_path / "run"), "cpu")
    options = recognizer.config.decoding.model_copy(update={**decoding, "beam_size": 1})
    found = evaluate(recognizer, load_cuts(tones / "dev.jsonl.gz"), options)
    assert 100 * found.cer == pytest.approx(best, abs=1e-4)


def test_a_low_rank_head_is_refused_before_the_first_step(tones: Path, tmp_path: Path) -> None:
    values = tones_recipe(tones, model={"ranks": {"ctc_head": 4}}, training={"shared_sounds": True})
    with pytest.raises(ConfigError, match=r"factors for them: set training\.shared_sounds=false"):
        train(Config.model_validate(values), tmp_path / "run")
    values["training"] |= {"shared_sounds": False, "epochs": 1, "average": 1}
    assert train(Config.model_validate(values), tmp_path / "run") == tmp_path / "run"


def test_a_character_has_the_reading_that_it_has_most_often() -> None:
    readings = Readings(["银行", "银行", "行走", "OK 种子", "种"])
    assert readings("银行") == ["yin2", "hang2"]
    assert readings("行走") == ["hang2", "zou3"]  # no character has xing2 most often
    assert readings("种子 ok") == ["zhong3", "zi5", "O", "K"]
    assert readings.units == {"yin2", "hang2", "zou3", "zhong3", "zi5", "O", "K"}


@pytest.fixture
def module(tones: Path) -> SpeechModule:
    """A training of tokens of which some sound alike."""
    encoder = {"n_layers": 2, "sounds": {"layer": 1, "weight": 0.7}}
    config = Config.model_validate(tones_recipe(tones, model={"encoder": encoder}))
    texts = ["中国", "钟", "果种", "A B"]
    return SpeechModule(Bundle.create(config, Tokenizer.train(texts, config.tokenizer)), 1, texts)


def test_characters_of_one_sound_have_one_row_in_the_weights(module: SpeechModule) -> None:
    tokens = module.decoder.tokenizer.tokens()
    rows = dict(zip(tokens, module.weights()["sounds_head.output.weight"], strict=True))
    assert torch.equal(rows["中"], rows["钟"])
    assert not torch.equal(rows["中"], rows["种"]) and not torch.equal(rows["国"], rows["果"])
    for token in (*(tokens[i] for i in SPECIAL), "▁"):  # no text has them
        assert torch.equal(rows[token], rows[tokens[BLANK]])
    (head,) = module.heads
    zhong, guo, space = (ids.tolist() for ids in head.targets(["中种", "钟国", " "]))
    assert zhong[0] == guo[0] != zhong[1] and space == []


def test_tokens_that_the_texts_lack_keep_their_sound(module: SpeechModule) -> None:
    known = module.weights()["sounds_head.output.weight"]
    tokenizer, config = module.decoder.tokenizer, module.config
    bundle = Bundle.create(config, tokenizer)
    bundle.model.load_state_dict(module.weights())
    fewer = SpeechModule(bundle, 1, ["国"])  # fine-tuning on other texts
    assert torch.equal(fewer.weights()["sounds_head.output.weight"], known)
    (head,) = fewer.heads
    assert len(head.units) == 6  # all of them are told apart


@pytest.mark.parametrize("later", [["国"], ["进行，", "国"]])
def test_a_character_of_two_readings_takes_no_other_with_it(later: list[str], tones: Path) -> None:
    encoder = {"n_layers": 2, "sounds": {"layer": 1}}
    config = Config.model_validate(tones_recipe(tones, model={"encoder": encoder}))
    texts = ["银行，", "航空", "形状", "国进"]  # 行 is hang2 here, as 航, and alone it is xing2
    bundle = Bundle.create(config, Tokenizer.train(texts, config.tokenizer))
    old = SpeechModule(bundle, 1, texts).weights()
    bundle.model.load_state_dict(old)
    new, tokens = SpeechModule(bundle, 1, later).weights(), bundle.tokenizer.tokens()
    name = "sounds_head.output.weight"
    for token, before, after in zip(tokens, old[name], new[name], strict=True):
        assert torch.equal(before, after), token
    rows = dict(zip(tokens, new[name], strict=True))
    assert torch.equal(rows["航"], rows["行"]) and not torch.equal(rows["形"], rows["行"])


@pytest.mark.costly
def test_the_bundle_knows_the_sounds_from_a_layer_below(tones: Path, tmp_path: Path) -> None:
    recipe = tones_recipe(
        tones, model={"encoder": {"n_layers": 2, "sounds": {"layer": 1}}}, training={"epochs": 12}
    )
    done = run_cli("train", write_recipe(tmp_path / "r.yaml", recipe), "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    recognizer = Recognizer(Bundle.load(tmp_path / "run"), "cpu")
    waves = [torch.from_numpy(speak(text, i)) for i, text in enumerate(("一二三四", "四二三"))]
    options = DecodingOptions(method="ctc_greedy", confidence_threshold=0.0)
    assert [text for text, _ in recognizer.texts(waves, options)] == ["一二三四", "四二三"]
    model = recognizer.model
    assert model.ctc_head and model.sounds_head
    with torch.no_grad():  # the sounds alone
        model.ctc_head.weight.zero_()
        model.ctc_head.bias.zero_()
    assert [text for text, _ in recognizer.texts(waves, options)] == ["一二三四", "四二三"]
    with torch.no_grad():  # neither
        dict(model.sounds_head.output.named_parameters())["weight"].zero_()
    assert [text for text, _ in recognizer.texts(waves, options)] != ["一二三四", "四二三"]
