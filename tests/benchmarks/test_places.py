"""Places: a recording is as loud and as long there, and what is behind it is 10 dB below."""

import numpy as np
import pytest

from benchmarks.places import PLACES, placed

RATE = 16000
RNG = np.random.default_rng(0)
WAVES = [RNG.normal(size=n) * level for n, level in ((8000, 0.1), (12000, 0.01), (4000, 0.0))]


@pytest.mark.parametrize("place", PLACES)
def test_speech_is_as_long_and_as_loud_at_each_place(place: str) -> None:
    found = list(placed(WAVES, RATE, place))
    assert [len(wave) for wave in found] == [len(wave) for wave in WAVES]
    for wave, other in zip(WAVES, found, strict=True):
        assert np.sqrt((other**2).mean()) == pytest.approx(np.sqrt((wave**2).mean()))
    again = list(placed(WAVES, RATE, place))
    assert all(np.array_equal(one, two) for one, two in zip(found, again, strict=True))


@pytest.mark.parametrize("place", ["white noise", "voices"])
def test_what_is_behind_is_ten_decibels_below(place: str) -> None:
    t = np.arange(RATE) / RATE
    tones = [np.sin(2 * np.pi * hz * t) for hz in (200, 300, 400, 500, 600, 700, 800, 900)]
    spectrum = np.abs(np.fft.rfft(next(placed(tones, RATE, place)))) ** 2
    behind = spectrum.sum() - spectrum[200]
    assert 10 * np.log10(spectrum[200] / behind) == pytest.approx(10, abs=0.5)
