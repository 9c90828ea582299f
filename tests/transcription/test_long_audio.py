"""Long recordings, and times in them: tones and pauses of which every boundary is known."""

import tracemalloc
from itertools import pairwise
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import soundfile as sf
import torch

import asr
from asr.audio.recording import Recording
from asr.audio.segmentation import split_at_silence
from asr.config import Config
from asr.errors import AudioError
from asr.normalization import normalize_text
from asr.transcription.recognizer import Recognizer, longest_seconds
from tests.helpers import RATE, say, tones_recipe


@pytest.fixture(scope="module")
def model(trained_bundle: Path) -> Recognizer:
    return asr.load(trained_bundle, "cpu")


def test_times_of_tokens_are_the_recordings_own(model: Recognizer, tmp_path: Path) -> None:
    """Recordings of six tones, joined with silence to a minute and a half, so cut and batched."""
    silence, waves, spoken, at = np.zeros(int(1.5 * RATE)), [], [], 0.0
    for seed in range(30):
        wave, tones = say(6, seed)
        spoken += [(text, at + start, at + end) for text, start, end in tones]
        waves += [wave, silence]
        at += (len(wave) + len(silence)) / RATE
    sf.write(tmp_path / "joined.wav", np.concatenate(waves), RATE)
    found = model.transcribe(tmp_path / "joined.wav")
    assert len(found.segments) > 3
    tokens = [token for segment in found.segments for token in segment.tokens or ()]
    assert normalize_text("".join(token.text for token in tokens)) == found.text
    for segment in found.segments:
        times = [t for token in segment.tokens or () for t in (token.start, token.end)]
        assert times == sorted(times)
        assert all(segment.start <= t <= segment.end for t in times)
    errors = []
    for text, start, end in spoken:
        near = [t for t in tokens if t.text == text and abs(t.start - start) < 0.5]
        if near:
            token = min(near, key=lambda t: abs(t.start - start))
            errors += [abs(token.start - start), abs(token.end - end)]
    assert len(errors) > 1.6 * len(spoken), "most tones are recognized"
    assert mean(errors) < 0.1


@pytest.mark.parametrize("kind", ["spectrogram", "log_mel", "fbank"])
@pytest.mark.parametrize("frontend", ["vgg", "strided"])
def test_the_longest_chunk_is_not_too_long_for_the_model(kind: str, frontend: str) -> None:
    mels = {} if kind == "spectrogram" else {"n_mels": 20}
    attention = {"kind": "linformer", "rank": 3, "length": 25}
    encoder = {"n_layers": 1, "attention": attention}
    model = {"encoder": encoder, "frontend": {"kind": frontend, "channels": [4, 8]}}
    recipe = tones_recipe(Path("tones"), model=model)
    recipe["features"] = {"kind": kind, "sample_rate": RATE, **mels}
    config = Config.model_validate(recipe)
    n_samples = int(longest_seconds(config) * RATE)
    attention["length"] = 10
    with pytest.raises(ValueError, match="make it 11 at least"):
        Config.model_validate(recipe)
    attention["length"] = 11
    shortest = longest_seconds(Config.model_validate(recipe))
    assert len(list(split_at_silence([np.zeros(RATE)], RATE, shortest))) > 1
    frames = len(config.features.build()(torch.randn(n_samples)))
    assert 24 <= config.model.frontend.steps(frames) <= config.model.encoder.longest == 25


def test_a_long_file_has_the_text_of_its_chunks(model: Recognizer, tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    with sf.SoundFile(path, "w", RATE, 1) as file:
        for seed in range(260):
            file.write(say(5, seed)[0])
    found = model.transcribe(path)
    assert found.duration > 300 and found.nbest == ()
    chunks = list(split_at_silence(Recording(path, RATE), RATE))
    assert len(chunks) == len(found.segments) > 20
    at = 0.0
    for i, (chunk, segment) in enumerate(zip(chunks, found.segments, strict=True)):
        assert segment.start == pytest.approx(at)
        at = segment.end
        if i % 8 == 0:
            sf.write(tmp_path / "chunk.wav", chunk, RATE, subtype="FLOAT")
            alone = model.transcribe(tmp_path / "chunk.wav")
            assert alone.text == segment.text
            assert alone.score == pytest.approx(segment.score, abs=1e-4)
            assert alone.nbest[0].score == alone.score
    assert at == pytest.approx(found.duration)
    assert found.text == normalize_text(" ".join(s.text for s in found.segments))
    assert found.score == pytest.approx(sum(s.score for s in found.segments))


def test_recordings_share_batches_and_keep_their_order(model: Recognizer, tmp_path: Path) -> None:
    paths = []
    for i in range(70):
        paths.append(tmp_path / f"{i}.wav")
        sf.write(paths[-1], np.tile(say(4, i)[0], 12 if i == 40 else 1), RATE)
    paths[3].write_bytes(b"no audio")
    paths[69].unlink()
    done: list[float] = []
    found = list(model.transcribe_all(paths, on_progress=done.append))
    assert [i for i, result in enumerate(found) if isinstance(result, AudioError)] == [3, 69]
    assert done == sorted(done) and 0 < done[0] < 70 == done[-1]
    for i in (0, 2, 4, 40, 68):
        assert found[i].text == model.transcribe(paths[i]).text  # type: ignore[union-attr]


def test_memory_does_not_grow_with_the_recording(model: Recognizer, tmp_path: Path) -> None:
    peaks = []
    for minutes in (8, 32):
        path = tmp_path / f"{minutes}.flac"
        with sf.SoundFile(path, "w", RATE, 1) as file:
            for _ in range(minutes * 2):
                file.write(np.zeros(30 * RATE))
        tracemalloc.start()
        assert model.transcribe(path).duration == minutes * 60
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_segments_follow_each_other_without_a_gap(model: Recognizer, tmp_path: Path) -> None:
    sf.write(tmp_path / "a.wav", np.concatenate([say(6, i)[0] for i in range(40)]), RATE)
    segments = model.transcribe(tmp_path / "a.wav").segments
    assert segments[0].start == 0
    assert all(a.end == b.start for a, b in pairwise(segments))
    options = model.config.decoding.changed({"chunk_seconds": 3.0})
    shorter = model.transcribe(tmp_path / "a.wav", options).segments
    assert len(shorter) > len(segments) and all(s.end - s.start <= 3 for s in shorter)


def test_a_recording_without_speech_has_no_text(model: Recognizer, tmp_path: Path) -> None:
    sf.write(tmp_path / "a.wav", np.concatenate([say(6, i)[0] for i in range(3)]), RATE)
    options = model.config.decoding.changed({"speech_threshold": 0.9999999})
    (segment,) = model.transcribe(tmp_path / "a.wav", options).segments
    assert (segment.text, segment.ended, segment.tokens) == ("", "no_speech", ())


@pytest.mark.parametrize("method", ["joint", "ctc_greedy", "ctc_beam", "rescore"])
def test_every_method_recognizes_the_tones(model: Recognizer, tmp_path: Path, method: str) -> None:
    wave, spoken = say(5, 7)
    sf.write(tmp_path / "a.wav", wave, RATE)
    options = model.config.decoding.changed({"method": method})
    found = model.transcribe(tmp_path / "a.wav", options)
    assert found.text == "".join(text for text, _, _ in spoken)


def test_a_text_that_is_left_out_is_told_to_the_caller(
    model: Recognizer, caplog: pytest.LogCaptureFixture
) -> None:
    """Who prints the text alone would take the recording for silence."""
    wave = asr.Samples(say(6, 1)[0].astype(np.float32), RATE)
    sure = model.config.decoding.changed({"confidence_threshold": 0.0})
    said = model.transcribe(wave, sure).text
    assert said and not caplog.text
    found = model.transcribe(wave, sure.changed({"confidence_threshold": 0.9999}))
    assert not found.text and found.warnings[0] in caplog.text
    assert "left out as uncertain" in caplog.text and said in caplog.text
