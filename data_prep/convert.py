"""Convert recordings in formats that libsndfile does not read to FLAC, by FFmpeg.

An MP3 or FLAC whose header gives no length is converted too, by libsndfile: lhotse would read a
part of it, or none.
"""

import os
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import soundfile as sf

from asr.audio.media import Media, media_format
from asr.audio.recording import Recording
from asr.errors import AudioError
from asr.runtime.files import open_regular, write_atomically
from data_prep.probe import has_no_length

_LONGEST = 255  # bytes of a name, for file systems


def needs_conversion(path: Path) -> bool:
    """Tell whether lhotse could not read all of a file by libsndfile."""
    try:
        str(path.absolute()).encode()  # where this fails, libsndfile could not open a copy
        with open_regular(path) as file:
            return has_no_length(file) or needs_ffmpeg(path)
    except (OSError, UnicodeEncodeError):
        return False  # the error is reported where the file is read


def needs_ffmpeg(path: Path) -> bool:
    """Tell whether a file begins like a format that FFmpeg reads and libsndfile never does."""
    try:
        with open_regular(path) as file:
            return media_format(file, 0) not in (None, "ogg")
    except OSError:
        return False  # the error is reported where the file is read


def is_mono(path: Path) -> bool:
    """Tell whether a recording has one channel; False where it cannot be read."""
    with suppress(sf.LibsndfileError, AudioError, OSError):  # reported where it is read
        if not needs_ffmpeg(path):
            return bool(sf.info(path).channels == 1)
        with open_regular(path) as file:
            media = Media(file, media_format(file, 0) or "", str(path))
            return next((block_NC.shape[1] == 1 for rate, block_NC in media if rate), False)
    return False


def copy_name(name: str) -> str:
    """Return the file name of a recording's copy; if too long, a hash and the end of the name."""
    whole, copy = os.fsencode(name), f"{name}.flac"
    if len(os.fsencode(copy)) <= _LONGEST:
        return copy
    mark = f"{sha256(whole).hexdigest()[:16]}-"
    end = whole[len(mark) + len(".flac") - _LONGEST :].decode(errors="ignore")
    return f"{mark}{end}.flac"


def to_flac(source: Path, target: Path) -> None:
    """Write a recording's first audio track as 16-bit mono FLAC at its own rate.

    An existing copy of the same file (path, size and time of change) is kept. Raises AudioError,
    whose `code` says why the file cannot be used: no_samples, truncated, two_rates, not_finite,
    unreadable, or a code of `Media`.
    """
    found = source.stat()
    of = f"{source.absolute()} {found.st_size} {found.st_mtime_ns}"
    mark = sha256(of.encode(errors="surrogateescape")).hexdigest()
    with suppress(sf.LibsndfileError), sf.SoundFile(target) as copy:  # where there is one
        if copy.comment == mark:
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    write = _write if needs_ffmpeg(source) else _write_measured
    write_atomically(target, lambda temporary: write(source, temporary, mark))


def _write_measured(source: Path, target: Path, mark: str) -> None:
    """Write what libsndfile decodes of a file from its start to its end."""
    try:
        rate = sf.info(str(source)).samplerate
    except sf.LibsndfileError as error:
        what = f"{source}: cannot be read as audio ({error}): copy it again"
        raise AudioError(what, "unreadable") from error
    recording = Recording(source, rate)
    with sf.SoundFile(target, "w", rate, 1, "PCM_16", format="FLAC") as sound:
        sound.comment = mark
        for block_N in recording:
            sound.write(block_N)
    if recording.warnings:
        raise AudioError(f"{recording.warnings[0]}: copy it again", "truncated")


def _write(source: Path, target: Path, mark: str) -> None:
    with open_regular(source) as file, ExitStack() as opened:
        media, sound = Media(file, media_format(file, 0) or "", str(source)), None
        for rate, block_NC in media:
            if not rate:
                continue
            if sound is None:
                made = sf.SoundFile(target, "w", rate, 1, "PCM_16", format="FLAC")
                sound = opened.enter_context(made)
                sound.comment = mark
            _check(source, block_NC, rate, sound.samplerate)
            sound.write(block_NC.mean(axis=1))
        seconds = sound.frames / sound.samplerate if sound else 0.0
    if not seconds:
        raise AudioError(f"{source}: holds no samples: remove it", "no_samples")
    if media.n_damaged or media.has_gaps(seconds) or media.announces_more(seconds):
        raise AudioError(
            f"{source}: is damaged, has a gap, or is truncated after {seconds:.2f} seconds or "
            "before: copy it again",
            "truncated",
        )


def _check(source: Path, block_NC: np.ndarray, rate: int, first_rate: int) -> None:
    """Raise AudioError for samples that a FLAC cannot hold."""
    if rate != first_rate:
        raise AudioError(
            f"{source}: changes from {first_rate} to {rate} Hz: convert it to one rate", "two_rates"
        )
    if not np.isfinite(block_NC).all():
        raise AudioError(f"{source}: holds samples that are NaN or infinite", "not_finite")
