"""lhotse Shar: a corpus as shards, each a manifest and a tar file of recordings.

Manifests and the headers of tar files are read first. A recording is read only when it is used,
from its offset in the tar file. Nothing is unpacked, and nothing that is read can run code. Shards
by URL are read in the same way, without a copy on the disk.
"""

import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePath

from lhotse import AudioSource, CutSet, Recording
from lhotse.cut import Cut, MixedCut, PaddingCut
from lhotse.cut.data import DataCut
from lhotse.serialization import decode_json_line

from asr.data.cuts import read_cuts
from asr.data.places import beside, manifests_of, open_place, read_bytes_of
from asr.data.recordings import URL, check_recording
from asr.runtime.storage import is_url

_LINE = 1 << 20  # bytes of a recording's description
# The type of a source "tar file:offset:size", in bytes.
MEMBER = "tar_member"


def load_shar(folder: Path | str) -> CutSet:
    """Return the cuts of all shards. Raises ValueError if a manifest does not fit its tar file."""
    manifests = manifests_of(folder)
    return CutSet.from_cuts(cut for manifest in manifests for cut in _shard(manifest))


def by_shard(cuts: CutSet) -> dict[str, list[Cut]]:
    """Return the cuts by tar file; cuts of plain manifests form one shard, named ""."""
    shards: dict[str, list[Cut]] = {}
    for cut in cuts:
        is_data = isinstance(cut, DataCut) and cut.has_recording
        source = cut.recording.sources[0] if is_data else None
        name = _place(source)[0] if source and source.type == MEMBER else ""
        shards.setdefault(name, []).append(cut)
    return shards


def fetch(cut: Cut) -> Cut:
    """Return the cut with its recording's bytes if a shard or a URL has them, else the cut itself.

    Raises OSError, or AsrError where the storage does not answer.
    """
    if isinstance(cut, MixedCut):
        return replace(cut, tracks=[replace(t, cut=fetch(t.cut)) for t in cut.tracks])
    if isinstance(cut, PaddingCut):
        return replace(cut)  # drop what lhotse's sampler adds, which its resampling rejects
    if not isinstance(cut, DataCut) or not cut.has_recording:
        return cut
    if not any(source.type in (URL, MEMBER) for source in cut.recording.sources):
        return cut
    sources = [_fetched(source) for source in cut.recording.sources]
    return replace(cut, recording=replace(cut.recording, sources=sources))


def _fetched(source: AudioSource) -> AudioSource:
    if source.type == URL:
        return replace(source, type="memory", source=read_bytes_of(source.source))
    if source.type != MEMBER:
        return source
    path, offset, size = _place(source)
    if is_url(path):
        return replace(source, type="memory", source=read_bytes_of(path, offset, size))
    with Path(path).open("rb") as tar:
        tar.seek(offset)
        return replace(source, type="memory", source=tar.read(size))


def _shard(manifest: Path | str) -> Iterator[Cut]:
    path = beside(manifest, f"recording.{PurePath(manifest).name.split('.')[1]}.tar")
    with open_place(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for cut, (data, description) in zip(read_cuts(manifest), _pairs(tar), strict=True):
            if data.name.rpartition(".")[0] != cut.id:
                raise ValueError(f"{path} has {data.name}, expected cut {cut.id}")
            text = tar.extractfile(description)
            if text is not None and not description.name.endswith(".nometa"):
                recording = Recording.from_dict(decode_json_line(text.read(_LINE).decode("utf-8")))
                check_recording(cut.id, recording)
                member = f"{path}:{data.offset_data}:{data.size}"
                recording.sources = [AudioSource(MEMBER, recording.channel_ids, member)]
                cut.recording = recording
            yield cut


def _pairs(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarInfo]]:
    """Yield pairs of a recording's audio and its description, which follow each other in a tar."""
    members: Iterable[tarfile.TarInfo] = iter(tar)
    return zip(members, members, strict=True)


def _place(source: AudioSource) -> tuple[str, int, int]:
    path, offset, size = source.source.rsplit(":", 2)
    return path, int(offset), int(size)
