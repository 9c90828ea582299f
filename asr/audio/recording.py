"""Recordings to waveforms: any file that libsndfile or FFmpeg reads, mono, at the model's rate.

soxr resamples: torchaudio takes eight times as long, and gigabytes for two rates without a common
divisor. Training reads its cuts by lhotse and resamples in the same way
(`asr.data.manifest.read_wave`).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from io import BytesIO
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile
import soxr

from asr.audio.decoder import BLOCK, RATES, Decoder, UnknownFormatError, narrow_band, open_sound
from asr.audio.media import Media, media_format, refusal
from asr.audio.parts import Part, find_parts
from asr.errors import AudioError, ConfigError
from asr.runtime.files import open_regular
from asr.runtime.storage import RemoteFile

_PART_SAMPLES = 2**16  # the time to open a part of a file is about that to decode so many samples
_PAUSE_SAMPLES = 2**19  # likewise the search for a part from one pause to the next
# A tag at the end of a file, which is no audio, is seldom larger.
_IGNORED_BYTES = 2**12
_MOST_WARNINGS = 8
_SAMPLE_TYPES = (np.dtype("int16"), np.dtype("float16"), np.dtype("float32"), np.dtype("float64"))


def check_sample_type(samples: object) -> None:
    """Raise ConfigError unless these are int16 or floats in a numpy array."""
    kind = getattr(samples, "dtype", None)
    if not isinstance(samples, np.ndarray) or kind not in _SAMPLE_TYPES:
        raise ConfigError(
            f"samples are {kind or type(samples).__name__}, expected a numpy array of int16, or of "
            "floats from -1 to 1: convert them"
        )


@dataclass(frozen=True, eq=False)
class Samples:
    """Audio in memory at `sample_rate` Hz: int16, or floats from -1 to 1.

    Its axes are (samples,) or (samples, channels). Raises ConfigError for others.
    """

    samples_N: np.ndarray
    sample_rate: int

    def __post_init__(self) -> None:
        check_sample_type(self.samples_N)
        shape = self.samples_N.shape
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] not in range(1, 9)):
            raise ConfigError(
                f"samples have the shape {shape}, expected (samples,) or (samples, channels) with "
                "at most 8 channels: transpose or split them"
            )
        if self.sample_rate not in RATES:
            raise ConfigError(
                f"samples have a sample rate of {self.sample_rate}, expected {RATES[0]} to "
                f"{RATES[-1]} Hz: give that of the recording"
            )


Source = str | Path | RemoteFile | BinaryIO | bytes | Samples


class Recording:
    """A recording that is decoded while it is iterated and never held as a whole.

    `source` is a path, a file by URL, a seekable binary file (which stays open), the bytes of a
    file, or samples in memory; messages call it `name`. Files are wav, flac, ogg or mp3; with
    `any_format` also m4a, mp4, webm and others that FFmpeg decodes (see `asr.audio.media`).
    Iterating yields float32 mono blocks (samples,) at `sample_rate` Hz with the recorded levels, at
    least one sample in all. Meanwhile `seconds` (of the source) and `fraction` (of its bytes) tell
    what has been read; `warnings` are complete at the end. A truncated file is decoded as far as
    possible, with a warning. `n_samples` is the work so far: the decoded samples of all channels,
    and as many as opening and searching parts of the file takes.

    Iterating raises AudioError with a `code`: empty_audio, unsupported_media, non_finite_audio,
    unreadable_audio, or too_long if the recording exceeds `max_seconds` or its work `max_samples`.
    This is before any decoding if the header says so, else when the limit is reached.
    """

    def __init__(
        self,
        source: Source,
        sample_rate: int,
        *,
        name: str | None = None,
        max_seconds: float | None = None,
        max_samples: int | None = None,
        any_format: bool = False,
    ) -> None:
        if isinstance(source, np.ndarray):
            raise ConfigError("an array has no sample rate: give asr.Samples(array, sample_rate)")
        self.source, self.sample_rate, self.any_format = source, sample_rate, any_format
        self.max_seconds, self.max_samples = max_seconds, max_samples
        is_named = isinstance(source, str | Path | RemoteFile)
        self.label = name or (str(source) if is_named else "the recording")
        self.seconds, self.fraction, self.n_samples = 0.0, 0.0, 0
        self.warnings: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[np.ndarray]:
        self.seconds, self.fraction, self.n_samples, self.warnings = 0.0, 0.0, 0, ()
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
        resampler: Any = None
        current, end = 0, np.zeros(0, np.float32)
        for rate, block in self._blocks():
            if not rate:
                yield block
                continue
            if rate != current:
                if resampler:
                    yield resampler.resample_chunk(end, last=True)
                resampler = soxr.ResampleStream(rate, self.sample_rate, 1, dtype="float32")
                current = rate
            yield resampler.resample_chunk(block)
        if not self.seconds:
            raise _empty(self.label)
        yield resampler.resample_chunk(end, last=True)

    def _blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the source's sample rate and mono float32 blocks of its samples.

        A rate of 0 is a pause without samples.
        """
        if isinstance(self.source, Samples):
            yield from self._from_memory(self.source)
            return
        with _binary(self.source, self.label) as binary:
            size, is_first = _size(binary, self.label), True
            for part in find_parts(binary, size):
                if not part:
                    self._advance(self.seconds, _PAUSE_SAMPLES)
                    yield 0, np.zeros(0, np.float32)
                    continue
                try:
                    sound = open_sound(part, self.label)
                except AudioError as error:
                    if is_first and isinstance(error, UnknownFormatError):
                        yield from self._by_ffmpeg(binary, part, size, error)
                        return
                    if is_first:
                        raise
                    self._warn_of_rest(part.start, size)
                    return
                is_first = False
                with sound:
                    yield from self._decoded(sound, part, size)

    def _from_memory(self, source: Samples) -> Iterator[tuple[int, np.ndarray]]:
        samples_N, rate = source.samples_N, source.sample_rate
        scale = np.float32(1 / 2**15 if samples_N.dtype == np.int16 else 1)
        for start in range(0, len(samples_N), BLOCK):
            block = samples_N[start : start + BLOCK].astype(np.float32) * scale
            self._advance((start + len(block)) / rate, block.size)
            self.fraction = (start + len(block)) / len(samples_N)
            yield rate, block if block.ndim == 1 else block.mean(axis=1)

    def _decoded(
        self, sound: soundfile.SoundFile, part: Part, size: int
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the blocks of one part of a file of `size` bytes, as `_blocks` does."""
        decoder, rate, before = Decoder(sound, part, self.label), sound.samplerate, self.seconds
        n_frames = decoder.announced_frames
        self._check(before + n_frames / rate, self.n_samples + n_frames * sound.channels)
        # Opening a part is work too: a file may hold many that are empty.
        self._advance(before, _PART_SAMPLES)
        yield rate, np.zeros(0, np.float32)
        for block in decoder:
            self._advance(before + decoder.n_decoded / rate, len(block) * sound.channels)
            self.fraction = (part.start + part.at) / size
            yield rate, block
        if decoder.broken and not decoder.n_decoded:
            if before:
                self._warn_of_rest(part.start, size)
                return
            raise AudioError(
                f"{self.label} is damaged and nothing in it can be decoded: fetch or record it "
                "again"
            )
        found = decoder.warnings(self.sample_rate, self.seconds, part.end == size)
        self._warn(*found)
        if n_bad := sum(end - begin for begin, end in part.holes if end < part.end):
            self._warn(
                f"{self.label} is damaged: {n_bad} bytes inside it could not be decoded, and audio "
                "may be missing there"
            )
        if decoder.n_bytes_left > _IGNORED_BYTES:
            self._warn_of_rest(part.end - decoder.n_bytes_left, size)

    def _by_ffmpeg(
        self, binary: BinaryIO, part: Part, size: int, error: UnknownFormatError
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield a file's blocks, decoded by FFmpeg. Raises `error` for an unknown format."""
        format = media_format(binary, part.start)
        if format is None:
            raise error
        if not self.any_format:
            raise refusal(format, self.label) from error
        media, lowest = Media(binary, format, self.label), self.sample_rate
        self._advance(0.0, _PART_SAMPLES)
        for rate, block_NC in media:
            self._check(media.seconds, self.n_samples)
            if rate:
                lowest = min(lowest, rate)
                self._advance(self.seconds + len(block_NC) / rate, block_NC.size)
                self.fraction = media.place / size
            mix = np.full(block_NC.shape[1], 1 / block_NC.shape[1], np.float32)
            yield rate, block_NC @ mix
        self._warn_of_damage(media, size)
        self._warn(*narrow_band(lowest, self.sample_rate, self.label))

    def _warn_of_damage(self, media: Media, size: int) -> None:
        """Warn of what FFmpeg did not decode in a file of `size` bytes."""
        if media.announces_more(self.seconds):
            self._warn(
                f"{self.label} is truncated: only its first {self.seconds:.2f} seconds could be "
                "decoded"
            )
        if media.n_damaged:
            self._warn(
                f"{self.label} is damaged: {media.n_damaged} packets of it could not be decoded, "
                "and audio is missing there"
            )
        if media.has_gaps(self.seconds):
            self._warn(
                f"{self.label} has no audio for {media.silence:.2f} seconds of it, where silence "
                "is taken to be"
            )
        if media.ends_with_audio and size - media.place > max(_IGNORED_BYTES, size // 20):
            self._warn_of_rest(media.place, size)

    def _warn_of_rest(self, at: int, size: int) -> None:
        percent = max(1, round(100 * (1 - at / size)))
        self._warn(
            f"{self.label} goes on after {self.seconds:.2f} seconds with {percent} % of its bytes, "
            "which could not be decoded"
        )

    def _warn(self, *sentences: str) -> None:
        """Add warnings, each once; a file of thousands of damaged parts does not need them all."""
        self.warnings = tuple(dict.fromkeys((*self.warnings, *sentences)))[:_MOST_WARNINGS]

    def _advance(self, seconds: float, n_samples: int) -> None:
        self.seconds = seconds
        self.n_samples += n_samples
        self._check(seconds, self.n_samples)

    def _check(self, seconds: float, n_samples: int) -> None:
        """Raise AudioError where a recording of such a length is too long."""
        if self.max_seconds is not None and seconds > self.max_seconds:
            limit = f"the {self.max_seconds:g} seconds that are allowed: split it into shorter"
        elif self.max_samples is not None and n_samples > self.max_samples:
            limit = (
                f"the {self.max_samples} samples of all channels that are allowed: split it into "
                "shorter, or convert it with ffmpeg's `-ar 16000 -ac 1` to smaller"
            )
        else:
            return
        raise AudioError(f"{self.label} is longer than {limit} recordings", "too_long")


def _binary(
    source: str | Path | RemoteFile | BinaryIO | bytes, label: str
) -> AbstractContextManager[BinaryIO]:
    if isinstance(source, bytes):
        return BytesIO(source)
    if isinstance(source, RemoteFile):
        return _remote(source)
    if not isinstance(source, str | Path):
        return nullcontext(source)
    try:
        return open_regular(Path(source))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise AudioError(f"{label} cannot be opened ({reason}): check the path") from error


@contextmanager
def _remote(source: RemoteFile) -> Iterator[BinaryIO]:
    try:
        with source.open() as binary:
            yield binary
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AudioError(f"{source} cannot be read ({reason}): check the URL") from error


def _size(binary: BinaryIO, label: str) -> int:
    try:
        size = binary.seek(0, SEEK_END)
    except OSError as error:
        raise AudioError(f"{label} is a stream: save it to a file first") from error
    if not size:
        raise _empty(label)
    return size


def _empty(label: str) -> AudioError:
    return AudioError(f"{label} holds no audio at all: record it again", "empty_audio")
