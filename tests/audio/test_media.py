"""Recordings that FFmpeg decodes: as exact as others, and with nothing but their own bytes."""

import io
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile as sf

import asr
from asr.audio import media
from asr.audio.recording import Recording, Samples
from asr.errors import AsrError, AudioError, ConfigError
from asr.transcription.chunks import ChunkedRecording
from asr.transcription.recognizer import Recognizer
from tests.helpers import encode, read_all, tone

RATE = 16000
SUFFIXES = ["m4a", "mp4", "mov", "3gp", "webm", "mka", "aac", "amr"]


def error_of(source: object, **options: object) -> AudioError:
    """The error of reading a recording."""
    with pytest.raises(AudioError) as caught:
        read_all(source, RATE, any_format=True, **options)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_formats(suffix: str, tmp_path: Path) -> None:
    rate = 8000 if suffix == "amr" else 48000
    path = encode(tmp_path / f"a.{suffix}", rate, 2.0, channels=1 if suffix == "amr" else 2)
    audio = read_all(path, RATE, any_format=True)
    assert audio.seconds == pytest.approx(2.0, abs=0.06)  # what the encoder adds
    t = np.arange(len(audio.wave)) / RATE
    lag = np.vdot(audio.wave, np.exp(2j * np.pi * 440 * t)) / len(t)
    assert 2 * abs(lag) == pytest.approx(0.3, rel=0.2), "the tone, at its level"
    warnings = ("8000 Hz",) if suffix == "amr" else ()
    assert len(audio.warnings) == len(warnings)
    data = path.read_bytes()
    with path.open("rb") as file:
        for source in (str(path), data, io.BytesIO(data), file):
            np.testing.assert_array_equal(read_all(source, RATE, any_format=True).wave, audio.wave)


@pytest.mark.parametrize("channels", [3, 6, 8])
def test_channels_are_mixed_by_their_mean(channels: int, tmp_path: Path) -> None:
    layout = {3: "2.1", 6: "5.1", 8: "7.1"}[channels]
    wave = np.random.default_rng(0).normal(0, 3000, (40_000, channels)).astype(np.int16)
    with av.open(str(tmp_path / "a.mka"), "w") as file:
        stream = file.add_stream("pcm_s16le", rate=RATE, layout=layout)
        for start in range(0, len(wave), 1000):
            part = wave[start : start + 1000].reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(part, "s16", layout)
            frame.sample_rate, frame.pts = RATE, start
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    audio = read_all(tmp_path / "a.mka", RATE, any_format=True)
    np.testing.assert_allclose(audio.wave, wave.mean(1) / 2**15, atol=1e-5)


def test_a_hole_is_told_however_long_the_recording_is(tmp_path: Path) -> None:
    recording = Recording(encode(tmp_path / "a.mka", 8000, 197.0, gap=2.5), 8000, any_format=True)
    n_read = sum(map(len, recording))
    assert n_read / 8000 == pytest.approx(199.5, abs=0.1)
    assert "has no audio for 2.5" in recording.warnings[0]


@pytest.mark.parametrize("suffix", ["mp4", "mka"])
def test_what_is_not_recorded_is_silence(suffix: str, tmp_path: Path) -> None:
    """As in edited videos and captures, or all times after it would be too early."""
    path = encode(tmp_path / f"gap.{suffix}", 48000, 2.0, gap=3.0)
    recording = Recording(path, RATE, any_format=True)
    audio = np.concatenate(list(recording))
    assert len(audio) / RATE == pytest.approx(5.0, abs=0.1)
    assert [re.sub(r"3\.\d\d", "3", one) for one in recording.warnings] == [
        f"{path} has no audio for 3 seconds of it, where silence is taken to be"
    ]
    loud = np.abs(audio[: 5 * RATE // 100 * 100]).reshape(-1, RATE // 10).max(1) > 0.1
    assert loud[:9].all() and not loud[11:39].any() and loud[42:48].all()


def test_the_name_decides_nothing(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.m4a").rename(tmp_path / "a.wav")
    assert read_all(path, RATE, any_format=True).seconds > 1
    sf.write(tmp_path / "b.wav", np.zeros(800), RATE)
    (tmp_path / "b.wav").rename(tmp_path / "b.m4a")
    assert read_all(tmp_path / "b.m4a", RATE, any_format=True).seconds == 0.05


def test_a_video_gives_its_sound(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "v.mp4"), "w") as file:
        picture = file.add_stream("mpeg4", rate=25, width=64, height=64, pix_fmt="yuv420p")
        sound = file.add_stream("aac", rate=48000, layout="mono")
        for _ in range(25):
            frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), "rgb24")
            file.mux(picture.encode(frame))
        for _ in range(48):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            frame.sample_rate = 48000
            file.mux(sound.encode(frame))
        file.mux(picture.encode(None))
        file.mux(sound.encode(None))
    assert read_all(tmp_path / "v.mp4", RATE, any_format=True).seconds == pytest.approx(1, abs=0.1)
    with av.open(str(tmp_path / "silent.mp4"), "w") as file:
        picture = file.add_stream("mpeg4", rate=25, width=64, height=64, pix_fmt="yuv420p")
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), "rgb24")
        file.mux(picture.encode(frame))
        file.mux(picture.encode(None))
    error = error_of(tmp_path / "silent.mp4")
    assert error.code == "empty_audio" and "no audio track" in str(error)


def test_limits_hold_before_and_while_it_is_decoded(tmp_path: Path) -> None:
    for name in ("a.m4a", "a.webm"):  # only MP4 announces its length
        path = encode(tmp_path / name, seconds=20.0, channels=2)
        assert error_of(path, max_seconds=5).code == "too_long"
        recording = Recording(path, RATE, max_samples=400_000, any_format=True)
        with pytest.raises(AudioError, match="400000 samples"):
            list(recording)
        assert recording.seconds < 5


def test_it_is_read_in_slices_and_a_cancelled_one_ends_its_process(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.m4a", 96000, seconds=30.0, channels=2)
    slices = ChunkedRecording(Recording(path, RATE, any_format=True), 20.0).slices()
    assert None in list(slices)
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text().split()
    blocks = iter(Recording(path, RATE, any_format=True))
    next(blocks), next(blocks)
    (child,) = set(children.read_text().split()) - set(before)
    blocks.close()
    assert not Path(f"/proc/{child}").exists()


def test_what_is_damaged_is_said(tmp_path: Path) -> None:
    whole = encode(tmp_path / "a.m4a", seconds=5.0, movflags="faststart").read_bytes()
    assert (
        "is truncated: only its first"
        in read_all(whole[: len(whole) // 2], RATE, any_format=True).warnings[0]
    )
    holed = whole[:20000] + bytes(3000) + whole[23000:]
    assert (
        "packets of it could not be decoded" in read_all(holed, RATE, any_format=True).warnings[0]
    )
    assert "is damaged and cannot be decoded as MP4" in str(error_of(whole[:500]))
    webm = encode(tmp_path / "a.webm", seconds=5.0).read_bytes()
    holed = webm[:20000] + bytes(3000) + webm[23000:]
    read = read_all(holed, RATE, any_format=True)
    assert "has no audio for" in read.warnings[0] and read.seconds == pytest.approx(5, abs=0.1)
    assert not read_all(webm, RATE, any_format=True).warnings


def test_without_the_extra_a_sentence_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode(tmp_path / "a.m4a")
    monkeypatch.setattr(media, "is_installed", lambda: False)
    error = error_of(path)
    assert "`pip install 'lrt-asr[media]'`" in str(error) and error.code == "unsupported_media"
    assert read_all(tone(tmp_path / "a.wav"), RATE, any_format=True).seconds == 0.2


def test_where_it_is_not_allowed_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Recognizer
) -> None:
    """As in the service: `Recognizer.open` decodes what libsndfile decodes."""
    monkeypatch.setattr(media.subprocess, "Popen", None)
    recording = library.open(encode(tmp_path / "a.m4a"))
    assert not list(recording.chunks())
    assert "`asr transcribe`" in str(recording.error)
    assert recording.error and recording.error.code == "unsupported_media"


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{0}\n#EXTINF:9,\n{1}\n#EXT-X-ENDLIST\n"
CONCAT = "ffconcat version 1.0\nfile '{0}'\nfile '{1}'\n"
DASH = (
    '<?xml version="1.0"?><MPD><Period><BaseURL>{0}</BaseURL><BaseURL>{1}</BaseURL></Period></MPD>'
)


@pytest.mark.parametrize(
    "content", [PLAYLIST, CONCAT, DASH, "#!AMR\n" + PLAYLIST, "....ftyp" + CONCAT]
)
@pytest.mark.parametrize("name", ["x.m4a", "x.m3u8", "x.ffconcat"])
def test_a_list_of_other_files_opens_none(content: str, name: str, tmp_path: Path) -> None:
    other = encode(tmp_path / "other.aac")
    before = other.stat().st_atime_ns
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/a.aac"
        (tmp_path / name).write_text(content.format(other, address))
        try:
            audio = read_all(tmp_path / name, RATE, any_format=True)
            assert content.startswith("#!AMR") and audio.seconds < 1.0  # its own bytes, as noise
        except AudioError as error:
            assert len(str(error).splitlines()) == 1
        with pytest.raises(TimeoutError):
            server.accept()
    assert other.stat().st_atime_ns == before


DEEDS = {
    "open('/etc/passwd')": "Too many open files",
    "__import__('socket').socket()": "Too many open files",
    "__import__('os').popen('true')": "Too many open files",
    "__import__('os').write(__import__('os').open('x', 65), b'x')": "Too many open files",
    "bytearray(2 << 30)": "MemoryError",
}


@pytest.mark.parametrize("deed", DEEDS)
def test_the_process_can_do_nothing_but_decode(deed: str, tmp_path: Path) -> None:
    script = Path(media.__file__).with_name("media_process.py")
    code = (
        f"import runpy, socket, os, subprocess; m = runpy.run_path({str(script)!r})\n"
        f"m['restrict']()\ntry:\n    {deed}\nexcept BaseException as e:\n    print(repr(e))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert DEEDS[deed] in done.stdout, done


def test_a_process_without_an_end_or_that_crashes_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode(tmp_path / "a.m4a")
    script = tmp_path / "script.py"
    monkeypatch.setattr(media, "_SCRIPT", script)
    real = Path(media.__file__).with_name("media_process.py")
    for body in ("m['restrict'](); m['note']()\nwhile True: pass", "import os; os.abort()"):
        script.write_text(
            f"import runpy; m = runpy.run_path({str(real)!r})\n"
            "m['note'].__globals__['_BLOCK_SECONDS'] = 1\n" + body
        )
        started = time.monotonic()
        assert "or it crashes the decoder" in str(error_of(path))
        assert time.monotonic() - started < 20


@pytest.mark.parametrize("suffix", ["m4a", "webm", "aac", "amr"])
def test_damage_is_never_more_than_an_error(suffix: str, tmp_path: Path) -> None:
    whole = encode(tmp_path / f"a.{suffix}", 8000 if suffix == "amr" else 48000).read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(8):
        data = bytearray(whole)
        for at in rng.integers(0, len(data), 1 + rng.integers(30)):
            data[at] = rng.integers(256)
        try:
            read_all(bytes(data), RATE, any_format=True, max_seconds=60)
        except AsrError as error:
            assert "Traceback" not in str(error)


def test_bytes_and_arrays_are_transcribed(library: Recognizer, tmp_path: Path) -> None:
    wave = 0.3 * np.sin(np.arange(16000) * 0.3)
    path = tmp_path / "a.wav"
    sf.write(path, wave, RATE, subtype="FLOAT")
    expected = library.transcribe(path)
    stereo = np.stack([wave, wave], 1)
    for source in (
        path.read_bytes(), Samples(wave, RATE), asr.Samples(stereo, RATE),
        Samples(wave.astype(np.float32), RATE),
    ):  # fmt: skip
        assert library.transcribe(source).text == expected.text
    assert library.transcribe(encode(tmp_path / "a.m4a")).duration == pytest.approx(1, abs=0.1)
    with pytest.raises(ConfigError, match=r"give asr.Samples\(array, sample_rate\)"):
        library.transcribe(wave)


@pytest.mark.parametrize(
    ("samples", "rate", "words"),
    [
        (np.zeros((2, 9000)), RATE, "transpose"), (np.zeros((2, 2, 2)), RATE, "shape"),
        (np.zeros(9, np.int32), RATE, "int32"), ([0.0], RATE, "list"),
        (np.zeros(9), 0, "sample rate of 0"), (np.zeros(9), 10**9, "sample rate"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_audio(samples: object, rate: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Samples(samples, rate)
