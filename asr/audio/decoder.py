"""Files to mono samples, block by block, by libsndfile."""

import re
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import soundfile

from asr.audio.parts import Part
from asr.errors import AudioError

BLOCK = 16384
RATES = range(1_000, 384_001)
# The first bytes of wav (with w64 and rf64), flac, ogg, aiff, au, SPHERE and MP3. libsndfile knows
# more formats, but reports damage in some (ALAC, MIDI sample dumps) on standard output.
_KNOWN = re.compile(rb"RIF[FX]|RF64|riff|fLaC|OggS|FORM|\.snd|dns\.|NIST|\xff[\xe0-\xff]")
_MAX_CHANNELS = 8
# Programs that write to a pipe leave a length near the largest that 32 bits hold, signed or not. It
# means that the length is unknown, not that the file is truncated. The smallest is sox's for aiff.
_UNKNOWN_LENGTH = 0x7F000000
_UNKNOWN_FRAMES = 2**62


def is_truncated_riff(libsndfile_log: str) -> bool:
    """Return whether a WAV or AIFF header announces more samples than the file holds.

    libsndfile corrects the length without an error; only its log holds the announced length.
    """
    log = re.search(
        r"^\s*(?:data|SSND)\s*: (\d+) \(should be (\d+)\)", libsndfile_log, re.MULTILINE
    )
    return log is not None and int(log[2]) < int(log[1]) < _UNKNOWN_LENGTH


class _ForwardFile(soundfile.SoundFile):  # type: ignore[misc]
    """A file that is only read forwards.

    soundfile seeks after every block of a seekable file. That makes an MP3 decoder garble the start
    of each block, and fails at the end of a FLAC of unknown length.
    """

    def seekable(self) -> bool:
        """Return False, so that soundfile does not seek."""
        return False


class Decoder:
    """Mono float32 blocks of an open file, and the warnings about it."""

    def __init__(self, sound: soundfile.SoundFile, part: Part, label: str) -> None:
        self.sound, self.part, self.label = sound, part, label
        self.n_decoded, self.broken = 0, False

    @property
    def announced_frames(self) -> int:
        """Return the length that the header gives; 0 if it gives none or an estimate (MP3)."""
        is_known = self.sound.frames < _UNKNOWN_FRAMES and self.sound.format != "MP3"
        return int(self.sound.frames) if is_known else 0

    @property
    def n_bytes_left(self) -> int:
        """Return the number of bytes after the decoded audio; 0 for formats of more than audio."""
        left = self.part.end - self.part.start - self.part.at
        return left if self.sound.format in ("MP3", "FLAC") and not self._truncated() else 0

    def __iter__(self) -> Iterator[np.ndarray]:
        # A product takes a tenth of the time of numpy's mean, and cannot overflow.
        mix = np.full(self.sound.channels, 1 / self.sound.channels, np.float32)
        while len(block := self._read()):
            self.n_decoded += len(block)
            with np.errstate(invalid="ignore"):
                mono = block @ mix
            yield mono
        if self.sound.format == "MP3":
            self.part.end_early()

    def _read(self) -> np.ndarray:
        if self.broken:
            return np.zeros((0, self.sound.channels), np.float32)
        # If decoding fails inside a block, the NaN left in it show how much was decoded; only
        # compressed formats fail so, and they contain no NaN of their own.
        out = np.full((BLOCK, self.sound.channels), np.nan, np.float32)
        try:
            return out[: len(self.sound.read(out=out))]
        except soundfile.LibsndfileError:
            self.broken = True
            unread = np.isnan(out).any(axis=1)
            return out[: unread.argmax() if unread.any() else len(out)]

    def _truncated(self) -> bool:
        if self.sound.format in ("WAV", "WAVEX", "AIFF"):
            return is_truncated_riff(self.sound.extra_info)
        if self.sound.frames >= _UNKNOWN_FRAMES or self.part.is_estimate:
            return self.broken
        return bool(self.n_decoded < self.sound.frames)

    def warnings(self, sample_rate: int, seconds: float, is_last: bool) -> tuple[str, ...]:
        """Return warnings about a part that was read to its end; `sample_rate` is the model's.

        `seconds` is the length of the recording so far; `is_last` tells whether the file ends here.
        """
        found, rate = [], self.sound.samplerate
        if self._truncated():
            found.append(
                f"{self.label} is truncated: only its first {seconds:.2f} seconds could be decoded"
                if is_last
                else f"{self.label} is damaged after {seconds:.2f} seconds: audio is missing there"
            )
        return (*found, *narrow_band(rate, sample_rate, self.label))


def narrow_band(rate: int, sample_rate: int, label: str) -> tuple[str, ...]:
    """Return the warning about a recording whose sample rate is lower than the model's."""
    if rate >= sample_rate:
        return ()
    return (
        f"{label} is recorded at {rate} Hz for a model of {sample_rate} Hz: nothing above "
        f"{rate // 2} Hz was recorded",
    )


class UnknownFormatError(AudioError):
    """A file that libsndfile does not read."""


def check_sound(channels: int, rate: int, label: str) -> None:
    """Raise AudioError for a number of channels or a sample rate that is not decoded."""
    if rate not in RATES or channels not in range(1, _MAX_CHANNELS + 1):
        raise AudioError(
            f"{label} has {channels} channels at {rate} Hz, expected at most {_MAX_CHANNELS} "
            f"channels at {RATES[0]} to {RATES[-1]} Hz: convert it first, for instance with "
            "ffmpeg's `-ar 16000 -ac 1`",
            "unsupported_media",
        )


def open_sound(part: Part, label: str) -> soundfile.SoundFile:
    """Open a file for decoding; its content decides on the format, never its name.

    Raises UnknownFormatError, or AudioError as `check_sound` does.
    """
    part.seek(0)
    start = part.read(4)
    part.seek(0)
    # soundfile takes the format from the name of a file that ends in `.raw`.
    nameless = SimpleNamespace(read=part.read, seek=part.seek, tell=part.tell)
    try:
        if not _KNOWN.match(start):
            raise soundfile.LibsndfileError(1)
        sound = _ForwardFile(nameless)
        part.hides_tags = sound.subtype.startswith("MPEG")  # a WAV too may hold MP3
    except soundfile.LibsndfileError as error:
        raise UnknownFormatError(
            f"{label} is not a recording in a known format (wav, flac, ogg, mp3): convert it "
            "first, for instance with `ffmpeg -i INPUT -ar 16000 -ac 1 OUTPUT.wav`",
            "unsupported_media",
        ) from error
    try:
        check_sound(sound.channels, sound.samplerate, label)
    except AudioError:
        sound.close()
        raise
    return sound
