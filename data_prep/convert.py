"""Audio in formats that libsndfile does not read, through PyAV (FFmpeg), as FLAC."""

from pathlib import Path

import soundfile as sf

from asr.errors import AudioError, ConfigError
from asr.runtime.files import write_atomically

SUFFIXES = {".m4a", ".mp4", ".aac", ".webm", ".mkv", ".mov", ".3gp", ".amr", ".wma", ".ac3"}


def to_flac(source: Path, target: Path) -> None:
    """Write a recording's first audio stream as 16-bit mono FLAC at its own rate.

    An existing newer file is kept. Raises AudioError where it cannot be decoded, ConfigError where
    PyAV is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise ConfigError(
            f"{source}: is decoded by PyAV, which is not installed: pip install lrt-asr[media]"
        ) from error
    if target.is_file() and target.stat().st_mtime >= source.stat().st_mtime:
        return
    target.parent.mkdir(parents=True, exist_ok=True)

    def write(temporary: Path) -> None:
        with av.open(str(source.absolute()), metadata_errors="ignore") as container:
            stream = next(iter(container.streams.audio), None)
            if stream is None:
                raise AudioError(f"{source}: has no audio: give another file", "no_samples")
            rate = stream.codec_context.sample_rate
            resampler = av.AudioResampler("s16", "mono", rate)
            with sf.SoundFile(temporary, "w", rate, 1, "PCM_16", format="FLAC") as file:
                for frame in container.decode(stream):
                    for part in resampler.resample(frame):
                        file.write(part.to_ndarray()[0])

    try:
        write_atomically(target, write)
    except (av.FFmpegError, sf.LibsndfileError) as error:
        raise AudioError(
            f"{source}: cannot be decoded ({error}): export it again", "unreadable"
        ) from error
