"""Stored results, the table, training, and error messages."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.errors import ConfigError, DataError
from asr.model.attention import stepped_kernels
from asr.model.attention.linear import PerformerAttention, orthogonal_directions
from experiments import runner
from experiments.classifier import ClassifierConfig, SequenceClassifier


def test_settings_are_written_with_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "out" / "results.json"
    runner.Results(path, {"seed": "mistyped"})
    assert not list(path.parent.iterdir())
    results, measured = runner.Results(path, {"seed": "1"}), []

    def measure(model: str) -> dict[str, Any]:
        measured.append(model)
        return {"AUC": 50}

    results.complete([{"model": "a"}], measure)
    stored = {"settings": {"seed": "1"}, "rows": [{"model": "a", "AUC": 50}]}
    assert json.loads(path.read_text()) == stored
    runner.Results(path, {"seed": "1"}).complete([{"model": "a"}, {"model": "b"}], measure)
    assert measured == ["a", "b"]
    with pytest.raises(ConfigError, match="has other settings"):
        runner.Results(path, {"seed": "2"})


def test_rows_before_an_error_are_kept(tmp_path: Path) -> None:
    def measure(model: str) -> dict[str, Any]:
        if model == "b":
            raise KeyboardInterrupt
        return {"AUC": 50}

    path = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        runner.Results(path, {}).complete([{"model": "a"}, {"model": "b"}], measure)
    assert json.loads(path.read_text())["rows"] == [{"model": "a", "AUC": 50}]


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", "[]", "null", '{"settings": {}}', '{"settings": {}, "rows": [1]}', "\udcff"],
)
def test_damaged_results_are_named_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text, errors="surrogateescape")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"results.json: cannot be used \(damaged\): give"):
        runner.Results(path, {})
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(ConfigError, match=rf"{folder}/results.json: cannot be used \("):
            runner.Results(folder / "results.json", {})


def test_the_table_has_means_and_deviations(tmp_path: Path) -> None:
    results = runner.Results(tmp_path / "results.json", {})
    values = iter((1.0, 3.0, 5.0))
    cases = [{"model": "a", "seed": 1}, {"model": "a", "seed": 2}, {"model": "b", "seed": 1}]
    rows = results.complete(cases, lambda **case: {"AUC": next(values), "n": 12345})
    columns = {"AUC (%)": "AUC", "n": "n"}
    lines = runner.table(rows, columns, {"a": "7", "b": "8"}, "thesis").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[0] == ["model", "AUC (%)", "n", "thesis"]
    assert cells[2:] == [["a", "2.00 ± 1.41", "12,345", "7"], ["b", "5.00", "12,345", "8"]]
    assert results.complete(cases[:1], lambda **_: {}) == rows[:1]


@pytest.mark.parametrize("kind", ["routing", "performer"])
def test_training_moves_centroids_and_draws_features_as_that_of_a_recognizer(kind: str) -> None:
    torch.manual_seed(0)
    options = {"clusters": 2} if kind == "routing" else {"features": 4, "redraw": 3}
    encoder = {"n_layers": 1, "attention": {"kind": kind, **options}}
    shape = {"d_model": 16, "d_inner": 32, "n_heads": 2, "norm": "pre", "dropout": 0.0}
    model = {**shape, "projection": {"kind": "dense"}, "encoder": encoder}
    config = ClassifierConfig.model_validate({"n_classes": 2, "vocab_size": 9, "model": model})
    network = SequenceClassifier(config)
    (kernel,) = stepped_kernels(network)
    before = {name: value.clone() for name, value in kernel.state_dict().items()}
    examples = [(torch.randint(3, 9, (5,)), i % 2) for i in range(16)]
    list(runner.train(network, examples, epochs=2, batch_size=4, lr=3e-3))  # 8 steps
    if isinstance(kernel, PerformerAttention):
        assert kernel.latest is not None
        assert torch.equal(kernel.latest, orthogonal_directions(4, 8, 7 // 3))
    else:
        moved = kernel.state_dict()["centroids_HMK"] - before["centroids_HMK"]
        assert 0 < moved.abs().max() < 8 * 0.001 * 10


def test_training_learns_and_padding_changes_no_prediction() -> None:
    torch.manual_seed(0)
    encoder = {"n_layers": 1, "attention": {"kind": "full"}}
    shape = {"d_model": 16, "d_inner": 32, "n_heads": 2, "norm": "pre", "dropout": 0.0}
    model = {**shape, "projection": {"kind": "dense"}, "encoder": encoder}
    config = ClassifierConfig.model_validate({"n_classes": 2, "vocab_size": 9, "model": model})
    network = SequenceClassifier(config)
    examples = [(torch.randint(3, 9, (3 + i % 5,)), i % 2) for i in range(64)]
    for tokens, label in examples:
        tokens[0] = 1 + label
    losses = list(runner.train(network, examples, epochs=12, batch_size=8, lr=3e-3))
    assert len(losses) == 12 and losses[-1] < 0.5 * losses[0]
    together = runner.predict(network, examples, 64)
    assert together.shape == (64, 2) and torch.allclose(together.sum(1), torch.ones(64))
    torch.testing.assert_close(together, runner.predict(network, examples, 1))


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (DataError("x.fa: no bases"), 3, "pixels: x.fa: no bases\n"),
        (IsADirectoryError(21, "Is a directory", "out"), 1, "pixels: out: Is a directory\n"),
        (OSError("full"), 1, "pixels: disk: full\n"),
        (KeyboardInterrupt(), 130, "pixels: interrupted; the same command continues\n"),
    ],
)
def test_an_error_is_one_sentence(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, says: str
) -> None:
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        runner.start("pixels", main)
    assert caught.value.code == code and capsys.readouterr().err == says


def test_kept_memory_is_that_of_the_tensors_which_gradients_need() -> None:
    a, b = (torch.ones(512, 512, requires_grad=True) for _ in range(2))  # 1 MiB each
    computations = {
        0: lambda: a + b, 1: lambda: a * a.T, 2: lambda: a * b, 3: lambda: torch.exp(a * b)
    }  # fmt: skip
    assert [runner.kept_mib(compute) for compute in computations.values()] == list(computations)
