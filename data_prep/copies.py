"""Copy the recordings of a corpus that libsndfile does not read, as FLAC beside its cuts."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import cast

import soundfile as sf
from rich.console import Console
from rich.progress import track

from asr.audio.media import is_installed
from asr.errors import AudioError, ConfigError, NotWrittenError
from asr.runtime.files import remove_stale
from asr.runtime.storage import RemoteFile
from asr.runtime.threads import usable_cpus
from data_prep.convert import copy_name, needs_conversion, needs_ffmpeg, to_flac
from data_prep.corpus_writer import LeftOut, say_left_out
from data_prep.splits import Splits


def converted(
    splits: Splits, root: Path | str, copies: Path | None, left_out: list[LeftOut],
    jobs: int | None,
) -> Splits:  # fmt: skip
    """Return the splits that are not empty, with FLAC copies of files that libsndfile cannot read.

    The copies are written to `copies`, in the subfolders that the files have below `root`.
    Recordings by URL stay as they are. Utterances without a usable copy are added to `left_out`.
    Raises ConfigError where PyAV is needed and not installed, or there is no folder for copies;
    DataError where a copy cannot be written.
    """
    paths = list(dict.fromkeys(one.path for one in chain(*splits.values())))
    here = [path for path in paths if isinstance(path, Path) and isinstance(root, Path)]
    foreign = [path for path in here if needs_conversion(path)]
    found: dict[Path | RemoteFile, Path | AudioError] = {}
    if foreign:
        _check_convertible(foreign, copies)
        assert copies and isinstance(root, Path)
        copy_of = {
            path: copies / path.parent.relative_to(root) / copy_name(path.name) for path in foreign
        }
        for folder in {copy.parent for copy in copy_of.values()}:
            remove_stale(folder)
        with ThreadPoolExecutor(jobs or usable_cpus()) as pool:
            converted = pool.map(_convert, foreign, copy_of.values())
            made = zip(foreign, converted, strict=True)
            bar = Console(stderr=True)
            found = dict(track(made, "converting", len(foreign), console=bar))
    say_left_out([str(error) for error in found.values() if isinstance(error, AudioError)])
    usable: Splits = {split: [] for split, utterances in splits.items() if utterances}
    for split in usable:
        for one in splits[split]:
            copy = found.get(one.path)
            if isinstance(copy, AudioError):
                left_out.append(LeftOut(one.id, split, str(one.path), copy.code))
            elif copy and one.channel is not None:  # a copy is a mix of all channels
                left_out.append(LeftOut(one.id, split, str(one.path), "missing_channel"))
            elif copy:
                source = cast(Path, one.path)
                usable[split].append(replace(one, path=copy, converted_from=source))
            else:
                usable[split].append(one)
    return usable


def _check_convertible(foreign: Sequence[Path], copies: Path | None) -> None:
    """Raise ConfigError where recordings cannot be converted."""
    by_ffmpeg = [path for path in foreign if needs_ffmpeg(path)]
    if by_ffmpeg and not is_installed():
        raise ConfigError(
            f"{by_ffmpeg[0]}: is one of {len(by_ffmpeg)} recordings that PyAV decodes, which is "
            "not installed: pip install 'lrt-asr[media]'"
        )
    if copies is None:
        raise ConfigError(
            f"{foreign[0]}: is one of {len(foreign)} recordings that must be converted, and the "
            "copies need a folder: give one as OUT_DIR in place of a URL"
        )


def _convert(path: Path, flac: Path) -> Path | AudioError:
    """Write a recording as FLAC; return the copy, or why there is none."""
    try:
        to_flac(path, flac)
    except AudioError as error:
        return error
    except (OSError, sf.LibsndfileError) as error:
        raise NotWrittenError(
            f"{flac}: cannot be written ({error}): free some space or choose another folder"
        ) from error
    return flac
