"""Recordings in formats that libsndfile does not read, by FFmpeg (PyAV) in a process of its own.

FFmpeg's formats can name other files, and a damaged file can make it take any memory, or crash. So
the bytes alone decide on one of a few formats, and the process that decodes has its standard input
and nothing else (see `asr.audio.media_process`).
"""

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfileobj
from struct import Struct
from tempfile import TemporaryFile
from typing import IO, BinaryIO

import numpy as np
from pydantic import ValidationError

from asr.audio.decoder import check_sound
from asr.errors import AudioError
from asr.schema import FrozenModel

# FFmpeg's name of a format, how its files begin, and its name in messages. An Ogg file comes here
# only if libsndfile does not read it.
_FORMATS = {
    "mov": (rb".{4}(ftyp|moov|mdat|wide)", "MP4, M4A or QuickTime"),
    "matroska": (rb"\x1a\x45\xdf\xa3", "WebM or Matroska"),
    "aac": (rb"\xff[\xf0\xf1\xf8\xf9]", "AAC"),
    "amr": (rb"#!AMR(-WB)?\n", "AMR"),
    "asf": (rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9", "Windows Media"),
    "ogg": (rb"OggS\0", "Ogg of a codec that libsndfile lacks"),
}
_HEAD_BYTES = 16
_CONVERT = "convert it first, for instance with `ffmpeg -i INPUT -ar 16000 -ac 1 OUTPUT.wav`"
_SCRIPT = Path(__file__).with_name("media_process.py")
_HEAD = Struct("<IIQI")  # as in media_process
_BUFFERED = (io.BufferedReader, io.BufferedRandom)
_MOST_BYTES = 1 << 20  # of a block
_GAPS = 0.02  # of a recording: gaps that the adjustment of a clock makes
_LOST = 2.0  # seconds in gaps that are too long for that
_TOLERANCE = 0.5  # seconds that a header may announce beyond the audio


class _Note(FrozenModel):
    """What the process reports: first the length, at the end the damage."""

    seconds: float = 0.0
    ends_with_audio: bool = False
    n_damaged: int = 0
    silence: float = 0.0
    lost: float = 0.0
    error: str = ""
    reason: str = ""
    is_end: bool = False


def is_installed() -> bool:
    """Return whether PyAV is installed."""
    return find_spec("av") is not None


def media_format(binary: BinaryIO, start: int) -> str | None:
    """Return FFmpeg's name of the format of a recording at offset `start`, None if unknown."""
    binary.seek(start)
    head = binary.read(_HEAD_BYTES)
    known = (name for name, (begin, _) in _FORMATS.items() if re.match(begin, head, re.DOTALL))
    return next(known, None)


def refusal(format: str, label: str) -> AudioError:
    """Return the error for a recording in one of these formats where they are not allowed."""
    return AudioError(
        f"{label} is in a format ({_FORMATS[format][1]}) that `asr transcribe` and the Python API "
        f"decode, but not the service: use them, or {_CONVERT}",
        "unsupported_media",
    )


class Media:
    """A recording's blocks of float32 samples (samples, channels), each with its sample rate.

    Pairs without samples come first and at the end, when the process has reported something.
    `seconds` is the length by the header, 0 if unknown; that of Matroska is known at the end only.
    `ends_with_audio` tells whether nothing follows the audio in the file. `place` is the offset up
    to which the file was read. At the end `n_damaged` counts the packets that could not be decoded.
    `silence` is the seconds without audio in the file, which became zeros, and `lost` is the part
    of them in gaps of more than half a second. Iterating raises AudioError.
    """

    def __init__(self, binary: BinaryIO, format: str, label: str) -> None:
        self.binary, self.format, self.label = binary, format, label
        self.seconds, self.place, self.n_damaged, self.ends_with_audio = 0.0, 0, 0, False
        self.silence, self.lost = 0.0, 0.0

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        if not is_installed():
            raise AudioError(
                f"{self.label} is in a format ({_FORMATS[self.format][1]}) that PyAV decodes, "
                f"which is not installed: `pip install 'lrt-asr[media]'`, or {_CONVERT}",
                "unsupported_media",
            )
        is_end = False
        with _plain_file(self.binary) as file, self._process(file) as output:
            while len(head := output.read(_HEAD.size)) == _HEAD.size:
                rate, channels, place, n_bytes = _HEAD.unpack(head)
                self.place = max(self.place, place)
                content = output.read(min(n_bytes, _MOST_BYTES))
                if len(content) < n_bytes:
                    break
                if rate:
                    check_sound(channels, rate, self.label)
                    samples = np.frombuffer(
                        content, np.float32, n_bytes // (4 * channels) * channels
                    )
                    yield rate, samples.reshape(-1, channels)
                    continue
                is_end = self._take(content)
                yield 0, np.zeros((0, 1), np.float32)
        if not is_end:
            raise AudioError(
                f"{self.label} cannot be decoded with the memory and the time that a recording "
                f"may take, or it crashes the decoder: {_CONVERT}"
            )

    def has_gaps(self, seconds: float) -> bool:
        """Return whether a recording of so many seconds lacks audio, lost or never recorded."""
        return self.lost > _LOST or self.silence > max(_TOLERANCE, _GAPS * seconds)

    def announces_more(self, seconds: float) -> bool:
        """Return whether the header announced clearly more than so many seconds."""
        return self.seconds > seconds + _TOLERANCE

    @contextmanager
    def _process(self, file: IO[bytes]) -> Iterator[IO[bytes]]:
        """Yield the output of a process that decodes a file; it ends with the context."""
        # -P: imports are not searched in the script's folder, whose modules may hide others.
        command = [sys.executable, "-P", str(_SCRIPT), self.format]
        process = subprocess.Popen(
            command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        with process:
            try:
                assert process.stdout
                yield process.stdout
            finally:
                process.kill()

    def _take(self, content: bytes) -> bool:
        """Store a note, tell whether it is the last. Raises AudioError if it reports an error."""
        format = _FORMATS[self.format][1]
        try:
            note = _Note.model_validate_json(content)
        except ValidationError:
            return False
        if note.error == "no_audio":
            raise AudioError(f"{self.label} holds no audio track: give another file", "empty_audio")
        if note.error == "codec":
            raise AudioError(
                f"{self.label} holds audio in {note.reason}, which is not decoded: {_CONVERT}",
                "unsupported_media",
            )
        if note.error:
            raise AudioError(
                f"{self.label} is damaged and cannot be decoded as {format} ({note.reason}): "
                "fetch or record it again"
            )
        self.seconds = max(self.seconds, note.seconds)
        self.n_damaged += note.n_damaged
        self.silence, self.lost = self.silence + note.silence, self.lost + note.lost
        self.ends_with_audio |= note.ends_with_audio
        return note.is_end


@contextmanager
def _plain_file(binary: BinaryIO) -> Iterator[IO[bytes]]:
    """Yield a file of the operating system with the bytes of a binary file, a copy if needed."""
    if isinstance(binary, _BUFFERED) and isinstance(binary.raw, io.FileIO):
        yield binary
        return
    with TemporaryFile() as file:
        binary.seek(0)
        copyfileobj(binary, file)
        file.flush()
        yield file
