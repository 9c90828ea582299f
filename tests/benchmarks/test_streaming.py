"""The benchmark of streaming sees what a client of the library sees, at times that can be."""

from pathlib import Path

import numpy as np
import pytest

import asr
from asr.transcription.recognizer import Recognizer
from benchmarks.streaming import (
    BLOCK,
    Clock,
    Shown,
    accuracy,
    delays,
    joined,
    latency_row,
    take_again,
    take_streamed,
)
from tests.helpers import RATE, say


@pytest.fixture(scope="module")
def model(streaming_bundle: Path) -> Recognizer:
    return asr.load(streaming_bundle, "cpu")


@pytest.fixture(scope="module")
def takes() -> list[np.ndarray]:
    waves = [say(4, seed)[0].astype(np.float32) for seed in range(4)]
    return joined(waves, RATE, 1.5)


def test_sessions_at_once_show_what_each_would_alone(
    model: Recognizer, takes: list[np.ndarray]
) -> None:
    assert len(takes) >= 2 and all(len(take) >= 1.5 * RATE for take in takes)
    for shown, take in zip(take_streamed(model, takes), takes, strict=True):
        results = list(model.stream([take]))
        final = [t for r in results if r.is_final for t in r.segment.tokens or ()]
        assert shown.tokens == final and final
        assert len(shown.partials) == sum(not r.is_final for r in results)
        blocks = np.ceil(shown.seconds / BLOCK) * BLOCK
        for (now, n), later in zip(
            shown.partials, [*shown.partials[1:], (np.inf, 99)], strict=True
        ):
            assert now <= later[0] and n <= later[1]
            assert now >= final[min(n, len(final)) - 1].start, "before it was said"
        assert shown.final > 0 and shown.partials[0][0] < blocks


def test_the_other_way_recognizes_the_whole_take_in_the_end(
    model: Recognizer, takes: list[np.ndarray]
) -> None:
    shown = take_again(model, takes[0])
    alone = model.transcribe(asr.Samples(takes[0], RATE))
    assert shown.tokens == [t for s in alone.segments for t in s.tokens or ()]
    assert shown.work > shown.final > 0
    assert len(shown.partials) == int((shown.seconds - BLOCK) / 0.7)


def test_a_row_has_medians_and_percentiles_of_delays() -> None:
    tokens = [asr.Token("一", 1.0, 1.1), asr.Token("二", 1.2, 1.3)]
    shown = Shown([(1.5, 1), (2.0, 2)], tokens, final=0.01, work=0.2, seconds=4.0)
    assert list(delays(shown)) == pytest.approx([0.4, 0.7])
    row = latency_row("one", [shown])
    assert row[1:] == pytest.approx([500, 500, 550, 685, 10, 10, 0.05])
    clock = Clock()
    clock.wait(3.0)
    assert clock.run(lambda: sum(range(10**5))) and clock.now - 3.0 == pytest.approx(clock.work)


def test_each_way_of_decoding_has_its_cer(model: Recognizer) -> None:
    wave, tones = say(4, 9)
    rows = accuracy(model, None, [wave.astype(np.float32)], ["".join(t for t, *_ in tones)])
    assert [row[2] for row in rows] == [0.0] * 8
    assert [row[0] for row in rows[2::2]] == [f"with, streamed: {ms} ms" for ms in (640, 320, 160)]
