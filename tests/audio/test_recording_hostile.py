"""Recordings that are broken, foreign or meant to harm: each works or is refused in a sentence."""

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.audio.recording import Recording
from asr.errors import AudioError
from tests.helpers import read_all

RATE = 16000


def tones(rate):
    """A second of two sines."""
    t = np.arange(rate) / rate
    return 0.3 * np.sin(2 * np.pi * 310 * t) + 0.2 * np.sin(2 * np.pi * 1234.5 * t)


def noise(n, seed=0, scale=0.1):
    return scale * np.random.default_rng(seed).normal(size=n).clip(-4, 4)


def wav_bytes(samples, rate=RATE, **options):
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=options.pop("format", "WAV"), **options)
    return buffer.getvalue()


def refusal(source, **options):
    """The error of a source: its code and its one sentence."""
    with pytest.raises(AudioError) as caught:
        read_all(source, RATE, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert ": " in message, "what is wrong: what to do"
    return caught.value.code, message


@pytest.mark.parametrize("n_channels", [9, 256])
def test_too_many_channels_are_refused(n_channels):
    data = io.BytesIO(wav_bytes(np.zeros((1000, n_channels))))
    code, message = refusal(data, name="desk.wav")
    assert code == "unsupported_media"
    assert f"desk.wav has {n_channels} channels" in message


@pytest.mark.parametrize("rate", [1, 999, 400_000, 1_000_000_000])
def test_absurd_rates_are_refused(rate):
    data = bytearray(wav_bytes(tones(RATE)))
    data[24:28] = struct.pack("<I", rate)
    code, message = refusal(io.BytesIO(data), name="odd.wav")
    assert code == "unsupported_media"
    assert f"{rate} Hz" in message


def archive():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a.txt", "text" * 500)
    return buffer.getvalue()


@pytest.mark.parametrize("extension", ["wav", "mp3", "flac", "raw", "ogg", "m4a"])
@pytest.mark.parametrize(
    "content",
    [
        b"This is a text, not a recording.\n" * 100, b"<!DOCTYPE html><html></html>", archive(),
        np.random.default_rng(1).bytes(5000), b"\0\0\0\x20ftypM4A " + bytes(500),
        b"\x1aE\xdf\xa3" + bytes(500), b"x",
    ],
    ids=["text", "html", "zip", "random", "m4a", "webm", "one_byte"],
)  # fmt: skip
def test_what_is_no_audio_is_refused_whatever_its_name(tmp_path, extension, content):
    path = tmp_path / f"a.{extension}"
    path.write_bytes(content)
    code, message = refusal(path)
    assert code == "unsupported_media"
    assert str(path) in message
    assert "ffmpeg" in message


def test_content_decides_not_the_name(tmp_path):
    path = tmp_path / "a.raw"
    path.write_bytes(wav_bytes(tones(RATE)))
    assert read_all(path, RATE).seconds == pytest.approx(1.0)


def test_empty_files_are_refused(tmp_path):
    path = tmp_path / "empty.wav"
    path.write_bytes(b"")
    for source in (path, io.BytesIO(), io.BytesIO(wav_bytes(np.zeros(0)))):
        code, message = refusal(source, name="empty.wav")
        assert code == "empty_audio"
        assert "empty.wav" in message


def test_what_cannot_be_opened_is_named(tmp_path):
    for source, reason in (
        (tmp_path / "missing.wav", "no such file"),
        (tmp_path, "not a plain file"),
        ("a\0b.wav", "null"),
    ):
        code, message = refusal(source)
        assert code == "unreadable_audio"
        assert reason in message
        assert "check the path" in message


class Pipe(io.BytesIO):
    def seek(self, *_):
        raise io.UnsupportedOperation("seek")


def test_a_stream_is_refused_and_an_open_file_stays_open():
    assert refusal(Pipe(wav_bytes(tones(RATE))))[0] == "unreadable_audio"
    file = io.BytesIO(wav_bytes(tones(RATE)))
    first, second = read_all(file, RATE), read_all(file, RATE)
    assert not file.closed
    np.testing.assert_array_equal(first.wave, second.wave)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rate", [RATE, 44100])
def test_samples_that_are_not_finite_are_refused(bad, rate):
    samples = tones(rate)
    samples[rate // 2] = bad
    data = wav_bytes(np.stack([samples, -samples], 1), rate, subtype="FLOAT")
    code, message = refusal(io.BytesIO(data), name="broken.wav")
    assert code == "non_finite_audio"
    assert "broken.wav" in message


@pytest.mark.parametrize("rate", [RATE, 44100])
@pytest.mark.parametrize("gain", [1e30, 1e-6])
def test_levels_are_as_recorded(rate, gain):
    plain = read_all(io.BytesIO(wav_bytes(tones(rate), rate, subtype="FLOAT")), RATE).wave
    scaled = read_all(io.BytesIO(wav_bytes(gain * tones(rate), rate, subtype="FLOAT")), RATE).wave
    np.testing.assert_allclose(scaled / gain, plain, atol=1e-5)


@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "mp3"])
@pytest.mark.parametrize("rate", [8000, RATE, 44100])
def test_one_sample_is_audio(tmp_path, extension, rate):
    path = tmp_path / f"one.{extension}"
    soundfile.write(path, np.array([0.5]), rate)
    audio = read_all(path, RATE)
    assert 1 <= len(audio.wave) <= 2
    assert audio.seconds == 1 / rate


@pytest.mark.parametrize("extension", ["wav", "flac", "mp3"])
def test_a_truncated_file_gives_what_it_holds_and_says_so(tmp_path, extension):
    whole, cut = tmp_path / f"whole.{extension}", tmp_path / f"cut.{extension}"
    soundfile.write(whole, noise(110_000), RATE)
    data = whole.read_bytes()
    cut.write_bytes(data[: len(data) // 2])
    complete = read_all(whole, RATE)
    assert complete.warnings == ()
    for source in (cut, io.BytesIO(cut.read_bytes())):
        audio = read_all(source, RATE, name="cut")
        assert len(audio.wave) > 50_000, "up to the last whole block of the format"
        same = len(audio.wave) - 2000  # an MP3 decoder conceals the end of what it has
        np.testing.assert_allclose(audio.wave[:same], complete.wave[:same], atol=1e-4)
        assert audio.seconds == len(audio.wave) / RATE
        assert audio.warnings == (
            f"cut is truncated: only its first {audio.seconds:.2f} seconds could be decoded",
        )


def test_a_file_without_its_first_block_is_unreadable():
    data = wav_bytes(noise(100_000), format="FLAC")
    code, _ = refusal(io.BytesIO(data[:200]))
    assert code == "unreadable_audio"
    code, _ = refusal(io.BytesIO(wav_bytes(noise(1000))[:20]))
    assert code == "unsupported_media"


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000])
def test_a_wav_from_a_pipe_knows_no_length_and_is_whole(length):
    samples = tones(RATE)
    data = bytearray(wav_bytes(samples))
    data[4:8] = data[40:44] = struct.pack("<I", length)
    audio = read_all(io.BytesIO(data), RATE)
    np.testing.assert_allclose(audio.wave, samples, atol=1e-4)
    assert audio.warnings == ()


def test_a_flac_from_a_pipe_knows_no_length_and_is_whole():
    samples = noise(50_001)
    data = bytearray(wav_bytes(samples, format="FLAC"))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    audio = read_all(io.BytesIO(data), RATE)
    np.testing.assert_allclose(audio.wave, samples, atol=1e-4)
    assert audio.warnings == ()


def write_silence(path: Path, seconds: int) -> None:
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        for _ in range(seconds // 60):
            file.write(np.zeros(60 * RATE, np.int16))


def test_a_bomb_is_stopped_in_bounded_memory(tmp_path):
    path = tmp_path / "hour.flac"
    write_silence(path, 3600)
    assert path.stat().st_size < 300_000
    tracemalloc.start()
    code, message = refusal(path, max_seconds=60)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert code == "too_long"
    assert "60 seconds" in message
    assert peak < 8e6, "a minute of float32 is 3.8 MB, an hour 230 MB"


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg"])
def test_a_header_beyond_the_limit_is_refused_at_once(tmp_path, name):
    path = tmp_path / name
    write_silence(path, 60)
    recording = Recording(path, RATE, max_seconds=59)
    with pytest.raises(AudioError) as caught:
        list(recording)
    assert caught.value.code == "too_long"
    assert recording.seconds == 0


def test_a_limit_that_no_header_gives_is_kept_while_reading(tmp_path):
    path = tmp_path / "a.mp3"
    soundfile.write(path, noise(10 * RATE), RATE)
    recording = Recording(path, RATE, max_seconds=5)
    with pytest.raises(AudioError) as caught:
        list(recording)
    assert caught.value.code == "too_long"
    assert 5 < recording.seconds < 7


def test_the_limit_itself_is_allowed():
    data = wav_bytes(tones(RATE))
    assert read_all(io.BytesIO(data), RATE, max_seconds=1.0).seconds == 1.0
    assert refusal(io.BytesIO(data), max_seconds=0.99)[0] == "too_long"
