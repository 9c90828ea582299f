"""Streams: text while audio arrives, whatever its blocks, and all of it at the end."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import asr
from asr.audio.recording import Recording
from asr.bundle import Bundle
from asr.config import Config
from asr.decoding import endpoint
from asr.errors import AudioError, ConfigError
from asr.tokenizer import UNK, Tokenizer
from asr.transcription.recognizer import Recognizer
from asr.transcription.stream import Session, advance
from asr.transcription.transcript import StreamResult
from tests.helpers import METHODS, RATE, say, tones_recipe

Options = asr.DecodingOptions
STEP = 0.04


@pytest.fixture(scope="module")
def model(streaming_bundle: Path) -> Recognizer:
    return asr.load(streaming_bundle, "cpu")


def silence(seconds: float, seed: int = 0) -> np.ndarray:
    return 0.003 * np.random.default_rng(seed).normal(size=int(seconds * RATE))


@pytest.fixture(scope="module")
def spoken() -> tuple[np.ndarray, list[tuple[str, float]]]:
    """Three rows of tones with a second and a half of silence between: the wave, and the tones."""
    parts, tones, at = [], [], 0.0
    for seed in (21, 22, 23):
        wave, said = say(5, seed)
        tones += [(text, at + start) for text, start, _ in said]
        parts += [wave, silence(1.5, seed)]
        at = sum(map(len, parts)) / RATE
    return np.concatenate(parts[:-1]).astype(np.float32), tones


def in_blocks(wave: np.ndarray, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    at = 0
    while at < len(wave):
        for size in sizes:
            yield wave[at : at + size]
            at += size


def talking(model: Recognizer) -> Recognizer:
    """Have a model find the first of its tokens in each step."""
    first, head = torch.tensor([UNK + 1]), model.model.ctc_head
    assert head is not None
    head.register_forward_hook(lambda _module, _inputs, logits: logits.index_fill(-1, first, 50.0))
    return model


def finals(results: Sequence[StreamResult]) -> str:
    return "".join(r.text.replace(" ", "") for r in results if r.is_final)


def test_the_text_is_said_and_its_times_are_right(
    model: Recognizer, spoken: tuple[np.ndarray, list[tuple[str, float]]]
) -> None:
    wave, tones = spoken
    results = list(model.stream([wave]))
    assert finals(results) == "".join(text for text, _ in tones)
    found = [t for r in results if r.is_final for t in r.segment.tokens or ()]
    for token, (text, start) in zip(found, tones, strict=True):
        assert token.text == text and abs(token.start - start) < 0.12
    offline = model.transcribe(asr.Samples(wave, RATE))
    assert finals(results) == offline.text.replace(" ", "")
    theirs = [t for s in offline.segments for t in s.tokens or ()]
    assert all(abs(a.start - b.start) < 0.1 for a, b in zip(found, theirs, strict=True))
    segments = [r.segment for r in results if r.is_final]
    assert len(segments) == 3
    assert all(one.end <= other.start for one, other in pairwise(segments))


def test_partial_results_come_while_audio_arrives_and_grow_to_the_final_text(
    model: Recognizer, spoken: tuple[np.ndarray, list[tuple[str, float]]]
) -> None:
    (wave, _), session = spoken, Session(model)
    arrived, shown, late = 0, "", []
    for block in in_blocks(wave, [160]):
        session.feed(block)
        arrived += len(block)
        while session.is_ready:
            for result in advance(model, [session])[0]:
                if result.is_final:
                    shown = ""
                    continue
                assert result.text.startswith(shown) and len(result.text) > len(shown)
                shown = result.text
                newest = (result.segment.tokens or ())[-1]
                late.append(arrived / RATE - newest.start)
    # A chunk is eight steps; the front end sees six frames beyond it, and a window and a half.
    assert late and max(late) < 8 * STEP + 0.06 + 0.03 + 2 * STEP


@pytest.mark.parametrize("method", METHODS)
def test_blocks_of_any_size_give_the_same_results(model: Recognizer, method: str) -> None:
    wave = np.concatenate((say(4, 5)[0], silence(1.2))).astype(np.float32)
    options = Options(method=method, beam_size=3, ctc_weight=0.5)  # type: ignore[arg-type]
    expected = list(model.stream([wave], options))
    assert any(r.is_final for r in expected)
    rng = np.random.default_rng(1)
    random_sizes = rng.integers(0, 3000, 40).tolist()
    for sizes in ([len(wave)], [1], random_sizes):
        if sizes != [1] or method == "joint":
            assert list(model.stream(in_blocks(wave, sizes), options)) == expected


@pytest.mark.parametrize("chunk", [1, 3, 8, 30])
def test_no_last_word_is_lost(model: Recognizer, chunk: int) -> None:
    for seed in range(3):
        wave, said = say(3, 40 + seed)
        last = said[-1][2]
        wave = wave[: int((last + 0.03) * RATE)]  # it ends with the last tone
        results = list(model.stream([wave], chunk=chunk))
        assert finals(results) == "".join(text for text, _, _ in said)
        assert results[-1].is_final


def test_a_whole_utterance_as_one_chunk_is_the_offline_transcript(model: Recognizer) -> None:
    wave = say(6, 60)[0].astype(np.float32)
    options = Options(method="rescore", beam_size=3, ctc_weight=0.5)
    *_, result = model.stream([wave], options, chunk=500)
    offline = model.transcribe(asr.Samples(wave, RATE), options).segments[0]
    assert result.is_final and result.segment.text == offline.text
    assert result.segment.score == pytest.approx(offline.score, abs=1e-3)
    assert result.segment.tokens is not None and offline.tokens is not None
    assert [t.start for t in result.segment.tokens] == [t.start for t in offline.tokens]


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_what_the_decoder_rescores_is_the_offline_transcript(model: Recognizer, chunk: int) -> None:
    """The encoder sees the segment as a whole; texts by CTC alone are those of the chunks."""
    wave = say(6, 61)[0].astype(np.float32)
    scores = {}
    for method in ("rescore", "ctc_beam"):
        options = Options(method=method, beam_size=3, ctc_weight=0.5)  # type: ignore[arg-type]
        *_, result = model.stream([wave], options, chunk=chunk)
        offline = model.transcribe(asr.Samples(wave, RATE), options).segments[0]
        assert result.is_final and result.segment.text == offline.text
        scores[method] = abs(result.segment.score - offline.score)
        if method == "rescore":
            ours, theirs = result.segment.tokens, offline.tokens
            assert ours and theirs and [t.start for t in ours] == [t.start for t in theirs]
    assert scores["rescore"] < 1e-3 < scores["ctc_beam"]


def test_sessions_that_share_batches_have_their_own_texts(model: Recognizer) -> None:
    waves = [np.concatenate((say(2 + i, 70 + i)[0], silence(0.3 * i))) for i in range(5)]
    alone = [list(model.stream([wave])) for wave in waves]
    sessions, found = [Session(model) for _ in waves], [list[StreamResult]() for _ in waves]
    blocks = [list(in_blocks(wave, [700 + 90 * i])) for i, wave in enumerate(waves)]
    while True:
        for session, rest in zip(sessions, blocks, strict=True):
            if rest:
                session.feed(rest.pop(0))
            else:
                session.end()
        ready = [i for i, session in enumerate(sessions) if session.is_ready]
        if ready:
            new = advance(model, [sessions[i] for i in ready])
            for i, results in zip(ready, new, strict=True):
                found[i] += results
        elif not any(blocks):
            break
    for session, before, expected in zip(sessions, found, alone, strict=True):
        results = before + session.flush()
        assert [(r.text, r.is_final) for r in results] == [(r.text, r.is_final) for r in expected]
        for one, other in zip(results, expected, strict=True):
            assert one.segment.score == pytest.approx(other.segment.score, abs=1e-3)
            assert one.segment.tokens == other.segment.tokens


def test_a_long_stream_has_the_texts_of_its_segments_in_constant_memory(
    model: Recognizer,
) -> None:
    parts, said = [], ""
    for seed in range(12):
        wave, tones = say(4, 100 + seed)
        parts += [wave, silence(1 + seed % 4, seed)]
        said += "".join(text for text, _, _ in tones)
    long = np.concatenate(parts).astype(np.float32)
    session, results, held = Session(model), [], []
    for block in in_blocks(long, [400]):
        session.feed(block)
        while session.is_ready:
            results += advance(model, [session])[0]
            held.append(session.n_held)
    session.end()
    while session.is_ready:
        results += advance(model, [session])[0]
    results += session.flush()
    segments = [r.segment for r in results if r.is_final]
    assert finals(results) == said and len(segments) >= 9
    assert max(held) < 6 * RATE  # the longest segment here has 8 tones and its silences
    for segment in segments[::4]:
        cut = long[round(segment.start * RATE) : round(segment.end * RATE)]
        alone = list(model.stream([cut]))
        assert finals(alone) == segment.text.replace(" ", "")
        times = [t.start + segment.start for r in alone for t in r.segment.tokens or ()]
        mine = [t.start for t in segment.tokens or ()]
        assert times[-len(mine) :] == pytest.approx(mine, abs=0.05)


def test_silence_has_no_results_and_ends_segments(model: Recognizer) -> None:
    session = Session(model)
    session.feed(silence(30).astype(np.float32))
    held = []
    while session.is_ready:
        assert advance(model, [session])[0] == []
        held.append(session.n_held)
    session.end()
    assert session.flush() == [] and list(model.stream([])) == []
    assert held[-1] < 4 * RATE


@pytest.mark.parametrize("method", ["ctc_greedy", "rescore"])
def test_digital_silence_has_no_text_whatever_the_model(
    streaming_bundle: Path, method: str
) -> None:
    talker = talking(asr.load(streaming_bundle, "cpu"))
    options = Options(method=method, confidence_threshold=0.0)
    assert finals(list(talker.stream([silence(5.0).astype(np.float32)], options)))
    for level in (0.0, 0.25):
        wave = np.full(5 * RATE, level, np.float32)
        assert list(talker.stream([wave], options)) == []
    late = np.concatenate((np.zeros(RATE), silence(1.0))).astype(np.float32)
    assert finals(list(talker.stream([late], options))), "the other half of it is no silence"


def test_one_long_block_costs_no_more_than_short_ones(
    model: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that ends copies what came beyond it, at most a second."""
    held, begin = list[int](), Session._begin
    monkeypatch.setattr(Session, "_begin", lambda self, x: (held.append(len(x)), begin(self, x)))
    wave = np.concatenate([np.concatenate((say(3, n)[0], silence(1.5, n))) for n in range(8)])
    assert len(list(model.stream([wave.astype(np.float32)]))) > 8
    assert len(held) > 8 and max(held) < 3 * RATE


def test_times_do_not_reach_beyond_the_audio() -> None:
    """Of a front end that rounds its steps up; whatever it says, which is nothing learned."""
    recipe = tones_recipe(Path("tones"), decoding={"confidence_threshold": 0.0})
    recipe["features"] = {"kind": "fbank", "normalize": "corpus", "sample_rate": RATE, "n_mels": 20}
    recipe["model"]["frontend"] = {"kind": "strided", "channels": [4, 8]}
    recipe["model"]["encoder"] |= {"streaming": {"chunk": 8, "left_chunks": 4}}
    config = Config.model_validate(recipe)
    tokenizer = Tokenizer.train(["一二三四五"], config.tokenizer)
    model, ends = talking(Recognizer(Bundle.create(config, tokenizer))), list[float]()
    for n_samples in range(RATE, RATE + 320, 40):
        wave = say(9, 5)[0][:n_samples].astype(np.float32)
        (last,) = (r.segment for r in model.stream([wave]) if r.is_final)
        assert last.tokens and last.tokens[-1].end <= last.end <= n_samples / RATE
        ends.append(last.end - n_samples / RATE)
    assert ends.count(0) > 1, "some would round up"


def test_only_quiet_pauses_end_segments_soon(
    model: Recognizer,
    spoken: tuple[np.ndarray, list[tuple[str, float]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def segments(wave: np.ndarray) -> int:
        return sum(result.is_final for result in model.stream([wave]))

    wave = spoken[0]
    assert segments(wave) == segments(wave + np.float32(0.05)) == 3, "a constant is no sound"
    monkeypatch.setattr(endpoint, "_QUIET", 0.0)
    assert segments(wave) == 1


def test_a_text_without_pauses_is_cut_at_the_longest(model: Recognizer) -> None:
    wave = np.concatenate([say(4, seed)[0] for seed in range(8)]).astype(np.float32)
    rule = asr.Endpoint(silence_seconds=0.6, idle_seconds=1, longest_seconds=2)
    ended = [r.segment for r in model.stream([wave], endpoint=rule) if r.is_final]
    assert len(ended) > 2
    assert all(s.end - s.start <= 2 + 8 * STEP for s in ended)
    assert all(one.end <= other.start for one, other in pairwise(ended))


def test_int16_and_recordings_are_streams_too(model: Recognizer, tmp_path: Path) -> None:
    wave = say(3, 9)[0]
    pcm = (wave * 2**15).astype(np.int16)
    (expected, same) = (list(model.stream([x])) for x in (pcm.astype(np.float32) / 2**15, pcm))
    assert expected == same
    assert list(model.stream(Recording(asr.Samples(pcm, RATE), RATE))) == expected


def test_what_is_no_stream_is_refused(model: Recognizer, library: Recognizer) -> None:
    with pytest.raises(ConfigError, match="has no streaming encoder: train one"):
        library.stream([])
    with pytest.raises(ConfigError, match="chunk 0: give a number"):
        model.stream([], chunk=0)
    for block in (np.array([0.1, np.nan]), np.zeros((3, 2))):
        with pytest.raises(AudioError, match="give finite samples"):
            list(model.stream([block]))
    for other in (np.zeros(9, np.int32), np.zeros(9, ">i2"), np.zeros(9, np.uint8), [0.1]):
        with pytest.raises(ConfigError, match="expected a numpy array of int16, or of floats"):
            list(model.stream([other]))  # type: ignore[list-item]
