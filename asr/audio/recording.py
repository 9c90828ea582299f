"""Recordings to waveforms: any file that libsndfile reads, mono, at the model's sample rate.

soxr resamples: torchaudio takes eight times as long, and gigabytes for two rates without a common
divisor. Training reads its cuts by lhotse instead (`asr.data.manifest.read_wave`).
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import numpy as np
import soundfile
import soxr

from asr.errors import AudioError
from asr.runtime.files import open_regular

_BLOCK = 16384
_RATES = range(1_000, 384_001)
_MAX_CHANNELS = 8
# Programs that write to a pipe leave a length near the largest that 32 bits hold, signed or not: it
# means that the length is unknown, not that the file is truncated.
_UNKNOWN_WAV_LENGTH = 0x7FFFF000
_UNKNOWN_FRAMES = 2**62


@dataclass(frozen=True, eq=False)
class Samples:
    """Mono audio in memory: int16, or floats from -1 to 1, (samples,), at `sample_rate` Hz."""

    samples_N: np.ndarray
    sample_rate: int


Source = str | Path | BinaryIO | Samples


class Recording:
    """A recording that is decoded while it is iterated and never held as a whole.

    `source` is a path, a seekable binary file (wav, flac, ogg or mp3), which stays open, or samples
    in memory; `name` is what messages call it. Iterating yields blocks (samples,), at least one
    sample in all, float32 mono at `sample_rate` Hz with the levels as recorded. Meanwhile `seconds`
    (of the source) and `fraction` (of its bytes) are what has been read; `warnings` are complete at
    the end. A truncated file is decoded as far as possible, with a warning.

    Iterating raises AudioError, whose `code` is empty_audio, unsupported_media, non_finite_audio,
    unreadable_audio, or too_long if the recording exceeds `max_seconds`: before any decoding if the
    header says so, else when the limit is reached.
    """

    def __init__(
        self,
        source: Source,
        sample_rate: int,
        *,
        name: str | None = None,
        max_seconds: float | None = None,
    ) -> None:
        self.source, self.sample_rate, self.max_seconds = source, sample_rate, max_seconds
        self.label = name or (str(source) if isinstance(source, str | Path) else "the recording")
        self.seconds, self.fraction = 0.0, 0.0
        self.warnings: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[np.ndarray]:
        n_samples = 0
        for wave in self._resampled():
            if not np.isfinite(wave).all():
                raise AudioError(
                    f"{self.label} holds samples that are NaN or infinite: record or export it "
                    "again",
                    "non_finite_audio",
                )
            n_samples += len(wave)
            yield wave
        if not n_samples:  # a sample or two at a high rate can be less than one at a low rate
            yield np.zeros(1, np.float32)

    def _resampled(self) -> Iterator[np.ndarray]:
        resampler, n_read = None, 0
        for rate, block in self._blocks():
            n_read += len(block)
            self.seconds = n_read / rate
            self._check_length(self.seconds)
            resampler = resampler or soxr.ResampleStream(rate, self.sample_rate, 1, dtype="float32")
            yield resampler.resample_chunk(block)
        if resampler is None:
            raise _empty(self.label)
        yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)

    def _blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the source's sample rate and mono float32 blocks of its samples."""
        if isinstance(self.source, Samples):
            samples_N = self.source.samples_N
            scale = np.float32(1 / 2**15 if samples_N.dtype == np.int16 else 1)
            for start in range(0, len(samples_N), _BLOCK):
                block = samples_N[start : start + _BLOCK].astype(np.float32) * scale
                self.fraction = (start + len(block)) / len(samples_N)
                yield self.source.sample_rate, block
            return
        with _binary(self.source, self.label) as binary, _opened(binary, self.label) as sound:
            start = binary.tell()
            size = binary.seek(0, SEEK_END)
            binary.seek(start)
            decoder = _Decoder(sound, self.label)
            self._check_length(decoder.announced_seconds)
            for block in decoder:
                self.fraction = binary.tell() / size
                yield sound.samplerate, block
            self.warnings = decoder.warnings(self.sample_rate)

    def _check_length(self, seconds: float) -> None:
        if self.max_seconds is not None and seconds > self.max_seconds:
            raise AudioError(
                f"{self.label} is longer than the {self.max_seconds:g} seconds that are allowed: "
                "split it into shorter recordings",
                "too_long",
            )


def is_truncated_wav(libsndfile_log: str) -> bool:
    """Return whether a WAV header announces more samples than the file holds.

    libsndfile corrects the length without an error; only its log gives the announced one.
    """
    log = re.search(r"^\s*data\s*: (\d+) \(should be (\d+)\)", libsndfile_log, re.MULTILINE)
    return log is not None and int(log[2]) < int(log[1]) < _UNKNOWN_WAV_LENGTH


class _ForwardFile(soundfile.SoundFile):  # type: ignore[misc]
    """A file that is only read forwards.

    soundfile seeks after every block of a seekable file. That makes an MP3 decoder garble the start
    of each block, and fails at the end of a FLAC of unknown length.
    """

    def seekable(self) -> bool:
        """Return False, so that soundfile does not seek."""
        return False


class _Decoder:
    """Mono float32 blocks of an open file, and the warnings about it."""

    def __init__(self, sound: soundfile.SoundFile, label: str) -> None:
        self.sound, self.label = sound, label
        self.n_decoded, self.broken = 0, False

    @property
    def announced_seconds(self) -> float:
        """Return the length that the header gives; 0 if it gives none or an estimate (MP3)."""
        is_known = self.sound.frames < _UNKNOWN_FRAMES and self.sound.format != "MP3"
        return self.sound.frames / self.sound.samplerate if is_known else 0.0

    def __iter__(self) -> Iterator[np.ndarray]:
        # A product takes a tenth of the time of numpy's mean, and cannot overflow.
        mix = np.full(self.sound.channels, 1 / self.sound.channels, np.float32)
        while len(block := self._read()):
            self.n_decoded += len(block)
            with np.errstate(invalid="ignore"):
                mono = block @ mix
            yield mono
        if self.broken and not self.n_decoded:
            raise AudioError(
                f"{self.label} is damaged and nothing in it can be decoded: fetch or record it "
                "again"
            )

    def _read(self) -> np.ndarray:
        if self.broken:
            return np.zeros((0, self.sound.channels), np.float32)
        # If decoding fails inside a block, the NaN left in it show how much was decoded; only
        # compressed formats fail so, and they contain no NaN of their own.
        out = np.full((_BLOCK, self.sound.channels), np.nan, np.float32)
        try:
            return out[: len(self.sound.read(out=out))]
        except soundfile.LibsndfileError:
            self.broken = True
            unread = np.isnan(out).any(axis=1)
            return out[: unread.argmax() if unread.any() else len(out)]

    def _truncated(self) -> bool:
        if self.sound.format in ("WAV", "WAVEX"):
            return is_truncated_wav(self.sound.extra_info)
        return self.broken or self.n_decoded < self.sound.frames < _UNKNOWN_FRAMES

    def warnings(self, sample_rate: int) -> tuple[str, ...]:
        """Return sentences about a file that was read to its end for a model's sample rate."""
        found, rate = [], self.sound.samplerate
        if self._truncated():
            found.append(
                f"{self.label} is truncated: only its first {self.n_decoded / rate:.2f} seconds "
                "could be decoded"
            )
        if rate < sample_rate:
            found.append(
                f"{self.label} is recorded at {rate} Hz for a model of {sample_rate} Hz: nothing "
                f"above {rate // 2} Hz was recorded"
            )
        return tuple(found)


def _binary(source: str | Path | BinaryIO, label: str) -> AbstractContextManager[BinaryIO]:
    if not isinstance(source, str | Path):
        return nullcontext(source)
    try:
        return open_regular(Path(source))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise AudioError(f"{label} cannot be opened ({reason}): check the path") from error


def _opened(binary: BinaryIO, label: str) -> soundfile.SoundFile:
    """Open a file for decoding; its content decides on the format, never its name."""
    try:
        size = binary.seek(0, SEEK_END)
        binary.seek(0)
    except OSError as error:
        raise AudioError(f"{label} is a stream: save it to a file first") from error
    if not size:
        raise _empty(label)
    # soundfile takes the format from the name of a file that ends in `.raw`.
    nameless = SimpleNamespace(read=binary.read, seek=binary.seek, tell=binary.tell)
    try:
        sound = _ForwardFile(nameless)
    except soundfile.LibsndfileError as error:
        raise AudioError(
            f"{label} is not a recording in a known format (wav, flac, ogg, mp3): convert it "
            "first, for instance with `ffmpeg -i INPUT -ar 16000 -ac 1 OUTPUT.wav`",
            "unsupported_media",
        ) from error
    if sound.samplerate not in _RATES or sound.channels > _MAX_CHANNELS:
        given = f"{sound.channels} channels at {sound.samplerate} Hz"
        sound.close()
        raise AudioError(
            f"{label} has {given}, expected at most {_MAX_CHANNELS} channels at {_RATES[0]} to "
            f"{_RATES[-1]} Hz: convert it first, for instance with ffmpeg's `-ar 16000 -ac 1`",
            "unsupported_media",
        )
    return sound


def _empty(label: str) -> AudioError:
    return AudioError(f"{label} holds no audio at all: record it again", "empty_audio")
