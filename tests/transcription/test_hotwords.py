"""Hotwords as users give them: lists, options, every method, streams and the command line."""

from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
import torch

import asr
from asr.decoding.hotwords import Hotword, of_request, parse_hotwords, read_hotwords
from asr.decoding.options import DecodingOptions
from asr.errors import ConfigError
from asr.transcription.recognizer import Recognizer
from tests.helpers import METHODS, RATE, mistuned, run_cli, say


def test_lists_of_hotwords_are_read(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\ufeff# names\n三五\n\n 二 四 \t2.5\r\n", "utf-8")
    assert read_hotwords(path) == (Hotword("三五"), Hotword("二 四", 2.5))
    for wrong in ("三\tmany", "三\t0", "三\t-1", "三\tnan", "三\t1e9", " \t3"):
        with pytest.raises(ConfigError, match="line 1"):
            parse_hotwords(wrong)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_hotwords(tmp_path)
    assert of_request("三五,二四\n一\t3", "请听：王伟、李娜。") == (
        Hotword("三五"), Hotword("二四"), Hotword("一", 3.0),
        Hotword("请听"), Hotword("王伟"), Hotword("李娜"),
    )  # fmt: skip
    assert not of_request("", "今" * 21)
    assert len(of_request("", ",".join(map(str, range(5000))))) == 1000
    with pytest.raises(ConfigError, match="1001 hotwords"):
        of_request("\n".join(map(str, range(1001))))
    with pytest.raises(ConfigError, match="51 characters"):
        of_request("今" * 51)


def test_options_hold_hotwords_and_check_them() -> None:
    options = DecodingOptions(hotwords=["三五", ("二", 2.0)])
    assert options.hotwords == (Hotword("三五"), Hotword("二", 2.0))
    assert options.changed({"beam_size": 3}).hotwords == options.hotwords
    assert DecodingOptions.model_validate_json(options.model_dump_json()) == options
    assert "hotwords" not in DecodingOptions().model_dump()
    with pytest.raises(ConfigError, match="weight"):
        DecodingOptions().changed({"hotwords": [("三", -1.0)]})
    with pytest.raises(ConfigError, match="--confidence with --method ctc_sounds is of sounds"):
        options.changed({"method": "ctc_sounds", "confidence_threshold": 0.5})


@pytest.fixture(scope="module")
def model(trained_bundle: Path) -> Recognizer:
    return asr.load(trained_bundle, "cpu")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_hotwords(model: Recognizer, method: str) -> None:
    wave, phrase = mistuned()
    audio, options = asr.Samples(wave, RATE), model.config.decoding.changed({"method": method})
    plain = model.transcribe(audio, options)
    assert phrase not in plain.text
    found = model.transcribe(audio, options, hotwords=[phrase])
    assert found.text.startswith(phrase) and found.nbest[0].hotword_score == 4.0
    assert found.score > plain.score
    # A weight that is too small, and a phrase that goes on otherwise.
    for hotword in ((phrase, 0.01), (phrase + "三三", 0.1)):
        assert phrase not in model.transcribe(audio, options, hotwords=[hotword]).text


def test_unknown_characters_are_told_and_skipped(model: Recognizer) -> None:
    wave, tones = say(3, 6)
    result = model.transcribe(asr.Samples(wave, RATE), hotwords=["三龍", "Q", "三", "。"])
    assert result.text == "".join(text for text, _, _ in tones)
    (warning,) = result.warnings
    assert "三龍" in warning and "龍" in warning.split("(")[1] and "Q" in warning
    assert "skipped" in warning and warning.count(".") == 0


def test_finals_of_a_stream_have_hotwords(streaming_bundle: Path) -> None:
    model = asr.load(streaming_bundle, "cpu")
    wave, tones = say(4, 21)
    said = "".join(text for text, _, _ in tones)
    phrase = said[0] + next(c for c in "一二三四五" if c != said[1]) + said[2]
    options = model.config.decoding.changed({"confidence_threshold": 0.0})
    blocks, hotwords = [wave.astype("float32")], [(phrase, 6.0)]
    *partials, final = model.stream(blocks, options, hotwords=hotwords)
    assert final.is_final and final.text.replace(" ", "").startswith(phrase)
    assert all(phrase not in partial.text for partial in partials)


def test_the_command_line_reads_them(trained_bundle: Path, tmp_path: Path) -> None:
    wave, phrase = mistuned()
    files = [tmp_path / "a.wav", tmp_path / "b.wav"]
    for file in files:
        sf.write(file, wave, RATE)
    words = tmp_path / "words.txt"
    words.write_text(f"# names\n{phrase}\n龍\t2\n", "utf-8")
    done = run_cli("transcribe", trained_bundle, *files, "--hotwords", words, "--jobs", "2")
    assert done.returncode == 0 and done.stderr.count("skipped") == 1
    assert all(line.split("\t")[1].startswith(phrase) for line in done.stdout.splitlines())
    words.write_text("三\tmuch\n", "utf-8")
    done = run_cli("transcribe", trained_bundle, *files, "--hotwords", words)
    assert done.returncode == 2 and "line 1" in done.stderr


def test_a_match_of_each_method_leaves_batches_alone(model: Recognizer) -> None:
    waves = [torch.from_numpy(say(n, 30 + n)[0].astype(np.float32)) for n in (2, 4, 3, 5)]
    for method in METHODS:
        options = model.config.decoding.changed({"method": method, "hotwords": ["三五", "四一"]})
        together = model.hypotheses(waves, options)
        for wave, nbest in zip(waves, together, strict=True):
            (alone,) = model.hypotheses([wave], options)
            assert alone[0].tokens == nbest[0].tokens
            assert alone[0].score == pytest.approx(nbest[0].score, abs=1e-3)
