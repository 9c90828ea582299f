"""lhotse Shar: a corpus as shards, each a manifest and a tar file of recordings.

The manifests are read whole, the tar files' headers too; a recording is read when its turn comes,
from its place in its tar file. Nothing is unpacked, and nothing read here can run code.
"""

import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from lhotse import AudioSource, CutSet, Recording
from lhotse.cut import Cut, MixedCut, PaddingCut
from lhotse.cut.data import DataCut
from lhotse.serialization import decode_json_line

# The type of a source that is "tar file:offset:size", in bytes.
MEMBER = "tar_member"


def load_shar(folder: Path) -> CutSet:
    """The cuts of all shards. Raises ValueError that names what does not fit together."""
    manifests = sorted(folder.glob("cuts.*.jsonl*"))
    return CutSet.from_cuts(cut for manifest in manifests for cut in _shard(manifest))


def by_shard(cuts: CutSet) -> dict[str, list[Cut]]:
    """The cuts of each tar file; those of plain manifests are all of one nameless shard."""
    shards: dict[str, list[Cut]] = {}
    for cut in cuts:
        member = _member(cut)
        shards.setdefault(member[0] if member else "", []).append(cut)
    return shards


def fetch(cut: Cut) -> Cut:
    """The cut with its recording's bytes where a shard holds them; others as they are."""
    if isinstance(cut, MixedCut):
        return replace(cut, tracks=[replace(t, cut=fetch(t.cut)) for t in cut.tracks])
    if isinstance(cut, PaddingCut):
        return replace(cut)  # without what lhotse's sampler noted on it and its resampling refuses
    member = _member(cut)
    if member is None:
        return cut
    path, offset, size = member
    with Path(path).open("rb") as tar:
        tar.seek(offset)
        data = tar.read(size)
    source = replace(cut.recording.sources[0], type="memory", source=data)
    return replace(cut, recording=replace(cut.recording, sources=[source]))


def _shard(manifest: Path) -> Iterator[Cut]:
    path = manifest.with_name(f"recording.{manifest.name.split('.')[1]}.tar")
    with tarfile.open(path, "r:") as tar:
        cuts = CutSet.from_file(manifest)
        for cut, (data, about) in zip(cuts, _pairs(tar), strict=True):
            if data.name.rpartition(".")[0] != cut.id:
                raise ValueError(f"{path} has {data.name} in the place of cut {cut.id}")
            text = tar.extractfile(about)
            if text is not None and not about.name.endswith(".nometa"):
                cut.recording = _recording(text.read(), f"{path}:{data.offset_data}:{data.size}")
            yield cut


def _pairs(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarInfo]]:
    """Audio and its description, which follow each other."""
    members: Iterable[tarfile.TarInfo] = iter(tar)
    return zip(members, members, strict=True)


def _recording(description: bytes, place: str) -> Recording:
    recording = Recording.from_dict(decode_json_line(description.decode("utf-8")))
    recording.sources = [AudioSource(MEMBER, recording.channel_ids, place)]
    return recording


def _member(cut: Cut) -> tuple[str, int, int] | None:
    if not isinstance(cut, DataCut) or not cut.has_recording:
        return None
    source = cut.recording.sources[0]
    if source.type != MEMBER:
        return None
    path, offset, size = source.source.rsplit(":", 2)
    return path, int(offset), int(size)
