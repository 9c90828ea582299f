"""Read the files of a corpus, which are on this machine or in storage by URL.

A manifest may come from a stranger. A URL in it is opened only below the prefixes that the recipe
names or beside the manifests that it names.
"""

import errno
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from asr.errors import AsrError
from asr.runtime.files import open_regular
from asr.runtime.storage import RemoteFile, file_system, find_remote, is_url, patiently

_MOST_BYTES = 1 << 30  # of a recording, which is read into memory


def is_allowed(url: str, allowed: Sequence[str]) -> bool:
    """Tell whether a URL is below one of the prefixes, each taken for a folder."""
    inside = is_url(url) and ".." not in url.split("/")
    return inside and any(url.startswith(prefix.rstrip("/") + "/") for prefix in allowed)


def allowed_by(places: Sequence[Path | str], prefixes: Sequence[str]) -> tuple[str, ...]:
    """Return the URL prefixes that manifests at these places may name: given ones, own folders."""
    urls = (place.rstrip("/") for place in places if isinstance(place, str))
    return (*prefixes, *(url.rpartition("/")[0] if is_manifest(url) else url for url in urls))


def is_manifest(url: str) -> bool:
    """Tell by its name whether a URL is that of a manifest, and not of a folder of shards."""
    return url.endswith((".jsonl", ".jsonl.gz"))


@contextmanager
def open_place(place: Path | str) -> Iterator[BinaryIO]:
    """Open a file for reading; a file by URL is read as it arrives. Raises OSError."""
    if isinstance(place, Path):
        with open_regular(place) as file:
            yield file
    else:
        with RemoteFile(place, 0).open() as stream, io.BufferedReader(_Raw(stream)) as buffered:
            yield cast(BinaryIO, buffered)


class _Raw(io.RawIOBase):
    """A stream with the methods that `io.BufferedReader` needs."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def manifests_of(folder: Path | str) -> list[Path | str]:
    """Return the manifests of a folder of shards in order."""
    if isinstance(folder, Path):
        return sorted(folder.glob("cuts.*.jsonl*"))
    found = find_remote(f"{folder}/cuts.*.jsonl*", set())
    return [f"{folder}/{PurePosixPath(file.url).name}" for file, _ in found]


def beside(place: Path | str, name: str) -> Path | str:
    """Return the file of another name in the same folder."""
    if isinstance(place, Path):
        return place.with_name(name)
    return f"{place.rpartition('/')[0]}/{name}"


def _range(system: Any, path: str, start: int, end: int) -> bytes:
    """Return a part of a file; empty where it would begin at the end, which S3 refuses."""
    try:
        return cast(bytes, system.cat_file(path, start=start, end=end))
    except OSError as error:
        if error.errno == errno.EINVAL and system.info(path)["size"] <= start:
            return b""
        raise


def read_bytes_of(url: str, offset: int = 0, size: int = _MOST_BYTES + 1) -> bytes:
    """Return `size` bytes from an offset of a file by URL, or fewer where the file ends.

    Raises ValueError for more bytes than a recording may have. Raises AsrError if the storage does
    not answer: the recording is not broken then, and the run must not go on without it.
    """
    system, path = file_system(url)
    try:
        end = offset + min(size, _MOST_BYTES + 1)
        found = patiently(lambda: _range(system, path, offset, end))
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise AsrError(f"{url}: {error.strerror}: continue with --resume when it does") from error
    if len(found) > _MOST_BYTES:
        raise ValueError(f"{url} has more than {_MOST_BYTES:,} bytes")
    return found
