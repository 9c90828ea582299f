"""Read, check and filter manifests of utterances; read the waveform of a cut.

Legend: N samples.
"""

import contextlib
import gzip
import json
import logging
import zlib
from collections import Counter
from pathlib import Path

import torch
from lhotse import CutSet
from lhotse.audio.backend import LibsndfileBackend, audio_backend
from lhotse.cut import Cut, MixedCut
from lhotse.cut.data import DataCut
from lhotse.serialization import deserialize_item
from torch import Tensor

from asr.config import DataConfig
from asr.data.shar import MEMBER, fetch, load_shar
from asr.errors import AudioError, DataError

log = logging.getLogger(__name__)

# The only sources and transforms that a manifest may name; others of lhotse's could run a command.
_SOURCES = {"file", "memory", MEMBER}
_TRANSFORMS = {"Speed", "Tempo", "Resample", "Volume", "Narrowband", "Clipping"}


def text_of(cut: Cut) -> str:
    """Return the transcript of a cut."""
    return " ".join(s.text for s in cut.supervisions if s.text)


def load_cuts(path: Path) -> CutSet:
    """Return the cuts of a manifest by `asr prepare` or lhotse, or of a folder of lhotse Shar.

    Raises DataError if the manifest is missing, empty or invalid.
    """
    if not path.exists():
        raise DataError(f"{path}: there is no such manifest: write it with `asr prepare`")
    try:
        cuts = load_shar(path) if path.is_dir() else CutSet.from_file(path).to_eager()
        if not all(isinstance(cut, Cut) for cut in cuts):
            raise TypeError("its items are not cuts")
        for cut in cuts:
            _check_plain(cut)
    except Exception as error:  # lhotse raises many types on a broken file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path}: is not a lhotse manifest of cuts ({_broken_lines(path)}{reason:.300}): "
            "prepare it again"
        ) from error
    if not len(cuts):
        raise DataError(f"{path}: holds no utterances: prepare it again")
    if repeated := [key for key, n in Counter(cut.id for cut in cuts).items() if n > 1]:
        raise DataError(
            f"{path}: holds {len(repeated)} ids more than once, such as {repeated[0]}: prepare it "
            "again"
        )
    return cuts


def _check_plain(cut: Cut) -> None:
    """Raise TypeError if reading a cut could run a command or fetch a file.

    lhotse starts a shell for sources of type `command` and for URLs of `pipe:`, and a transform
    with its own recording (an impulse response) would read that recording's sources.
    """
    parts = [track.cut for track in cut.tracks] if isinstance(cut, MixedCut) else [cut]
    recordings = [p.recording for p in parts if isinstance(p, DataCut) and p.has_recording]
    transforms = [*(cut.transforms or ())] if isinstance(cut, MixedCut) else []
    for recording in recordings:
        transforms += recording.transforms or ()
        if strange := {source.type for source in recording.sources} - _SOURCES:
            raise TypeError(
                f"{cut.id}: a recording's source is a {strange.pop()}, which is not run or fetched"
            )
    names = {t["name"] if isinstance(t, dict) else type(t).__name__ for t in transforms}
    if strange := names - _TRANSFORMS:
        raise TypeError(f"{cut.id}: the transform {strange.pop()} is not allowed")


def _broken_lines(path: Path) -> str:
    """Return which lines of a manifest are not cuts, the first five by number; empty if none."""
    broken = []
    opened = gzip.open if path.suffix == ".gz" else open
    with contextlib.suppress(OSError, EOFError, zlib.error), opened(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                good = isinstance(deserialize_item(json.loads(line)), Cut)
            except Exception:  # as above
                good = False
            if not good:
                broken.append(str(number))
    more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
    return f"at line {', '.join(broken[:5])}{more}: " if broken else ""


def read_wave(cut: Cut, sample_rate: int) -> Tensor:
    """Return the mono samples (N,) of a cut at a rate in Hz; AudioError if it is unreadable."""
    try:
        # By default lhotse reads SPHERE files with a shell command, `sph2pipe`.
        with audio_backend(LibsndfileBackend):
            wave_CN = torch.from_numpy(fetch(cut).resample(sample_rate).load_audio())
    except Exception as error:  # lhotse's audio backends raise many types
        # After its first line, lhotse describes its objects.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise AudioError(
            f"{cut.id}: the recording cannot be read ({reason}): prepare the corpus again"
        ) from error
    wave_N = wave_CN.float().mean(0)
    if not wave_N.isfinite().all():
        raise AudioError(
            f"{cut.id}: the recording holds samples that are NaN or infinite: record it again",
            "non_finite_audio",
        )
    return wave_N


def filter_cuts(cuts: CutSet, config: DataConfig, source: Path) -> CutSet:
    """Return the cuts of usable length that have a text; DataError if there are none."""
    kept = cuts.filter(
        lambda c: config.min_seconds <= c.duration <= config.max_seconds and bool(text_of(c))
    ).to_eager()
    if dropped := len(cuts) - len(kept):
        log.warning(
            "%s: %d of %d utterances are left out: no text, or not within %g to %g s",
            source, dropped, len(cuts), config.min_seconds, config.max_seconds,
        )  # fmt: skip
    if not len(kept):
        raise DataError(
            f"{source}: no utterance has a text and is within {config.min_seconds:g} to "
            f"{config.max_seconds:g} s: check data.min_seconds and data.max_seconds"
        )
    return kept
