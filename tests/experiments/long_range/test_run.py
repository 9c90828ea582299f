"""The script: every attention takes part, its table, and a second run that continues."""

import json
import sys
from pathlib import Path

import pytest

from asr.errors import ConfigError
from asr.lm.transformer import LanguageTransformer, LmConfig
from asr.model.attention import EncoderAttentionConfig, stepped_kernels
from asr.model.transformer import ModelConfig
from experiments.long_range import duplication
from experiments.long_range import run as script


def kinds_of(config: object) -> set[str]:
    """Return the values of `kind` in a union of configurations."""
    union = config.__origin__  # type: ignore[attr-defined]
    return {member.model_fields["kind"].annotation.__args__[0] for member in union.__args__}


def test_no_attention_is_left_out() -> None:
    assert set(script.PRINTED) == kinds_of(EncoderAttentionConfig)
    assert set(script.CAUSAL) <= set(script.PRINTED)


@pytest.mark.parametrize("kind", script.PRINTED)
def test_every_attention_classifies(kind: str) -> None:
    row = script.classify(kind, seed=1, task="listops", n=8, full=False, epochs=1)
    assert (
        row["parameters"] > 1000
        and row["kept"] > 0.1
        and all(0 <= row[key] <= 100 for key in ("train", "test"))
    )


def test_a_causal_model_learns_to_duplicate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "_LENGTH", 4)
    monkeypatch.setattr(script, "_LR", 5e-3)
    row = script.duplicate("full", seed=1, steps=120)
    assert row["end"] < 0.5 * row["quarter"]


def test_a_causal_performer_draws_its_features_anew() -> None:
    attention = {"kind": "performer", "features": 4, "redraw": 2}
    values = script.model_config("full", 8).model_dump()
    values["decoder"]["attention"] = attention
    config = LmConfig(vocab_size=4, model=ModelConfig.model_validate(values))
    network = LanguageTransformer(config)
    list(duplication.train(network, 5, 2, 4, 3, 1e-3))
    assert {kernel.drawn for kernel in stepped_kernels(network)} == {2}  # the fifth step's


def test_it_prints_the_table_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> list[str]:
        command = ["run.py", "pathfinder", "--out", str(tmp_path), "--examples", "8", "--epochs"]
        monkeypatch.setattr(sys, "argv", [*command, "1", "--kinds", "fnet", "isab"])
        script.main()
        return capsys.readouterr().out.splitlines()

    assert [line.split("|")[1].strip() for line in run()[2:]] == ["fnet", "isab"]
    path = tmp_path / "pathfinder.json"
    found = json.loads(path.read_text())
    found["rows"][0]["test"] = 12.5
    del found["rows"][1]
    path.write_text(json.dumps(found))
    lines = run()
    assert "12.50" in lines[2] and lines[2].rstrip(" |").endswith("77.80")
    found = json.loads(path.read_text())
    assert len(found["rows"]) == 2
    del found["settings"]["version"]  # as before the median of an even number was corrected
    path.write_text(json.dumps(found))
    with pytest.raises(ConfigError, match="has other settings"):
        run()
