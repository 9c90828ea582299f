"""Evaluation and tuning of a trained model: nothing is left out without a word."""

from pathlib import Path

import pytest

import asr
from asr.data.manifest import load_cuts
from asr.errors import DataError
from asr.evaluation import tune as tuning
from asr.evaluation.evaluate import evaluate


def test_utterances_left_out_as_uncertain_are_counted(learned: Path, tones: Path) -> None:
    model, cuts = asr.load(learned, "cpu"), load_cuts(tones / "dev.jsonl.gz")
    options = model.config.decoding
    sure = evaluate(model, cuts, options.changed({"confidence_threshold": 0.0}))
    assert sure.uncertain == 0 and "uncertain" not in str(sure)
    strict = evaluate(model, cuts, options.changed({"confidence_threshold": 0.999}))
    assert strict.uncertain > 0
    assert strict.deletions - sure.deletions >= strict.uncertain
    assert f"text of {strict.uncertain} left out as uncertain" in str(strict)


def test_tuning_uses_what_is_decoded_in_one_piece(
    learned: Path, tones: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, cuts = asr.load(learned, "cpu"), load_cuts(tones / "dev.jsonl.gz")
    longest = sorted(float(cut.duration) for cut in cuts)[3]
    monkeypatch.setattr(tuning, "longest_seconds", lambda _: longest)
    with caplog.at_level("INFO"):
        batches = list(tuning._encode(model, cuts, 1000))
    n_used = sum(float(cut.duration) <= longest for cut in cuts)
    assert sum(len(texts) for _, texts in batches) == n_used < len(cuts)
    assert f"{len(cuts) - n_used} utterances are longer than" in caplog.text
    monkeypatch.setattr(tuning, "longest_seconds", lambda _: 0.01)
    with pytest.raises(DataError, match=r"all utterances are longer than 0\.01 s"):
        list(tuning._encode(model, cuts, 1000))
