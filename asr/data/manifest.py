"""Manifests of utterances: read, checked and filtered; the waveform of a cut.

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

# What a manifest may ask for; whatever else lhotse knows could run a command.
_SOURCES = {"file", "memory", MEMBER}
_TRANSFORMS = {"Speed", "Tempo", "Resample", "Volume", "Narrowband", "Clipping"}


def text_of(cut: Cut) -> str:
    """The transcript of a cut."""
    return " ".join(s.text for s in cut.supervisions if s.text)


def load_cuts(path: Path) -> CutSet:
    """The cuts of a manifest that `asr prepare` or lhotse wrote, or of a folder of lhotse Shar.

    Raises DataError that names the manifest where it is missing, empty or not one.
    """
    if not path.exists():
        raise DataError(f"{path}: no such manifest: write it with `asr prepare`")
    try:
        cuts = load_shar(path) if path.is_dir() else CutSet.from_file(path).to_eager()
        if not all(isinstance(cut, Cut) for cut in cuts):
            raise TypeError("its items are no cuts")
        for cut in cuts:
            _check_plain(cut)
    except Exception as error:  # lhotse raises whatever a broken file makes it stumble over
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path}: not a lhotse manifest of cuts ({_broken_lines(path)}{reason:.300}): prepare "
            "it again"
        ) from error
    if not len(cuts):
        raise DataError(f"{path}: holds no utterance: prepare it again")
    twice = [key for key, count in Counter(cut.id for cut in cuts).items() if count > 1]
    if twice:
        raise DataError(
            f"{path}: holds {len(twice)} ids more than once, such as {twice[0]}: prepare it again"
        )
    return cuts


def _check_plain(cut: Cut) -> None:
    """Raises TypeError where to read a cut could run a command or fetch something.

    lhotse starts a shell for sources of type `command` and for URLs of `pipe:`, and a transform
    with a recording of its own (an impulse response) would read that one's sources too.
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
        raise TypeError(f"{cut.id}: the transform {strange.pop()} is not applied")


def _broken_lines(path: Path) -> str:
    """Which lines of a manifest are no cuts, the first of them by number; empty if none is."""
    broken = []
    opened = gzip.open if path.suffix == ".gz" else open
    with contextlib.suppress(OSError, EOFError, zlib.error), opened(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                good = isinstance(deserialize_item(json.loads(line)), Cut)
            except Exception:  # lhotse raises whatever a broken line makes it stumble over
                good = False
            if not good:
                broken.append(str(number))
    more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
    return f"at line {', '.join(broken[:5])}{more}: " if broken else ""


def read_wave(cut: Cut, sample_rate: int) -> Tensor:
    """The mono samples (N,) of a cut at a rate in Hz, of the cut's channels alone.

    Raises AudioError that names the cut.
    """
    try:
        # Left to choose, lhotse reads SPHERE files by a shell command of a program we do not need.
        with audio_backend(LibsndfileBackend):
            wave_N = torch.from_numpy(fetch(cut).resample(sample_rate).load_audio()).float().mean(0)
    except Exception as error:  # lhotse's audio backends raise whatever they like
        # What follows the first line is lhotse's account of its objects.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise AudioError(f"{cut.id}: the recording cannot be read ({reason})") from error
    if not wave_N.isfinite().all():
        raise AudioError(f"{cut.id}: the recording holds NaN or infinity", "non_finite_audio")
    return wave_N


def filter_cuts(cuts: CutSet, config: DataConfig, source: Path) -> CutSet:
    """The cuts of usable length that have a text. Raises DataError where none is left."""
    kept = cuts.filter(
        lambda c: config.min_seconds <= c.duration <= config.max_seconds and bool(text_of(c))
    ).to_eager()
    if dropped := len(cuts) - len(kept):
        log.warning(
            "%s: %d of %d utterances left out: no text, or not within %g to %g s",
            source, dropped, len(cuts), config.min_seconds, config.max_seconds,
        )  # fmt: skip
    if not len(kept):
        raise DataError(f"{source}: no utterance is left: check data.min_seconds and max_seconds")
    return kept
