"""Recordings to waves: any file that libsndfile reads, mixed to mono at the model's sample rate.

torchaudio resamples too, but its kernel for two rates without a common divisor takes gigabytes and
it needs eight times soxr's time, so soxr does it here.
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

_BLOCK = 16384
_RATES = range(1_000, 384_001)
_MAX_CHANNELS = 8
# Writers that cannot seek back (a pipe) leave a length near the largest that 32 bits hold, signed
# or not: it says that the length is unknown, not that the file was cut.
_UNKNOWN_WAV_LENGTH = 0x7FFFF000
_UNKNOWN_FRAMES = 2**62


@dataclass(frozen=True, eq=False)
class Samples:
    """Mono audio in memory: int16, or floats of at most 1, (samples,), at `sample_rate` Hz."""

    samples_N: np.ndarray
    sample_rate: int


Source = str | Path | BinaryIO | Samples


class Recording:
    """A recording that is decoded while it is iterated and never held as a whole.

    `source` is a path, a seekable binary file (wav, flac, ogg or mp3), which stays open, or samples
    in memory; `name` stands for it in messages. It yields blocks (samples,), float32 mono at
    `sample_rate` Hz, their levels as recorded, one sample at least. Meanwhile `seconds` of the
    source and the `fraction` of its bytes are what was read so far; `warnings` are known at the
    end. A truncated file is decoded as far as it goes, with a warning.

    Iterating raises AudioError, whose `code` is empty_audio, unsupported_media, non_finite_audio,
    unreadable_audio, or too_long where it is longer than `max_seconds`: before any work where the
    header says so, else where the limit is reached.
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
        if isinstance(self.source, Samples):
            yield from self._resampled_samples(self.source)
            return
        with _binary(self.source, self.label) as binary, _opened(binary, self.label) as sound:
            start = binary.tell()
            size = binary.seek(0, SEEK_END)
            binary.seek(start)
            decoder = _Decoder(sound, self.label, self.max_seconds)
            resampler = self._resampler(sound.samplerate)
            for block in decoder:
                self.seconds, self.fraction = decoder.seconds, binary.tell() / size
                yield resampler.resample_chunk(block)
            yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)
            self.warnings = decoder.warnings(self.sample_rate)

    def _resampled_samples(self, source: Samples) -> Iterator[np.ndarray]:
        resampler, samples_N = self._resampler(source.sample_rate), source.samples_N
        scale = np.float32(1 / 2**15 if samples_N.dtype == np.int16 else 1)
        if not len(samples_N):
            raise _empty(self.label)
        for start in range(0, len(samples_N), _BLOCK):
            block = samples_N[start : start + _BLOCK].astype(np.float32) * scale
            self.seconds = (start + len(block)) / source.sample_rate
            self.fraction = (start + len(block)) / len(samples_N)
            if self.max_seconds is not None and self.seconds > self.max_seconds:
                raise _too_long(self.label, self.max_seconds)
            yield resampler.resample_chunk(block)
        yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)

    def _resampler(self, source_rate: int) -> soxr.ResampleStream:
        return soxr.ResampleStream(source_rate, self.sample_rate, 1, dtype="float32")


class _ForwardFile(soundfile.SoundFile):
    """A file that is only read forwards.

    soundfile seeks after every block of a seekable file. To an MP3 decoder that is a jump, which
    garbles the start of each block; in a FLAC of unknown length it fails at the end.
    """

    def seekable(self) -> bool:
        """Never, so that soundfile does not seek."""
        return False


class _Decoder:
    """Mono float32 blocks of an open file, and what was noticed while reading them."""

    def __init__(self, sound: soundfile.SoundFile, label: str, max_seconds: float | None) -> None:
        self.sound, self.label, self.max_seconds = sound, label, max_seconds
        self.n_decoded, self.broken = 0, False
        if max_seconds is not None and self._announced > max_seconds:
            raise _too_long(label, max_seconds)

    @property
    def _announced(self) -> float:
        """Return the length in seconds that the header gives; 0 for none or an estimate (MP3)."""
        is_known = self.sound.frames < _UNKNOWN_FRAMES and self.sound.format != "MP3"
        return self.sound.frames / self.sound.samplerate if is_known else 0.0

    @property
    def seconds(self) -> float:
        """What was decoded so far, in seconds of the source."""
        return self.n_decoded / self.sound.samplerate

    def __iter__(self) -> Iterator[np.ndarray]:
        # A product takes a tenth of the time of numpy's mean, and weights first cannot overflow.
        mix = np.full(self.sound.channels, 1 / self.sound.channels, np.float32)
        while len(block := self._read()):
            self.n_decoded += len(block)
            if self.max_seconds is not None and self.seconds > self.max_seconds:
                raise _too_long(self.label, self.max_seconds)
            with np.errstate(invalid="ignore"):
                mono = block @ mix
            yield mono
        if not self.n_decoded:
            raise self._nothing()

    def _read(self) -> np.ndarray:
        if self.broken:
            return np.zeros((0, self.sound.channels), np.float32)
        # Where decoding fails inside a block, the NaN left in it tell how much was decoded; only
        # compressed formats fail so, and they hold no NaN of their own.
        out = np.full((_BLOCK, self.sound.channels), np.nan, np.float32)
        try:
            return self.sound.read(out=out)
        except soundfile.LibsndfileError:
            self.broken = True
            unread = np.isnan(out).any(axis=1)
            return out[: unread.argmax() if unread.any() else len(out)]

    def _nothing(self) -> AudioError:
        if self.broken:
            return AudioError(
                f"{self.label} is damaged and nothing in it can be decoded: fetch or record it "
                "again"
            )
        return _empty(self.label)

    def _truncated(self) -> bool:
        if self.sound.format in ("WAV", "WAVEX"):
            # libsndfile corrects the header's length silently and only its log knows the claim.
            log = re.search(r"^data : (\d+) \(should be \d+\)", self.sound.extra_info, re.M)
            return log is not None and int(log[1]) < _UNKNOWN_WAV_LENGTH
        return self.broken or self.n_decoded < self.sound.frames < _UNKNOWN_FRAMES

    def warnings(self, sample_rate: int) -> tuple[str, ...]:
        """Sentences about a file that was read to its end for a model at `sample_rate` Hz."""
        found, rate = [], self.sound.samplerate
        if self._truncated():
            found.append(
                f"{self.label} is truncated: only its first {self.seconds:.2f} seconds could be "
                "decoded"
            )
        if rate < sample_rate:
            found.append(
                f"{self.label} is recorded at {rate} Hz for a model of {sample_rate} Hz: nothing "
                f"above {rate // 2} Hz can be heard"
            )
        return tuple(found)


def _binary(source: str | Path | BinaryIO, label: str) -> AbstractContextManager[BinaryIO]:
    if not isinstance(source, str | Path):
        return nullcontext(source)
    try:
        return Path(source).open("rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise AudioError(f"{label} cannot be opened ({reason}): check the path") from error


def _opened(binary: BinaryIO, label: str) -> soundfile.SoundFile:
    """The file, open for decoding; its content decides on the format, never its name."""
    try:
        size = binary.seek(0, SEEK_END)
        binary.seek(0)
    except OSError as error:
        raise AudioError(f"{label} is a stream: save it to a file first") from error
    if not size:
        raise _empty(label)
    # soundfile takes the name of what it is given for a format, at least where it ends in `.raw`.
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


def _too_long(label: str, max_seconds: float) -> AudioError:
    return AudioError(
        f"{label} is longer than the {max_seconds:g} seconds that are allowed: split it into "
        "shorter recordings",
        "too_long",
    )
