"""Check recordings of a stranger's manifest: none runs a command, is fetched or fills memory.

lhotse starts a shell for sources of type `command` and for paths that begin with `pipe:`, and it
fetches addresses. A transform with a recording of its own (an impulse response) would read that
recording's sources.
"""

import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

import soundfile
from lhotse import AudioSource, Recording
from lhotse.augmentation import AudioTransform, Narrowband, Resample, Speed, Tempo

from asr.data.places import is_allowed

# The only sources and transforms that a manifest may name; in shards, `shar` stands for a
# recording beside it.
_SOURCES = {"file", "memory", "shar"}
_TRANSFORMS = {"Speed", "Tempo", "Resample", "Volume", "Narrowband", "Clipping"}
# A path that is a command, standard input or an address, or is inside a tar file, which lhotse
# would open itself.
NOT_A_FILE = re.compile(r"pipe:|-\Z|[A-Za-z][A-Za-z0-9+.-]*://|.*\.tar/", re.DOTALL)
URL = "url"  # the type of a source by URL, which `shar.fetch` reads
RATES = range(1_000, 384_001)  # resampling from a lower one makes any recording large
_NARROWBAND = 8000
_MOST_TERMS = 1 << 12
MOST_CHANNELS = 32
_MOST_TRANSFORMS = 64
_MOST_CHANGE = 10.0  # factor between lengths, by all transforms of a recording together


def check_recording(cut_id: str, recording: Recording, allowed: Sequence[str] = ()) -> None:
    """Check the description of a recording without reading its audio.

    `allowed` are the prefixes of URLs that may be read; a source below one gets the type `URL`.
    Raises TypeError for what could run a command or fetch a file, ValueError for absurd values.
    """
    if len(recording.sources) > MOST_CHANNELS:
        raise ValueError(f"{cut_id}: its recording has {len(recording.sources)} sources")
    for source in recording.sources:
        if source.type in (URL, "file") and is_allowed(str(source.source), allowed):
            source.type = URL
        elif source.type not in _SOURCES:
            raise TypeError(
                f"{cut_id}: a recording's source is a {source.type}, which is not run or fetched"
            )
        elif source.type == "file" and NOT_A_FILE.match(source.source):
            raise TypeError(
                f"{cut_id}: {source.source} is a command, an address or inside a tar file, which "
                "is not run, fetched or opened: give a file's path"
            )
    if recording.sampling_rate not in RATES:
        raise ValueError(f"{cut_id}: its recording has {recording.sampling_rate} Hz")
    check_seconds(cut_id, recording.duration)
    check_transforms(cut_id, recording.transforms, recording.sampling_rate)


def check_seconds(cut_id: str, seconds: float) -> None:
    """Raise ValueError for a length that is not positive and finite."""
    if not 0 < float(seconds) < math.inf:
        raise ValueError(f"{cut_id}: lasts {seconds} seconds")


def check_transforms(
    cut_id: str, transforms: Sequence[AudioTransform] | None, sampling_rate: int
) -> None:
    """Check the transforms of audio whose final rate is `sampling_rate` in Hz.

    Raises TypeError for a transform that could run a command or fetch a file. Raises ValueError if
    the rates do not fit each other or a change takes much memory: the taps of torchaudio's filter
    grow with the square of the terms in the reduced fraction of the rates.
    """
    transforms, change = transforms or (), 1.0
    if strange := {type(one).__name__ for one in transforms} - _TRANSFORMS:
        raise TypeError(f"{cut_id}: the transform {strange.pop()} is not allowed")
    if len(transforms) > _MOST_TRANSFORMS:
        raise ValueError(f"{cut_id}: has {len(transforms)} transforms")
    rate = _first_rate(transforms, sampling_rate)
    for one in transforms:
        change *= _factor(one)
        if not 1 / _MOST_CHANGE <= change <= _MOST_CHANGE:
            raise ValueError(f"{cut_id}: its speed is changed by a factor of {change}")
        if isinstance(one, Speed):
            # lhotse gives every transform the final rate, whatever the rate is at this point.
            _check_pair(cut_id, round(sampling_rate * one.factor), sampling_rate)
        elif isinstance(one, (Resample, Narrowband)):
            if one.source_sampling_rate != rate:
                raise ValueError(
                    f"{cut_id}: is resampled from {one.source_sampling_rate} Hz where it has {rate}"
                )
            rate = _rate_after(one)
            pair = rate if isinstance(one, Resample) else _NARROWBAND
            _check_pair(cut_id, one.source_sampling_rate, pair)
    if rate != sampling_rate:
        raise ValueError(f"{cut_id}: is resampled to {rate} Hz, not to its {sampling_rate}")


def _check_pair(cut_id: str, rate: int, other: int) -> None:
    if rate not in RATES or other not in RATES:
        raise ValueError(f"{cut_id}: is resampled from {rate} to {other} Hz")
    if max(rate, other) // math.gcd(rate, other) > _MOST_TERMS:
        raise ValueError(f"{cut_id}: is resampled from {rate} to {other} Hz")


def _rate_after(one: Resample | Narrowband) -> int:
    if isinstance(one, Resample):
        return int(one.target_sampling_rate)
    return int(one.source_sampling_rate) if one.restore_orig_sr else _NARROWBAND


def _first_rate(transforms: Sequence[AudioTransform], sampling_rate: int) -> int:
    """Return the rate in Hz of the audio before the transforms."""
    sources = (t.source_sampling_rate for t in transforms if isinstance(t, (Resample, Narrowband)))
    return next(sources, sampling_rate)


def _factor(one: AudioTransform) -> float:
    return float(one.factor) if isinstance(one, (Speed, Tempo)) else 1.0


def check_audio(recording: Recording) -> None:
    """Raise an exception if a source is no plain file or holds other audio than described.

    Other audio has another rate, too many channels or many more samples, all of which lhotse would
    decode. A few more samples are accepted, because the lengths of some formats are estimates.
    """
    transforms = recording.transforms or ()
    rate = _first_rate(transforms, recording.sampling_rate)
    seconds = recording.duration * math.prod(map(_factor, transforms))
    for source in recording.sources:
        name, info = _header(source)
        if info.samplerate != rate:
            raise ValueError(f"{name} has {info.samplerate} Hz, its manifest says {rate}")
        if info.frames > (1.1 * seconds + 1) * rate:
            raise ValueError(
                f"{name} has {info.frames:,} samples, its manifest says {round(seconds * rate):,}"
            )
        if info.channels > MOST_CHANNELS:
            raise ValueError(f"{name} has {info.channels} channels")


def _header(source: AudioSource) -> tuple[str, "soundfile._SoundFileInfo"]:
    if source.type == "memory":
        return "the recording", soundfile.info(io.BytesIO(source.source))
    path = Path(source.source)
    if path.exists() and not path.is_file():  # a device or a pipe could have no end
        raise ValueError(f"{path} is not a regular file")
    return str(path), soundfile.info(path)
