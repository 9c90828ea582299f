"""`asr transcribe --live`: the text of `model.stream`, while audio comes through a pipe."""

import io
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
import soxr

import asr
from asr.audio.pcm_stream import blocks_of
from asr.audio.recording import Recording
from asr.errors import AudioError
from tests.helpers import RATE, pcm, run_cli, say, start_cli, wait_for


def opened(audio: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(audio))  # type: ignore[arg-type]


def read(audio: bytes, rate: int = RATE, raw_rate: int = RATE) -> np.ndarray:
    return np.concatenate([np.zeros(0), *blocks_of(opened(audio), rate, raw_rate)])


def with_unknown_length(audio: bytes, rate: int, channels: int) -> bytes:
    """A WAV as ffmpeg writes it into a pipe."""
    format = struct.pack("<HHIIHH", 1, channels, rate, 2 * rate * channels, 2 * channels, 16)
    chunks = b"fmt " + struct.pack("<I", 16) + format + b"LIST" + struct.pack("<I", 4) + b"INFO"
    return b"RIFF\xff\xff\xff\xffWAVE" + chunks + b"data\xff\xff\xff\xff" + audio


@pytest.fixture(scope="module")
def wave() -> np.ndarray:
    quiet = 0.003 * np.random.default_rng(0).normal(size=int(1.5 * RATE))
    return np.concatenate((say(5, 700)[0], quiet, say(4, 701)[0]))


def test_raw_audio_and_wav_are_the_same_samples(wave: np.ndarray) -> None:
    audio = pcm(wave)
    expected = np.frombuffer(audio, "<i2") / 2**15
    assert np.array_equal(read(audio), expected)
    assert np.array_equal(read(audio + b"\1"), expected), "half a sample is no sample"
    assert np.array_equal(read(with_unknown_length(audio, RATE, 1)), expected)
    for file in (b"", b"\0", b"RI", b"\1\0"):
        assert len(read(file)) == len(file) // 2
    written = io.BytesIO()
    sf.write(written, expected, RATE, format="WAV", subtype="PCM_16")
    assert np.array_equal(read(written.getvalue())[: len(expected)], expected)


@pytest.mark.parametrize("junk", [0, 7, 9000])
def test_other_parts_of_a_wav_are_no_audio(wave: np.ndarray, junk: int) -> None:
    """Before the samples, of any length, and behind them."""
    written = io.BytesIO()
    sf.write(written, wave, RATE, format="WAV", subtype="PCM_16")
    whole = written.getvalue()
    at = whole.index(b"data")
    other = b"JUNK" + struct.pack("<I", junk) + b"\x55" * (junk + junk % 2)
    expected = np.frombuffer(whole[at + 8 :], "<i2") / 2**15
    assert np.array_equal(read(whole[:at] + other + whole[at:] + other), expected)
    streamed = whole[: at + 4] + bytes(4) + whole[at + 8 :]
    assert np.array_equal(read(streamed), expected), "a length of 0 is none"
    first = whole[: at + 4] + struct.pack("<I", 3200) + whole[at + 8 :]
    assert np.array_equal(read(first), expected), "it is the length of the first block alone"


def test_rates_and_channels_are_those_of_a_recording(wave: np.ndarray) -> None:
    both = np.stack((wave, wave[::-1]), 1)
    samples = (both * 2**15).astype(np.int16)
    expected = np.concatenate(list(Recording(asr.Samples(samples, 2 * RATE), RATE)))
    found = read(with_unknown_length(samples.tobytes(), 2 * RATE, 2))
    assert np.allclose(found, expected, atol=1e-6)
    mono = np.concatenate(list(Recording(asr.Samples(samples[:, 0].copy(), 2 * RATE), RATE)))
    found = read(samples[:, 0].tobytes(), raw_rate=2 * RATE)
    assert np.allclose(found, mono, atol=1e-6)


def test_a_wav_that_is_no_pcm_is_refused(wave: np.ndarray) -> None:
    for subtype in ("PCM_24", "FLOAT", "ULAW"):
        written = io.BytesIO()
        sf.write(written, wave, RATE, format="WAV", subtype=subtype)
        with pytest.raises(AudioError, match="convert it"):
            read(written.getvalue())
    for head in (b"RIFF", b"RIFF\0\0\0\0WAVEdata\0\0\0\0", b"RIFF\0\0\0\0WAVEfmt \1\0\0\0a"):
        with pytest.raises(AudioError, match="convert it"):
            read(head)


def test_blocks_come_while_the_pipe_is_open() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as pipe:  # noqa: PTH123
        blocks: Iterator[np.ndarray] = blocks_of(pipe, RATE, RATE)
        os.write(writer, pcm(np.full(100, 0.5)))
        n_samples = 0
        while n_samples < 100:
            n_samples += len(next(blocks))
        os.close(writer)
        assert n_samples == 100 and not list(blocks)


def test_text_is_printed_while_audio_comes(
    streaming_bundle: Path, wave: np.ndarray, tmp_path: Path
) -> None:
    audio, pipe = pcm(wave), tmp_path / "pipe"
    model = asr.load(streaming_bundle, "cpu")
    first, second = (r.text for r in model.stream([np.frombuffer(audio, "<i2")]) if r.is_final)
    os.mkfifo(pipe)
    with start_cli("transcribe", "--live", streaming_bundle, "-", stdin=pipe) as run:
        with pipe.open("wb") as end:
            end.write(audio)
            end.flush()
            wait_for(lambda: run.out.read_text("utf-8") == f"{first}\n")
        result = run.result()
    assert (result.returncode, result.stdout) == (0, f"{first}\n{second}\n")


def test_raw_audio_has_the_rate_that_is_given(
    streaming_bundle: Path, wave: np.ndarray, tmp_path: Path
) -> None:
    twice = soxr.resample(wave, RATE, 2 * RATE)
    (tmp_path / "audio").write_bytes(pcm(twice))
    arguments = ("transcribe", "--live", "--rate", str(2 * RATE), streaming_bundle, "-")
    with start_cli(*arguments, stdin=tmp_path / "audio") as run:
        result = run.result()
    model, samples = asr.load(streaming_bundle, "cpu"), np.frombuffer(pcm(twice), "<i2")
    found = model.stream(Recording(asr.Samples(samples, 2 * RATE), RATE))
    texts = [r.text for r in found if r.is_final]
    assert (result.returncode, result.stdout) == (0, "".join(f"{text}\n" for text in texts))
    assert len(texts) == 2


def test_a_text_that_is_too_uncertain_is_told(
    streaming_bundle: Path, wave: np.ndarray, tmp_path: Path
) -> None:
    (tmp_path / "audio").write_bytes(pcm(wave))
    arguments = ("transcribe", "--live", "--confidence", "0.99", streaming_bundle, "-")
    with start_cli(*arguments, stdin=tmp_path / "audio") as run:
        result = run.result()
    model = asr.load(streaming_bundle, "cpu")
    audio = [np.frombuffer(pcm(wave), "<i2")]
    said = [r.text for r in model.stream(audio) if r.is_final]
    assert result.returncode == 0 and result.stdout == ""
    warned = " ".join(result.stderr.split())
    assert warned.count("left out as uncertain") == len(said) == 2
    assert all(text in warned for text in said)


def test_what_live_is_not_for_is_refused(streaming_bundle: Path, tiny_bundle: Path) -> None:
    for arguments, reason in (
        (["--live", streaming_bundle, "a.wav"], "--live takes a bundle and -"),
        (["--live", streaming_bundle, "-", "--format", "srt"], "--live prints text"),
        (["--rate", "8000", streaming_bundle, "-"], "--rate is for it alone"),
        (["--live", tiny_bundle, "-"], "has no streaming encoder"),
    ):
        result = run_cli("transcribe", *arguments)
        assert result.returncode
        assert reason in " ".join(result.stderr.split()) and "Traceback" not in result.stderr
