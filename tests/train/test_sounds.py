"""Output weights that share sounds: by their sum, by what a rare character learns, and in a run."""

import csv
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from asr.bundle import Bundle
from asr.data.manifest import load_cuts
from asr.evaluation.evaluate import evaluate
from asr.train.sounds import SharedSounds
from asr.transcription.recognizer import Recognizer
from tests.helpers import run_cli, tones_recipe, write_recipe

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
