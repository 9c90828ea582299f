"""The small Linformer: its initial weights, pre-training once, and early stopping."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from experiments.genome import linformer

PANEL = [torch.arange(2, 40), torch.arange(30, 60)]


def test_pretraining_is_repeated_only_for_other_settings_or_another_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_trained = 0

    def train(model: nn.Module, *_: object) -> Iterator[float]:
        nonlocal n_trained
        n_trained += 1
        nn.init.constant_(model.special, n_trained)
        yield 1.0

    monkeypatch.setattr(linformer, "train", train)

    def pretrain(panel: list[Tensor] = PANEL, **changes: int) -> float:
        """Return the number of the training whose weights are returned."""
        values = {"length": 50, "vocab": 100, "seed": 1, "epochs": 1, **changes}
        config = linformer.configure(values["length"], values["vocab"])
        model = linformer.pretrain(config, panel, values["epochs"], values["seed"], tmp_path)
        assert model.embed.num_embeddings == values["vocab"]
        return float(model.special.detach().mean())

    assert pretrain() == 1 == pretrain()
    changes = [{"vocab": 101}, {"seed": 2}, {"epochs": 2}, {"length": 60}]
    assert [pretrain(**each) for each in changes] == [2, 3, 4, 5]
    assert pretrain([PANEL[0].flip(0), PANEL[1]]) == 6 and pretrain(PANEL[:1]) == 7
    assert pretrain() == 1 and pretrain(seed=2) == 3 and n_trained == 7


def test_a_shift_by_one_token_changes_the_initial_output_little() -> None:
    config = linformer.configure(1024, 100)
    torch.manual_seed(0)
    tokens_BS = torch.randint(2, 100, (16, 1000))
    shifted_BS = tokens_BS.roll(1, 1)

    def change(model: nn.Module) -> float:
        model.eval()
        with torch.inference_mode():
            before, after = (model(x_BS, x_BS > 0) for x_BS in (tokens_BS, shifted_BS))
        spread = (before - before.mean(0)).norm(dim=1).mean()
        return float((before - after).norm(dim=1).mean() / spread)

    assert change(linformer.initialize(config, 1)) < 0.3
    assert change(linformer.SequenceClassifier(config)) > 0.6


def test_fine_tuning_returns_the_best_epoch_and_stops_five_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    epochs = iter(range(1, 16))

    def train(model: nn.Module, *_: object) -> Iterator[float]:
        for epoch in epochs:
            nn.init.constant_(model.special, epoch)
            yield 1.0

    def predict(model: nn.Module, *_: object) -> Tensor:
        wrong = 0.9 if model.special[0, 0] != 3 else 0.1
        return torch.tensor([[1 - wrong, wrong], [0.5, 0.5]])

    monkeypatch.setattr(linformer, "train", train)
    monkeypatch.setattr(linformer, "predict", predict)
    model = linformer.initialize(linformer.configure(50, 100), 1)
    validation = [(PANEL[0], 0), (PANEL[1], 1)]
    best = linformer.fine_tune(model, validation, validation, epochs=15, seed=1)
    assert best.special[0, 0] == 3 and next(epochs) == 9
