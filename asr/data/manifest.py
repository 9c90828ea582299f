"""Read, check and filter manifests of utterances; read the waveform of a cut.

Legend: N samples.
"""

import contextlib
import errno
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import soxr
import torch
from lhotse import CutSet
from lhotse.audio.backend import LibsndfileBackend, audio_backend
from lhotse.cut import Cut
from lhotse.cut.data import DataCut
from torch import Tensor

from asr.data.cuts import check_files, origins, parse_line, read_cuts, read_lines
from asr.data.places import is_allowed, is_manifest
from asr.data.shar import fetch, load_shar
from asr.errors import AsrError, AudioError, DataError
from asr.normalization import normalize_text
from asr.schema import check_local
from asr.training_config import DataConfig

log = logging.getLogger(__name__)


def text_of(cut: Cut) -> str:
    """Return the transcript of a cut."""
    return " ".join(s.text for s in cut.supervisions if s.text)


def load_cuts(path: Path | str, allowed: Sequence[str] = ()) -> CutSet:
    """Return the cuts of a manifest by `asr prepare` or lhotse, or of a folder of lhotse Shar.

    `allowed` are prefixes of URLs that the user has named: the manifest and its recordings may be
    below them. Raises DataError if the manifest is missing, empty or invalid.
    """
    found, is_folder = _find(path, allowed)
    try:
        cuts = load_shar(found) if is_folder else CutSet.from_cuts(read_cuts(found, allowed))
    except AsrError:
        raise
    except Exception as error:  # lhotse raises many types on a broken file
        if isinstance(found, str) and isinstance(error, OSError) and error.errno == errno.EIO:
            raise DataError(f"{path}: {error.strerror}: try again when it does") from error
        if isinstance(found, str) and isinstance(error, FileNotFoundError) and not is_folder:
            raise DataError(f"{path}: there is no such manifest: check the URL") from error
        reason = " ".join(str(error).split()) or type(error).__name__
        broken = _broken_lines(found, allowed)
        raise DataError(
            f"{path}: is not a lhotse manifest of cuts ({broken}{reason:.300}): prepare it again"
        ) from error
    if not len(cuts) and (Path(path) / "train.jsonl.gz").is_file():
        raise DataError(
            f"{path}: is a folder of `asr prepare`: give one of its manifests, such as "
            f"{path}/test.jsonl.gz"
        )
    if not len(cuts):
        raise DataError(f"{path}: holds no utterances: prepare it again")
    if repeated := [key for key, n in Counter(cut.id for cut in cuts).items() if n > 1]:
        raise DataError(
            f"{path}: holds {len(repeated)} ids more than once, such as {repeated[0]}: prepare it "
            "again"
        )
    return cuts


def _find(path: Path | str, allowed: Sequence[str]) -> tuple[Path | str, bool]:
    """Return where a manifest is, and whether it is a folder of shards. Raises DataError."""
    if isinstance(path, str):
        url = path.rstrip("/")
        if is_allowed(f"{url}/", allowed):
            return url, not is_manifest(url)
        raise DataError(
            f"{path} is an address, which only `asr train` opens for the recipe that names it: "
            "give a manifest on a disk"
        )
    try:
        check_local(path)
    except ValueError as error:
        raise DataError(str(error)) from error
    if not path.exists():
        raise DataError(f"{path}: there is no such manifest: write it with `asr prepare`")
    # lhotse could take a relative path for a command or an address, so it sees none.
    return path.absolute(), path.is_dir()


def load_training_cuts(data: DataConfig, allowed: Sequence[str] = ()) -> CutSet:
    """Return the cuts of all training manifests of a recipe; for URLs see `load_cuts`.

    Manifests that were prepared separately may use the same ids. If an earlier manifest has an id,
    the later cut gets the number of its manifest before its id. If an earlier manifest has the same
    audio with another text, that text is used, with a warning. Raises DataError as `load_cuts`
    does, and if one utterance is in two manifests.
    """
    known: dict[str, Cut] = {}
    texts: dict[object, str] = {}
    for number, path in enumerate(data.train, 1):
        own, n_again = dict[object, str](), 0
        for cut in load_cuts(path, allowed):
            other = known.get(cut.id)
            if other and origins(other) & origins(cut):
                raise DataError(
                    f"data.train: {data.train_names} hold {cut.id} more than once: list each "
                    "utterance in one manifest"
                )
            if len(data.train) > 1:
                audio, text = _audio(cut), normalize_text(text_of(cut))
                if texts.get(audio, text) != text:
                    n_again += 1
                    continue
                own[audio] = text
            id = cut.id
            while id in known:
                id = f"{number}-{id}"
            known[id] = cut if id == cut.id else cut.with_id(id)
        texts |= own
        if n_again:
            log.warning("%s: %d utterances have another text in an earlier manifest, which is used",
                        path, n_again)  # fmt: skip
    return CutSet.from_cuts(known.values())


def _audio(cut: Cut) -> object:
    """Return a key that identifies the audio of a cut; that of a mix is its id and recordings."""
    if not isinstance(cut, DataCut):
        return cut.id, frozenset(origins(cut))
    changes = (repr(cut.recording.transforms), repr(cut.channel)) if cut.has_recording else ()
    return frozenset(origins(cut)), round(float(cut.duration), 3), *changes


def _broken_lines(path: Path | str, allowed: Sequence[str]) -> str:
    """Return which lines of a manifest are not cuts, the first five by number; empty if none."""
    broken = []
    with contextlib.suppress(OSError, EOFError, zlib.error, ValueError):
        for number, line in enumerate(read_lines(path), 1):
            try:
                parse_line(line, allowed)
            except Exception:  # as above
                broken.append(str(number))
    more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
    return f"at line {', '.join(broken[:5])}{more}: " if broken else ""


def read_wave(cut: Cut, sample_rate: int) -> Tensor:
    """Return the mono samples (N,) of a cut at a rate in Hz.

    Raises AudioError if the cut is unreadable, AsrError if the storage does not answer.
    """
    try:
        fetched = fetch(cut)
        check_files(fetched)
        # By default lhotse reads SPHERE files with a shell command, `sph2pipe`.
        with audio_backend(LibsndfileBackend):
            wave_CN = fetched.load_audio()
        if wave_CN is None:
            raise ValueError("there is none")
    except AsrError:  # the storage does not answer
        raise
    except Exception as error:  # lhotse's audio backends raise many types
        # After its first line, lhotse describes its objects.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise AudioError(
            f"{cut.id}: the recording cannot be read ({reason}): prepare the corpus again"
        ) from error
    wave_N = wave_CN.mean(0, dtype=np.float32)
    if cut.sampling_rate != sample_rate:
        wave_N = soxr.resample(wave_N, cut.sampling_rate, sample_rate)
    if not len(wave_N):
        raise AudioError(f"{cut.id}: holds no samples: prepare the corpus again", "empty_audio")
    if not np.isfinite(wave_N).all():
        raise AudioError(
            f"{cut.id}: the recording holds samples that are NaN or infinite: record it again",
            "non_finite_audio",
        )
    return torch.from_numpy(wave_N)


def is_usable(cut: Cut, config: DataConfig, normalize: Callable[[str], str]) -> bool:
    """Tell whether a cut is of usable length and has a text when normalized."""
    fits = config.min_seconds <= cut.duration <= config.max_seconds
    return fits and bool(normalize(text_of(cut)))


def filter_cuts(
    cuts: CutSet,
    config: DataConfig,
    source: Path | str,
    normalize: Callable[[str], str] = normalize_text,
) -> CutSet:
    """Return the cuts that are usable. Raises DataError if there are none."""
    kept = cuts.filter(lambda cut: is_usable(cut, config, normalize)).to_eager()
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
