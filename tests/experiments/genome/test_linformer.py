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


def test_runs_of_tokens_are_hidden_and_completed() -> None:
    sequences = [torch.arange(100, 500), torch.arange(100, 130)]
    hidden = linformer.hide(sequences, 0.4, seed=1)
    for before, after in zip(sequences, hidden, strict=True):
        unread = after == linformer.UNK
        assert torch.equal(before[~unread], after[~unread])
        assert 0 < unread.sum() < len(before)
    unread = (hidden[0] == linformer.UNK).float()
    assert 0.25 < unread.mean() < 0.55
    n_runs = 1 + (unread.diff() != 0).sum() // 2
    assert unread.sum() / n_runs >= 5  # one token at a time: 1.7
    assert torch.equal(linformer.hide(sequences, 0.0, seed=1)[0], sequences[0])

    model = linformer.initialize(linformer.configure(512, 600), 1)
    nn.init.constant_(model.token_head.bias[7:8], 1e4)
    for before, after in zip(hidden, linformer.complete(model, hidden), strict=True):
        assert torch.equal(after, before.masked_fill(before == linformer.UNK, 7))


def test_a_hidden_token_sees_its_neighbors() -> None:
    model = linformer.initialize(linformer.configure(512, 100), 1).eval()
    x_BS = torch.randint(2, 100, (1, 400), generator=torch.Generator().manual_seed(0))
    masked_BS = torch.zeros_like(x_BS, dtype=torch.bool)
    masked_BS[0, 200] = True

    def change(position: int) -> float:
        """Return how far the guess moves if the token at another position does."""
        other_BS = x_BS.clone()
        other_BS[0, position] = 2 + (x_BS[0, position] + 10) % 98
        with torch.inference_mode():
            guesses = [model.reconstruct(x, x > 0, masked_BS) for x in (x_BS, other_BS)]
        return float((guesses[0] - guesses[1]).norm())

    near, far = (max(change(200 + i) for i in places) for places in ((-9, -2, 2, 9), (-99, 99)))
    assert near > 2 * far > 0
