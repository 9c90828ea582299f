"""The study's sizes match, and its intervals are those of known errors."""

from pathlib import Path

import numpy as np
import pytest

from asr.config import load_config
from asr.model.transformer import ModelConfig
from benchmarks import generalization
from benchmarks.generalization import Measured, convergence, interval, matched, networks, parameters

BASE = ModelConfig.model_validate(
    {"d_model": 32, "d_inner": 64, "n_heads": 4, "projection": {"kind": "dense"}}
)


def test_sizes_match_a_dense_network() -> None:
    target = parameters(BASE, 40, 30, {}) // 2
    assert parameters(BASE, 40, 30, {}) == sum(p.numel() for p in BASE.build(40, 30).parameters())

    def ranked(rank: int) -> dict[str, object]:
        return {"d_model": 64, "d_inner": 256, "projection": {"kind": "low_rank", "rank": rank}}

    def size(values: dict[str, object]) -> int:
        return parameters(BASE, 40, 30, values)

    values = matched(ranked, size, size(ranked(12)) + 30)
    assert values == ranked(12)
    with pytest.raises(ValueError, match="no size within 1%"):
        matched(ranked, size, target // 100)


@pytest.mark.slow
def test_remedies_and_controls_change_values_and_keep_the_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generalization, "load_cuts", lambda path: ["一二三四五六七八九十"])
    monkeypatch.setattr(generalization, "text_of", lambda cut: cut)
    decay = ["training.weight_decay=0.1"]
    remedy = ["spectral", "model.projection.init=spectral", *decay]
    config = load_config(Path("benchmarks/recipes/generalization.yaml"))
    found = {n.name: n for n in networks(config, [remedy], [["decay", *decay]])}
    assert list(found) == [
        "dense", "dense, half", "LRT, half", "LRT, equal", "LRT, equal, spectral", "dense, decay"
    ]  # fmt: skip
    for name in ("LRT, equal", "LRT, equal, spectral", "dense, decay"):
        assert found[name].n_parameters == pytest.approx(found["dense"].n_parameters, rel=0.01)
    for name in ("dense, half", "LRT, half"):
        assert found[name].n_parameters == pytest.approx(found["dense"].n_parameters / 2, rel=0.01)
    remedied = dict(found["LRT, equal, spectral"].values)
    assert remedied.pop("training.weight_decay") == 0.1
    assert remedied.pop("model.projection.init") == "spectral"
    assert remedied == found["LRT, equal"].values
    assert found["dense, decay"].values == {**found["dense"].values, "training.weight_decay": 0.1}


def test_an_interval_holds_what_seeds_and_utterances_vary() -> None:
    rng = np.random.default_rng(3)
    lengths_N = rng.integers(5, 20, size=400)

    def run(rate: float) -> Measured:
        return Measured([], rng.binomial(lengths_N, rate), lengths_N)

    worse, better = [run(0.25) for _ in range(5)], [run(0.2) for _ in range(5)]
    low, high = interval(worse)
    assert low < 25 < high and high - low < 3
    low, high = interval(worse, better)
    assert 0 < low < 5 < high < 10
    low, high = interval(worse, worse)
    assert low < 0 < high


def test_convergence_has_the_losses_of_epochs_and_what_they_rise() -> None:
    def run(*losses: float) -> Measured:
        none = np.zeros(1)
        return Measured([{"val_loss": loss} for loss in losses], none, none)

    steady, rough = [run(4, 3, 2), run(2, 1, 0)], [run(4, 1, 3), run(4, 3, 4)]
    result = convergence({"steady": steady, "rough": rough})
    assert list(result.columns)[1:4] == ["epoch 1", "epoch 2", "epoch 3"]
    assert result.rows[0] == ["steady", 3, 2, 1, pytest.approx(2**0.5), 0]
    assert result.rows[1] == ["rough", 4, 2, 3.5, pytest.approx(0.5**0.5), 1.5]
