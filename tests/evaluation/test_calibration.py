"""The threshold that is chosen on dev, against a count by hand."""

from dataclasses import replace

import numpy as np
import pytest

from asr.decoding.hypothesis import Hypothesis
from asr.evaluation.calibration import Calibration
from asr.evaluation.cer import ErrorCounts, character_errors
from asr.tokenizer import TokenizerConfig

GUESS = Hypothesis((5, 6), -1.0, -1.0, None, "eos", text="天好")


def said(confidence: float, text: str = "天好") -> Hypothesis:
    return replace(GUESS, confidences=(confidence, confidence), text=text)


def test_one_in_a_hundred_is_below_and_no_more() -> None:
    calibration = Calibration()
    for i in range(400):
        calibration.add("天气好", said(0.9 if i >= 5 else 0.1 + 0.02 * i))
    # 0.10, 0.12, 0.14 and 0.16 are 1 % of 400; 0.18 is one too many.
    assert calibration.threshold == pytest.approx(0.18)


def test_a_sure_model_keeps_the_highest_and_a_poor_one_loses_nothing() -> None:
    sure, poor = Calibration(), Calibration()
    for _ in range(100):
        sure.add("天好", said(0.95))
        poor.add("天好", said(0.005))
    assert sure.threshold == 0.35
    assert poor.threshold == 0


def test_what_holds_no_text_does_not_lower_it() -> None:
    calibration = Calibration()
    for confidence in [0.9] * 100 + [0.05, 0.06]:
        calibration.add("天好" if confidence > 0.5 else "", said(confidence))
    assert calibration.threshold == 0.35


@pytest.mark.parametrize("n", [1, 2, 5, 30, 100])
def test_few_utterances_leave_out_few_others(n: int) -> None:
    """Of a weak model's texts, at most 3 of 100 in the mean, however few dev has."""
    rng, lost, n_texts = np.random.default_rng(0), 0, 200 * 100
    for _ in range(100):
        calibration = Calibration()
        for confidence in rng.beta(2, 3, n):
            calibration.add("天好", said(float(confidence)))
        lost += int((rng.beta(2, 3, 200) < calibration.threshold).sum())
    assert lost < 0.03 * n_texts


@pytest.mark.parametrize(("threshold", "errors"), [(0.0, 2), (0.2, 3)])
def test_words_are_counted_under_the_models_normalization(threshold: float, errors: int) -> None:
    calibration = Calibration(TokenizerConfig(case="lower", punctuation="remove").normalize)
    calibration.add("Turn left, now!", said(0.1, "turn lift"))
    calibration.add("Stop.", said(0.8, "stop"))
    assert calibration.word_errors(threshold).errors == errors
    assert calibration.word_errors(threshold).reference_length == 4
    assert calibration.errors(0.0) == ErrorCounts(1, 0, 4, 13 + 4)


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.35])
def test_errors_are_those_of_the_texts_that_are_left(threshold: float) -> None:
    calibration, expected = Calibration(), ErrorCounts()
    pairs = [("天气好", 0.1, "天好"), ("好", 0.25, "坏"), ("", 0.3, "啊"), ("北京", 0.8, "北京")]
    for reference, confidence, text in pairs:
        calibration.add(reference, said(confidence, text))
        expected += character_errors(reference, text if confidence >= threshold else "")
    assert calibration.errors(threshold) == expected


def test_a_text_with_just_the_confidence_of_the_threshold_is_kept() -> None:
    for step in range(101):
        calibration = Calibration()
        calibration.add("好", found := said(step / 100, "好"))
        is_lost = found.confidence < step / 100  # by a rounding
        assert calibration.errors(step / 100).errors == is_lost, step


def test_processes_together_choose_what_one_chooses() -> None:
    parts, whole = [Calibration(), Calibration()], Calibration()
    for i in range(300):
        one = said(0.01 + i / 310)
        parts[i % 2].add("天好", one)
        whole.add("天好", one)
    parts[0].counts_CN += parts[1].counts_CN
    assert parts[0].threshold == whole.threshold > 0
