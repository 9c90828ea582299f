"""Evaluation and tuning of a trained model: nothing is left out without a word."""

from pathlib import Path

import jiwer
import numpy as np
import pytest
import soundfile as sf
import torch
from lhotse import CutSet
from lhotse.utils import fastcopy

import asr
from asr.data.manifest import load_cuts
from asr.errors import DataError
from asr.evaluation import tune as tuning
from asr.evaluation.evaluate import evaluate
from asr.evaluation.records import UtteranceErrors
from asr.transcription.recognizer import Recognizer
from data_prep.corpus_writer import write_corpus
from data_prep.cuts import Utterance
from tests.helpers import RATE, say, speak


def test_errors_are_those_of_jiwer_and_what_has_no_text_is_told(
    learned: Path, tones: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = asr.load(learned, "cpu")
    first, second, *others = load_cuts(tones / "dev.jsonl.gz")
    wrong = first.map_supervisions(lambda s: fastcopy(s, text="".join(reversed(s.text)) + s.text))
    empty = second.map_supervisions(lambda s: fastcopy(s, text=" "))
    found: list[UtteranceErrors] = []
    result = evaluate(
        model,
        CutSet.from_cuts([wrong, empty, *others]),
        on_group=lambda _, each: found.extend(each),
    )
    assert sorted(u.id for u in found) == sorted(cut.id for cut in (first, *others))
    assert f"1 utterances have no text and are left out: {second.id} first" in caplog.text
    output = jiwer.process_characters([u.reference for u in found], [u.hypothesis for u in found])
    counts = output.substitutions, output.insertions, output.deletions
    assert (result.substitutions, result.insertions, result.deletions) == counts and sum(counts)
    assert result.cer == pytest.approx(output.cer)
    assert result.worst[0].id == first.id


def test_utterances_left_out_as_uncertain_are_counted(learned: Path, tones: Path) -> None:
    model, cuts = asr.load(learned, "cpu"), load_cuts(tones / "dev.jsonl.gz")
    options = model.config.decoding
    sure = evaluate(model, cuts, options.changed({"confidence_threshold": 0.0}))
    assert sure.uncertain == 0 and "uncertain" not in str(sure)
    strict = evaluate(model, cuts, options.changed({"confidence_threshold": 0.999}))
    assert strict.uncertain > 0
    assert strict.deletions - sure.deletions >= strict.uncertain
    assert f"text of {strict.uncertain} left out as uncertain" in str(strict)


def test_what_is_evaluated_is_what_a_user_gets(learned: Path, tmp_path: Path) -> None:
    """A long utterance is cut as `asr transcribe` cuts it."""
    wave, said = say(20, 3)
    sf.write(tmp_path / "long.wav", wave, RATE)
    text = "".join(text for text, _, _ in said)
    cut = Utterance("long", tmp_path / "long.wav", text, "")
    write_corpus({"dev": [cut]}, tmp_path, corpus="long")
    model, found = asr.load(learned, "cpu"), list[UtteranceErrors]()
    options = model.config.decoding.changed({"chunk_seconds": 1.5})
    cuts = load_cuts(tmp_path / "dev.jsonl.gz")
    evaluate(model, cuts, options, on_group=lambda _, each: found.extend(each))
    given = model.transcribe(tmp_path / "long.wav", options)
    assert len(given.segments) > 2 and found[0].hypothesis == given.text != ""
    assert given.text != model.texts([torch.tensor(wave)])[0][0], "one piece has another text"
    short = [torch.tensor(wave[: int(1.45 * RATE)])]
    pieces = [len(model.texts(short, options, speed)[0][1]) for speed in (1.0, 0.9)]
    assert pieces == [1, 1], "it is cut, then slowed, as recordings are"


def test_tuning_uses_what_is_decoded_in_one_piece(
    library: Recognizer, tones: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the limit of `asr evaluate`, which is `decoding.chunk_seconds` too."""
    cuts, options = load_cuts(tones / "dev.jsonl.gz"), library.config.decoding
    longest = sorted(float(cut.duration) for cut in cuts)[3]
    chosen = options.model_copy(update={"chunk_seconds": longest})
    with caplog.at_level("INFO"):
        batches = list(tuning._encode(library, cuts, chosen, 1000))
    n_used = sum(float(cut.duration) <= longest for cut in cuts)
    assert sum(len(texts) for _, texts in batches) == n_used < len(cuts)
    assert f"{len(cuts) - n_used} utterances are longer than" in caplog.text
    assert "silent" not in caplog.text
    chosen = options.model_copy(update={"chunk_seconds": 0.01})
    with pytest.raises(DataError, match=r"all utterances are longer than 0\.01 s"):
        list(tuning._encode(library, cuts, chosen, 1000))


def test_tuning_tells_how_many_utterances_are_silent(
    library: Recognizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waves = {"silent": np.zeros(RATE), "longer": np.zeros(2 * RATE), "spoken": speak("一")}
    for name, wave in waves.items():
        sf.write(tmp_path / f"{name}.wav", wave, RATE)
    write_corpus(
        {"dev": [Utterance(name, tmp_path / f"{name}.wav", "一", "") for name in waves]},
        tmp_path, corpus="silence",
    )  # fmt: skip
    cuts = load_cuts(tmp_path / "dev.jsonl.gz")
    batches = list(tuning._encode(library, cuts, library.config.decoding, 1000))
    assert [texts for _, texts in batches] == [["一"]]
    assert "2 utterances are silent, or too short to be decoded, and not used" in caplog.text
