"""Training tells kernels its steps: over accumulated batches, and where a run resumes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from asr.config import Config
from asr.model.attention.linear import PerformerAttention
from asr.model.transformer import ModelConfig
from asr.train.module import SpeechModule
from asr.train.run import train
from asr.train.step import TrainingModule
from tests.helpers import tones_recipe

ROUTING, PERFORMER = {"kind": "routing", "clusters": 3}, {"kind": "performer", "redraw": 4}
SPARSE = {"kind": "set_sparse", "epsilon": 4}


def recipe(tones: Path, seconds: float, accumulate: int, **model: Any) -> Config:
    """Return two epochs with both kernels that follow the steps, and with sparse maps."""
    layers = {
        "encoder": {"n_layers": 1, "attention": ROUTING},
        "decoder": {"n_layers": 1, "attention": PERFORMER},
    }
    training = {"epochs": 2, "average": 1, "accumulate": accumulate}
    values = tones_recipe(
        tones, data={"batch_seconds": seconds}, model={**layers, **model}, training=training
    )
    return Config.model_validate(values)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def test_a_resumed_run_has_the_centroids_features_and_graphs_of_an_undisturbed_one(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop in the second epoch, which follows a rewiring, between two draws of features."""
    step, drawn, stops = SpeechModule.training_step, list[tuple[int, int]](), list[int]()
    config = recipe(tones, 4, 2, projections={"feed_forward": SPARSE})

    def watch(self: SpeechModule, batch: Any, *args: Any) -> Any:
        performer = next(k for k in self._kernels if isinstance(k, PerformerAttention))
        drawn.append((self.global_step, performer.drawn))
        if stops == [self.global_step]:
            self.signal = stops.pop()
        return step(self, batch, *args)

    monkeypatch.setattr(SpeechModule, "training_step", watch)
    whole = train(config, tmp_path / "whole")
    undisturbed = drawn.copy()
    assert undisturbed == [(n, n // 4) for n in range(len(undisturbed))]
    stops.append(10)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut")
    last = drawn[-1][0]
    assert last % 4 and last > len(undisturbed) // 2
    cut = train(config, tmp_path / "cut", resume=True)
    assert drawn[len(undisturbed) :] == undisturbed
    expected, found = weights(whole), weights(cut)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


@pytest.mark.slow
def test_accumulated_batches_move_centroids_as_one_batch(tones: Path, tmp_path: Path) -> None:
    runs = []
    for seconds, accumulate in ((8, 1), (2, 4)):
        config = recipe(tones, seconds, accumulate, dropout=0.0)
        config = config.model_copy(update={"augment": None})
        runs.append(weights(train(config, tmp_path / f"{accumulate}")))
    (name,) = (name for name in runs[0] if name.endswith("centroids_HMK"))
    torch.testing.assert_close(runs[0][name], runs[1][name], atol=1e-4, rtol=0)


def test_a_training_looks_for_these_kernels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), *(build(options) for options in (ROUTING, PERFORMER)))
    task = TrainingModule(model, Config.model_construct(seed=1), total_steps=3)  # type: ignore[call-arg]
    walks = []
    monkeypatch.setattr(model, "modules", lambda: walks.append(1) or iter(model.children()))
    for _ in range(3):
        task.on_train_batch_start(None, 0)  # type: ignore[arg-type]
    assert len(walks) == 1 and task._kernels == [model[1], model[2]]


def build(options: dict[str, Any]) -> nn.Module:
    """Return the kernel of a kind."""
    attention = ModelConfig.model_validate({"encoder": {"attention": options}}).encoder.attention
    return attention.build(2, 4, False, 0.0)
