"""Curriculum by length: short utterances first, then all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asr.config import Config
from asr.errors import ConfigError
from asr.train import datamodule
from asr.train.datamodule import SpeechDataModule
from asr.train.module import SpeechModule
from asr.train.run import train
from tests.helpers import tones_recipe

CURRICULUM = {"epochs": 2, "share": 0.25}


def config(tones: Path, **training: Any) -> Config:
    values = {"epochs": 3, "curriculum": CURRICULUM, **training}
    schedule = {"kind": "linear", "lr": 1e-3, "warmup_steps": 5}
    return Config.model_validate(tones_recipe(tones, training={**values, "schedule": schedule}))


def planned(data: SpeechDataModule, epoch: int | None) -> list[str]:
    return sorted(cut.id for batch in data.plan(epoch) for cut in batch)


def test_the_first_epochs_hold_the_short_ones_the_others_all(tones: Path) -> None:
    data = SpeechDataModule(config(tones))
    every = sorted(cut.id for cut in data.train_cuts)
    short = planned(data, 0)
    assert short == planned(data, 1)
    assert planned(data, 2) == every
    assert planned(data, None) == sorted(cut.id for cut in data.dev_cuts)
    assert data.total_steps == sum(len(data.plan(epoch)) for epoch in range(3))
    without = SpeechDataModule(config(tones, curriculum=None))
    assert without.total_steps == 3 * len(without.plan(0)) > data.total_steps


@pytest.mark.parametrize("share", [0.05, 0.25, 0.999])
def test_the_short_ones_are_the_shortest_and_hold_their_share(tones: Path, share: float) -> None:
    data = SpeechDataModule(config(tones, curriculum={"epochs": 1, "share": share}))
    total = sum(cut.duration for cut in data.train_cuts)
    short = sorted(cut.duration for cut in data.short_cuts)
    others = [c.duration for c in data.train_cuts if c.id not in set(data.short_cuts.ids)]
    assert all(duration > short[-1] for duration in others)
    assert sum(short) >= share * total > sum(d for d in short if d < short[-1])


def test_two_processes_share_the_short_ones(tones: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datamodule, "world_size", lambda: 2)
    shares = []
    for number in range(2):
        monkeypatch.setattr(datamodule, "rank", lambda number=number: number)
        data = SpeechDataModule(config(tones))
        shares.append(data._steps(0))
    assert len(shares[0]) == len(shares[1])
    used = sorted(cut.id for steps in shares for parts in steps for part in parts for cut in part)
    assert used == planned(data, 0) == sorted(cut.id for cut in data.short_cuts)


def test_memory_is_probed_with_long_utterances_before_the_first_step(tones: Path) -> None:
    data = SpeechDataModule(config(tones))

    class Requested:
        def __getitem__(self, parts: list[list[Any]]) -> float:
            return max(cut.duration for cut in parts[0])

    data.dataset = Requested()  # type: ignore[assignment]
    longest = max(cut.duration for cut in data.train_cuts)
    of_short = max(cut.duration for cut in data.short_cuts)
    assert of_short < float(data.largest(0)) <= longest  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(config(tones), tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.drawn(1)
@pytest.mark.parametrize("stop_at", [3, 14])
def test_a_resumed_run_ends_with_the_same_weights(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, stop_at: int
) -> None:
    """Stop among the short utterances, and among all."""
    step = SpeechModule.training_step
    epochs: list[int] = []

    def die(self: SpeechModule, batch: Any, *args: Any) -> Any:
        if self.global_step == stop_at and not epochs:
            epochs.append(self.current_epoch)
            self.signal = 2
        return step(self, batch, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SpeechModule, "training_step", die)
        train(config(tones), tmp_path / "run")
    assert epochs == [0 if stop_at == 3 else 2]
    with pytest.raises(ConfigError, match=r"another training\.curriculum"):
        train(config(tones, curriculum=None), tmp_path / "run", resume=True)
    train(config(tones), tmp_path / "run", resume=True)
    expected, found = (load_file(run / "model.safetensors") for run in (whole, tmp_path / "run"))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_curriculum_that_leaves_nothing_is_refused(tones: Path) -> None:
    with pytest.raises(ValueError, match="make it 2 at most"):
        config(tones, curriculum={"epochs": 3, "share": 0.5})
    with pytest.raises(ValueError, match=r"share"):
        config(tones, curriculum={"epochs": 1, "share": 1.0})


def test_pauses_after_the_last_epoch_are_refused(tones: Path) -> None:
    values = tones_recipe(tones, augment={"pauses": {"from_epoch": 4}}, training={"epochs": 3})
    with pytest.raises(ValueError, match=r"from_epoch 4 is after .* make it 3 at most, or"):
        Config.model_validate(values)
