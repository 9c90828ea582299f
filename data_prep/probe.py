"""Check that a recording is whole without decoding it."""

import errno
import re
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile as sf

from asr.audio.decoder import is_truncated_riff
from asr.audio.ogg import is_cut_off
from asr.audio.parts import after_tags
from asr.data.recordings import MOST_CHANNELS, RATES
from asr.errors import AsrError, AudioError
from asr.runtime.storage import RemoteFile

# The frame of an MP3 (layer I to III) at the start, and one that gives the length of the file.
_MP3 = re.compile(rb"\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]")
_MP3_LENGTH = re.compile(  # the number of frames, where the flags say that it is there
    rb".{4}(?:.{9}|.{17}|.{32})(?:VBRI|(?:Xing|Info)...[\x01\x03\x05\x07\x09\x0b\x0d\x0f](?!\0{4}))",
    re.DOTALL,
)
_MOST_ZEROS = 2**20  # bytes behind a tag

# What to do if every recording of a corpus has the same fault.
FIXES = {
    "shorten_compressed": "unpack every file with `sph2pipe IN.sph OUT.sph` (a tool of the LDC)",
    "no_length": "convert them to WAV or FLAC, of which each gives its length",
    "unusable_rate": f"convert them to {RATES[0]:,} to {RATES[-1]:,} Hz",
    "too_many_channels": f"convert them to at most {MOST_CHANNELS} channels",
    "unusable_path": "rename the folder whose name ends in .tar: nothing is read in a tar file",
    "undecodable_name": "rename files and folders to UTF-8, for instance with `convmv`",
    "no_speech": "look whether the recordings hold speech of the model's language",
    "low_confidence": "train a better model first, or give a lower --confidence",
    "disagreement": "train a better model first, or give a higher --disagreement",
    "endless_text": "train a better model first",
    "outside_recording": "give times in seconds, within the recording",
    "changed": "give the same command again when no other program writes the recordings",
    "in_dev": "give other recordings: these are in dev",
    "has_text": "give other recordings: these have a text",
}


def probe(path: Path | RemoteFile, content: bytes | None = None) -> sf._SoundFileInfo:
    """Return soundfile's info (frames, samplerate in Hz, channels) of a recording that is whole.

    Reads the header and the last sample; only float files, which alone can hold NaN, are decoded.
    `content` is that of a file by URL, if it was read already.
    Raises AudioError whose `code` is missing, unreadable, shorten_compressed, no_samples,
    no_length, truncated, unusable_rate, too_many_channels or not_finite, and AsrError where storage
    does not answer.
    """
    if isinstance(path, RemoteFile):
        return _probe_remote(path, content)
    if not path.is_file():
        raise AudioError(f"{path}: there is no such file: check the corpus", "missing")
    try:
        with path.open("rb") as opened:
            sphere = _header(path, opened)
        info = sf.info(str(path), verbose=True)
        _check_length(path, sphere, info)
        with sf.SoundFile(path) as file:
            _check_samples(path, file)
    except (sf.LibsndfileError, OSError) as error:
        raise _unreadable(path, error) from error
    return info


def _probe_remote(file: RemoteFile, content: bytes | None) -> sf._SoundFileInfo:
    try:
        with file.open() if content is None else BytesIO(content) as opened:
            sphere = _header(file, opened)
            opened.seek(0)
            info = sf.info(opened, verbose=True)
            _check_length(file, sphere, info)
            opened.seek(0)
            with sf.SoundFile(opened) as sound:
                _check_samples(file, sound)
    except OSError as error:
        if error.errno == errno.EIO:  # of the storage, not of the recording
            raise AsrError(f"{file}: {error.strerror}: try again when it does") from error
        raise _unreadable(file, error) from error
    except sf.LibsndfileError as error:
        raise _unreadable(file, error) from error
    return info


def _header(path: Path | RemoteFile, file: BinaryIO) -> bytes:
    """Return the first 1024 bytes of a SPHERE file, b"" for other files.

    Raises AudioError for a compressed SPHERE file, an Ogg file that ends within a page, and a file
    whose header gives no length.
    """
    header = file.read(1024)
    if header.startswith(b"OggS") and is_cut_off(file):
        raise AudioError(f"{path}: ends within a page: copy it again", "truncated")
    sphere = header if header.startswith(b"NIST_1A") else b""
    if b"embedded-shorten" in sphere:
        fix = FIXES["shorten_compressed"]
        raise AudioError(f"{path}: is compressed by shorten: {fix}", "shorten_compressed")
    if has_no_length(file):
        fix = FIXES["no_length"]
        raise AudioError(f"{path}: has a header that gives no length: {fix}", "no_length")
    return sphere


def has_no_length(file: BinaryIO) -> bool:
    """Tell whether this is an MP3 or a FLAC whose header does not give its length.

    libsndfile estimates the length of such an MP3, and reads no further.
    """
    file.seek(after_tags(file, 0, _MOST_ZEROS))
    start = file.read(1024).lstrip(b"\0")
    if start.startswith(b"fLaC") and len(start) > 26:  # 36 bits: the number of samples
        return start[21] & 15 == 0 and not any(start[22:26])
    return bool(_MP3.match(start)) and not _MP3_LENGTH.match(start)


def _check_length(path: Path | RemoteFile, sphere: bytes, info: sf._SoundFileInfo) -> None:
    announced = re.search(rb"^sample_count -i (\d+)", sphere, re.MULTILINE)
    is_short = announced is not None and int(announced[1]) > info.frames
    if is_short or is_truncated_riff(info.extra_info):
        raise AudioError(f"{path}: is shorter than its header says: copy it again", "truncated")
    if info.frames <= 0:
        raise AudioError(f"{path}: holds no samples: remove it", "no_samples")
    if info.samplerate not in RATES:  # which no reader of the manifest would take
        fix = FIXES["unusable_rate"]
        raise AudioError(f"{path}: has {info.samplerate:,} Hz: {fix}", "unusable_rate")
    if info.channels > MOST_CHANNELS:
        fix = FIXES["too_many_channels"]
        raise AudioError(f"{path}: has {info.channels} channels: {fix}", "too_many_channels")


def _unreadable(path: Path | RemoteFile, error: Exception) -> AudioError:
    return AudioError(f"{path}: cannot be read as audio ({error}): copy it again", "unreadable")


def _check_samples(path: Path | RemoteFile, file: sf.SoundFile) -> None:
    try:
        file.seek(file.frames - 1)
        has_last = len(file.read(1)) > 0
    except sf.LibsndfileError:
        has_last = False
    if not has_last:
        raise AudioError(f"{path}: its end cannot be decoded: copy it again", "truncated")
    if file.subtype in ("FLOAT", "DOUBLE"):
        file.seek(0)
        if not all(np.isfinite(block).all() for block in file.blocks(1 << 16)):
            raise AudioError(f"{path}: holds samples that are NaN or infinite", "not_finite")
