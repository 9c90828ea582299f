"""Cuts from the lines of a manifest, by a stranger maybe: reading one runs and fetches nothing.

lhotse starts a shell for sources of type `command` and for paths that begin with `pipe:`, and it
fetches addresses. A transform with a recording of its own (an impulse response) would read that
recording's sources.
"""

import gzip
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from lhotse import Recording
from lhotse.cut import Cut, MixedCut
from lhotse.cut.data import DataCut
from lhotse.serialization import decode_json_line, deserialize_item

from asr.runtime.files import open_regular
from asr.schema import check_local

_LINE = 1 << 26  # bytes; recordings may be inside
# The only sources and transforms that a manifest may name; in shards, `shar` stands for a
# recording beside it.
_SOURCES = {"file", "memory", "shar"}
_RATES = range(1_000, 384_001)  # resampling from a lower one makes any recording large
_MOST_TERMS = 1 << 12
_TRANSFORMS = {"Speed", "Tempo", "Resample", "Volume", "Narrowband", "Clipping"}


def read_cuts(manifest: Path) -> Iterator[Cut]:
    """Yield the cuts of a file of JSON lines, gzipped or not.

    Many types of exceptions mean that a line is wrong; TypeError, that it could run a command.
    """
    return map(parse_line, read_lines(manifest))


def read_lines(manifest: Path) -> Iterator[bytes]:
    """Yield the lines of a manifest. Raises OSError or ValueError for what has no end."""
    with ExitStack() as opened:
        file: BinaryIO | gzip.GzipFile = opened.enter_context(open_regular(manifest))
        if manifest.suffix == ".gz":
            file = opened.enter_context(gzip.GzipFile(fileobj=file))
        while line := file.readline(_LINE):
            if len(line) == _LINE:
                raise ValueError(f"a line has {_LINE:,} bytes or more")
            yield line


def parse_line(line: bytes) -> Cut:
    """Return the cut of a line; see `read_cuts`."""
    cut = deserialize_item(decode_json_line(line.decode("utf-8")))
    if not isinstance(cut, Cut):
        raise TypeError("its items are not cuts")
    for recording in _recordings(cut):
        _check_sources(cut.id, recording)
        if recording.sampling_rate not in _RATES:
            raise ValueError(f"{cut.id}: its recording has {recording.sampling_rate} Hz")
        check_transforms(cut.id, recording.transforms)
        _check_resampling(cut.id, recording)
    check_transforms(cut.id, cut.transforms if isinstance(cut, MixedCut) else None)
    _check_values(cut)
    return cut


def _check_values(cut: Cut) -> None:
    """Raise an exception of some type where a value is of another than its key's."""
    texts = [said.text or "" for said in cut.supervisions]
    if not all(isinstance(text, str) for text in (cut.id, *texts)):
        raise TypeError("an id or a text is not a string")
    if not 0 < float(cut.duration) < math.inf:
        raise ValueError(f"{cut.id}: lasts {cut.duration} seconds")


def _recordings(cut: Cut) -> list[Recording]:
    """Return the recordings of a cut's parts."""
    parts = [track.cut for track in cut.tracks] if isinstance(cut, MixedCut) else [cut]
    return [p.recording for p in parts if isinstance(p, DataCut) and p.has_recording]


def _check_sources(cut_id: str, recording: Recording) -> None:
    for source in recording.sources:
        if source.type not in _SOURCES:
            raise TypeError(
                f"{cut_id}: a recording's source is a {source.type}, which is not run or fetched"
            )
        if source.type == "file":
            check_local(Path(source.source))


def _check_resampling(cut_id: str, recording: Recording) -> None:
    """Raise ValueError for a change of speed or rate that takes much memory.

    torchaudio's filter has as many taps as the reduced fraction of the rates has terms, squared.
    """
    for transform in recording.transforms or ():
        values = transform["kwargs"] if isinstance(transform, dict) else vars(transform)
        rate = recording.sampling_rate
        wanted = {round(rate * float(values.get("factor", 1)))}
        wanted |= {int(v) for key, v in values.items() if key.endswith("_sampling_rate")}
        for other in wanted:
            if max(rate, other) // math.gcd(rate, other) > _MOST_TERMS:
                raise ValueError(f"{cut_id}: is resampled from {rate} to {other} Hz")


def check_files(cut: Cut) -> None:
    """Raise ValueError if a recording is no regular file: another could have no end."""
    for recording in _recordings(cut):
        for source in recording.sources:
            path = Path(source.source) if source.type == "file" else None
            if path and path.exists() and not path.is_file():
                raise ValueError(f"{path} is not a regular file")


def check_transforms(cut_id: str, transforms: Sequence[object] | None) -> None:
    """Raise TypeError for a transform that could run a command or fetch a file."""
    names = {t["name"] if isinstance(t, dict) else type(t).__name__ for t in transforms or ()}
    if strange := names - _TRANSFORMS:
        raise TypeError(f"{cut_id}: the transform {strange.pop()} is not allowed")
