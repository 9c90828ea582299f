"""Reading and splitting recordings; every file is made here, so its samples are known."""

import io
import tracemalloc

import numpy as np
import pytest
import scipy.signal
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.audio.recording import Recording, Samples
from asr.audio.segmentation import split_at_silence
from asr.errors import AudioError
from tests.helpers import read_all

RATE = 16000


def tones(rate, seconds=1.0, frequencies=(310.0, 1234.5, 2901.0)):
    """A sum of sines, known at every rate."""
    t = np.arange(round(rate * seconds)) / rate
    return sum(0.2 * np.sin(2 * np.pi * f * t + f) for f in frequencies)


def noise(n, seed=0, scale=0.1):
    return scale * np.random.default_rng(seed).normal(size=n).clip(-4, 4)


def wav_bytes(samples, rate=RATE, **options):
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=options.pop("format", "WAV"), **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("extension", "worst"), [("wav", 2e-4), ("flac", 2e-4), ("ogg", 0.05), ("mp3", 0.05)]
)
def test_formats(tmp_path, extension, worst):
    path, samples = tmp_path / f"a.{extension}", tones(RATE, 3.0)
    soundfile.write(path, samples, RATE)
    for source in (path, str(path), io.BytesIO(path.read_bytes())):
        audio = read_all(source, RATE)
        assert audio.wave.dtype == np.float32
        assert audio.wave.shape == (48000,)
        assert audio.seconds == pytest.approx(3.0)
        assert audio.warnings == ()
        np.testing.assert_allclose(audio.wave, samples, atol=worst)


def test_mp3_in_blocks_equals_mp3_in_one_piece(tmp_path):
    path = tmp_path / "a.mp3"
    soundfile.write(path, noise(200_000), RATE)
    whole = soundfile.read(path, dtype="float32")[0]
    np.testing.assert_allclose(read_all(path, RATE).wave, whole, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "worst"),
    [
        ({"subtype": "PCM_U8"}, 1 / 127), ({"subtype": "PCM_24"}, 1e-6),
        ({"subtype": "PCM_32"}, 1e-6), ({"subtype": "FLOAT"}, 1e-7), ({"subtype": "DOUBLE"}, 1e-7),
        ({"subtype": "ALAW"}, 0.02), ({"subtype": "ULAW"}, 0.02),
        ({"format": "RF64"}, 1e-4), ({"format": "WAVEX"}, 1e-4), ({"format": "AIFF"}, 1e-4),
        ({"format": "FLAC", "subtype": "PCM_24"}, 1e-6),
    ],
)  # fmt: skip
def test_sample_types(options, worst):
    samples = tones(RATE)
    audio = read_all(io.BytesIO(wav_bytes(samples, **options)), RATE)
    np.testing.assert_allclose(audio.wave, samples, atol=worst)
    assert audio.warnings == ()


@pytest.mark.parametrize("n_channels", [2, 6, 8])
def test_channels_are_mixed_by_their_mean(n_channels):
    samples = noise((5000, n_channels))
    audio = read_all(io.BytesIO(wav_bytes(samples, subtype="FLOAT")), RATE)
    np.testing.assert_allclose(audio.wave, samples.mean(1), atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 44099, 48000, 192000, 384000])
def test_resampling_gives_the_same_sines(rate):
    audio = read_all(io.BytesIO(wav_bytes(tones(rate), rate, subtype="FLOAT")), RATE)
    assert abs(len(audio.wave) - RATE) <= 1
    assert audio.seconds == pytest.approx(1.0)
    middle = slice(1000, 15000)
    np.testing.assert_allclose(audio.wave[middle], tones(RATE)[middle], atol=2e-3)


def test_resampling_equals_scipy_and_does_not_alias():
    low_pass = scipy.signal.butter(12, 5000, fs=48000, output="sos")
    samples = scipy.signal.sosfilt(low_pass, noise(96000))
    audio = read_all(io.BytesIO(wav_bytes(samples, 48000, subtype="FLOAT")), RATE)
    expected = scipy.signal.resample_poly(samples, 1, 3, window=("kaiser", 12.0))
    np.testing.assert_allclose(audio.wave[500:-500], expected[500:-500], atol=2e-3)

    above = tones(44100, frequencies=(9500.0, 12000.0))
    audio = read_all(io.BytesIO(wav_bytes(above, 44100, subtype="FLOAT")), RATE)
    assert np.abs(audio.wave[1000:-1000]).max() < 1e-4


def test_a_narrow_band_is_reported_and_a_wide_one_is_not():
    narrow = read_all(io.BytesIO(wav_bytes(tones(8000), 8000)), RATE, name="call.wav")
    assert len(narrow.warnings) == 1
    assert "call.wav is recorded at 8000 Hz for a model of 16000 Hz" in narrow.warnings[0]
    assert "4000 Hz" in narrow.warnings[0]
    assert read_all(io.BytesIO(wav_bytes(tones(44100), 44100)), RATE).warnings == ()


def split(wave, rate, max_seconds=20.0, block=10**9):
    """(start, end) in samples of the segments of a waveform that comes in blocks."""
    blocks = (wave[i : i + block] for i in range(0, len(wave), block))
    segments = list(split_at_silence(blocks, rate, max_seconds))
    if segments:
        np.testing.assert_array_equal(np.concatenate(segments), wave)
    ends = np.cumsum([len(segment) for segment in segments]).tolist()
    return list(zip([0, *ends], ends, strict=False))


def test_ten_minutes_split_between_the_words(tmp_path):
    # Two words a second, each with a pause of 150 ms after it.
    word = np.concatenate([noise(5600), np.zeros(2400)])
    path = tmp_path / "long.wav"
    soundfile.write(path, np.tile(word, 1200), RATE)
    audio = read_all(path, RATE)
    assert audio.seconds == 600
    segments = split(audio.wave, RATE)
    assert 30 <= len(segments) <= 60
    for _, end in segments[:-1]:
        assert end % 8000 >= 5600, "a cut lies in a pause"


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(1, 30_000),
    rate=st.sampled_from([1000, 1100, 2050]),
    max_seconds=st.floats(0.41, 8.0),
    seed=st.integers(0, 5),
    kind=st.sampled_from(["noise", "silence", "bursts"]),
    block=st.integers(50, 40_000),
)
def test_segments_are_the_waveform_cut_where_it_is_quietest_however_it_comes(
    n, rate, max_seconds, seed, kind, block
):
    wave = noise(n, seed)
    wave *= {"noise": 1, "silence": 0, "bursts": np.arange(n) % 700 < 500}[kind]
    wave = wave.astype(np.float32)
    segments = split(wave, rate, max_seconds, block)
    assert segments == split(wave, rate, max_seconds)
    assert all(0 < end - start <= max_seconds * rate for start, end in segments)

    hop, energy = rate // 100, np.concatenate([[0], np.cumsum(wave.astype(float) ** 2)])
    for start, end in segments[:-1]:
        longest = int(max_seconds * rate)
        assert end - start >= longest // 2
        quietest = min(
            energy[first + 10 * hop] - energy[first]
            for first in range(0, n, hop)
            if start + longest // 2 <= first and first + 10 * hop <= start + longest
        )
        chosen = energy[end + 5 * hop] - energy[end - 5 * hop]
        assert chosen <= quietest * (1 + 1e-4) + 1e-9


def test_silence_is_cut_seldom_and_short_files_stay_whole():
    assert split(np.ones(20 * RATE), RATE) == [(0, 20 * RATE)]
    assert split(np.ones(1), RATE) == [(0, 1)]
    assert split(np.ones(0), RATE) == []
    segments = split(np.zeros(2_000_000, np.float32), 1000, block=16384)
    assert len(segments) < 102, "silence is cut as seldom as may be"


def test_a_quarter_of_an_hour_is_cut_in_the_memory_of_a_minute(tmp_path):
    path = tmp_path / "quarter.flac"
    with soundfile.SoundFile(path, "w", 48000, 1) as file:
        for _ in range(90):
            file.write(np.zeros(480_000, np.int16))
    tracemalloc.start()
    recording = Recording(path, 8000)
    n_samples = sum(len(segment) for segment in split_at_silence(recording, 8000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n_samples == 900 * 8000
    assert recording.seconds == 900 and recording.fraction > 0.9
    assert peak < 6e6, "a quarter of an hour at 8 kHz is 29 MB"


def as_samples(wav, rate):
    """The samples of a WAV file in memory, int16."""
    return Samples(soundfile.read(io.BytesIO(wav), dtype="int16")[0], rate)


@pytest.mark.parametrize("rate", [8000, RATE, 44100])
@pytest.mark.parametrize("n", [1, 5, 16384, 50_001])
def test_samples_equal_the_same_wav_file(rate, n):
    wav = wav_bytes(noise(n), rate)
    file, samples = read_all(io.BytesIO(wav), RATE), read_all(as_samples(wav, rate), RATE)
    np.testing.assert_array_equal(samples.wave, file.wave)
    assert samples.seconds == file.seconds == n / rate
    floats = Samples(as_samples(wav, rate).samples_N.astype(np.float32) / 2**15, rate)
    np.testing.assert_array_equal(read_all(floats, RATE).wave, file.wave)


def test_samples_have_the_limit_of_files():
    samples = as_samples(wav_bytes(tones(RATE)), RATE)
    assert read_all(samples, RATE, max_seconds=1.0).seconds == 1.0
    with pytest.raises(
        AudioError, match=r"the recording is longer than the 0\.99 seconds"
    ) as caught:
        read_all(samples, RATE, max_seconds=0.99)
    assert caught.value.code == "too_long"


def test_no_samples_are_refused():
    with pytest.raises(AudioError, match="live holds no audio at all") as caught:
        read_all(Samples(np.zeros(0, np.int16), RATE), RATE, name="live")
    assert caught.value.code == "empty_audio"
