"""The loop around WeNet's model: its batches, masks and means, and that it goes on when killed.

The model itself is WeNet's, which is not installed: a linear layer stands for it.
"""

import argparse
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from lhotse import MonoCut, Recording, SupervisionSegment
from torch import Tensor, nn

from benchmarks import wenet
from benchmarks.wenet import Corpus, Training, averaged, batches, errors, masked
from benchmarks.wenet_model import give_float32


def cut(name: str, seconds: float, text: str, recording: Recording | None = None) -> MonoCut:
    supervision = SupervisionSegment(name, "r", 0, seconds, text=text)
    return MonoCut(name, 0, seconds, 0, [supervision], recording=recording)


CUTS = [cut(str(i), 1 + i % 7, "你好a") for i in range(60)]


def test_an_epoch_has_each_utterance_once_in_steps_of_32_seconds() -> None:
    epoch = batches(CUTS, only_short=False, rng=random.Random(1))
    assert sorted(c.id for step in epoch for c, _ in step) == sorted(c.id for c in CUTS)
    assert {speed for step in epoch for _, speed in step} == set(wenet.SPEEDS)
    for step in epoch:
        assert len(step) == 1 or sum(c.duration / speed for c, speed in step) <= 32
    short = [c for step in batches(CUTS, True, random.Random(1)) for c, _ in step]
    assert len(short) == 30
    assert max(c.duration for c in short) <= sorted(c.duration for c in CUTS)[30]


def test_masks_hide_some_of_the_features_and_change_nothing_else() -> None:
    features = torch.rand(200, 80) + 1
    hidden = masked(features, random.Random(2))
    assert hidden.shape == features.shape
    assert 0.02 < (hidden == 0).float().mean() < 0.9
    assert (features >= 1).all()
    known = {round(value, 6) for value in features.flatten().tolist()}
    assert {round(value, 6) for value in hidden.flatten().tolist()} - {0.0} <= known


def test_the_softmax_of_the_output_has_32_bits_though_products_have_16() -> None:
    layer = nn.Linear(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.rand(2, 8)).log_softmax(-1).dtype == torch.bfloat16
        give_float32(layer)
        assert layer(torch.rand(2, 8)).log_softmax(-1).dtype == torch.float32


def test_a_text_is_spelled_by_its_tokens() -> None:
    corpus = Corpus(CUTS)
    tokens = corpus.tokens(CUTS[0]).tolist()
    assert corpus.text([corpus.end, *tokens, 0, 1]) == "你好A"  # normalized
    assert min(tokens) >= 2
    assert max(tokens) < corpus.end


def test_weights_are_averaged_but_counts_are_not() -> None:
    each = [{"w": torch.tensor([float(i)]), "n": torch.tensor(i)} for i in (1, 2, 6)]
    found = averaged(each)
    assert found["w"].item() == 3
    assert found["n"].item() == 6


class Linear(nn.Module):
    """Give a frame's token by a linear layer; its two losses fall with training."""

    def __init__(self, n_tokens: int) -> None:
        super().__init__()
        self.layer = nn.Linear(80, n_tokens)

    def forward(self, inputs: dict[str, Any], _: torch.device) -> dict[str, Tensor]:
        logits = self.layer(inputs["feats"].mean(1) / 20)
        loss = nn.functional.cross_entropy(logits.float(), inputs["target"][:, 0])
        return {"loss": loss, "loss_ctc": loss, "loss_att": 2 * loss}

    def decode(self, methods: list[str], features: Tensor, *_: Any, **__: Any) -> dict[str, Any]:
        token = int(self.layer(features.mean(1) / 20).argmax())
        return {name: [SimpleNamespace(tokens=[token])] for name in methods}


@pytest.fixture
def tones(tmp_path: Path) -> list[MonoCut]:
    """Give eight recordings of two tones, each with its character."""
    found = []
    for i in range(8):
        wave = 0.3 * np.sin(np.arange(8000) * (0.1 if i % 2 else 0.8)).astype(np.float32)
        soundfile.write(tmp_path / f"{i}.wav", wave, 16000)
        recording = Recording.from_file(tmp_path / f"{i}.wav")
        found.append(cut(str(i), 0.5, "高低"[i % 2], recording))
    return found


def test_a_killed_training_goes_on_and_learns(
    tones: list[MonoCut], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(10**6))
    monkeypatch.setattr(wenet.time, "process_time", lambda: float(next(now)))  # a second a step
    sizes = {"d_model": 80, "layers": 1, "inner": 1, "ctc_weight": 0.3, "whole_context": False}
    args = argparse.Namespace(out=tmp_path, data=tmp_path, minutes=2.0, warm_up=5, **sizes)
    corpus = Corpus(tones)
    torch.manual_seed(1)
    before = errors(model := Linear(corpus.end + 1), corpus, tones, ["attention"])

    def kill(*_: Any) -> list[float]:
        raise KeyboardInterrupt

    first = Training(model, corpus, args)
    monkeypatch.setattr(wenet, "errors", lambda *_: [0.0] if first.state["step"] < 70 else kill())
    with pytest.raises(KeyboardInterrupt):
        first.run(tones)
    monkeypatch.setattr(wenet, "errors", errors)
    again = Training(Linear(corpus.end + 1), corpus, args)
    assert again.state["step"] == 60  # the last of its twelve parts that was saved
    again.run(tones)
    assert again.state["step"] == 120
    assert len(again.state["weights"]) == 4
    assert before[0] >= 50
    table = wenet.result(again, tones, tones)
    assert [row[0] for row in table.rows] == list(wenet.METHODS)
    assert [row[-1] for row in table.rows] == [0.0] * 4
    assert "120 steps" in table.note
