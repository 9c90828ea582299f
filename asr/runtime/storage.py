"""Files and folders by URL (s3://, gs://, file://, memory://), by fsspec.

Only URLs that the user gives on the command line or in a recipe come here, and URLs in manifests
below what the recipe names (`data.places`). Paths in bundles and requests are never taken for URLs.
Credentials are those of the environment.
"""

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, TypeVar, cast

from asr.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")

_CLOUD = "the extra 'cloud': pip install 'lrt-asr[cloud]'"
_PACKAGES = {"s3": _CLOUD, "s3a": _CLOUD, "gs": "pip install gcsfs", "gcs": "pip install gcsfs"}
_URL = re.compile(r"([a-z][a-z0-9+.-]+)://(.*)", re.DOTALL)
_ATTEMPTS, _PAUSE = 6, 0.25  # of a request, and seconds before the second, doubled each time
SMALL_BYTES = 1 << 20  # a file up to this is one request
_CONNECTIONS = 64  # at a time, of a process to S3, whose client has 10 by default
_LASTING = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError)


def is_url(text: str) -> bool:
    """Tell whether an argument names a place by URL."""
    return _URL.match(text) is not None


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Raises ConfigError where a package for it is missing, or it is of no known kind.
    """
    found = _URL.match(url)
    assert found, url
    protocol = found[1]
    try:
        system = _file_system(protocol, os.getpid())
        return system, str(system._strip_protocol(url)).rstrip("/")
    except ImportError as error:
        needs = _PACKAGES.get(protocol, f"a further package ({error})")
        raise ConfigError(f"{url}: {protocol}:// needs {needs}") from error
    except (ValueError, OSError) as error:
        raise ConfigError(f"{url}: {error}: give s3://, gs:// or file://") from error


@cache
def _file_system(protocol: str, _process: int) -> Any:
    """Return the file system, another one in each forked process: connections are not shared."""
    import fsspec  # type: ignore[import-untyped]

    pool = {"config_kwargs": {"max_pool_connections": _CONNECTIONS}}
    options = pool if protocol in ("s3", "s3a") else {}
    return fsspec.filesystem(protocol, use_listings_cache=False, **options)


def patiently(request: Callable[[], T]) -> T:
    """Return the answer to a request, which is repeated where the connection fails.

    Raises OSError if the request keeps failing, or at once for an answer that will not change, such
    as FileNotFoundError.
    """
    pause = _PAUSE
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return request()
        except _LASTING:
            raise
        except Exception as error:  # each file system has its own
            reason = " ".join(str(error).split()) or type(error).__name__
            if attempt == _ATTEMPTS:
                raise OSError(errno.EIO, f"the storage does not answer ({reason:.300})") from error
            log.debug("%s; again in %g s", reason, pause)
        time.sleep(pause)
        pause *= 2
    raise AssertionError


class _Stream:
    """An open file that remembers why it could not be read: decoders in C forget it."""

    def __init__(self, file: Any) -> None:
        self._file, self.failure = file, cast(OSError | None, None)

    def read(self, n_bytes: int = -1) -> bytes:
        """Return the next bytes, none after a failure."""
        if self.failure:
            return b""
        at = self._file.tell()

        def read() -> bytes:
            self._file.seek(at)
            return cast(bytes, self._file.read(n_bytes))

        try:
            return patiently(read)
        except OSError as error:
            self.failure = error
            return b""

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a position in bytes; return it."""
        return cast(int, self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the position in bytes."""
        return cast(int, self._file.tell())


@dataclass(frozen=True)
class RemoteFile:
    """A file by URL, with its size in bytes, 0 where it is not known."""

    url: str
    size: int

    def __str__(self) -> str:
        return self.url

    @property
    def suffix(self) -> str:
        """Return the suffix of its name, with the dot."""
        return PurePosixPath(self.url).suffix

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file for reading as it arrives, with a few blocks in memory.

        A small file is one request. Raises OSError, also at the end where a part of the file could
        not be read.
        """
        system, path = file_system(self.url)
        if 0 < self.size <= SMALL_BYTES:
            yield BytesIO(patiently(lambda: system.cat_file(path, start=0, end=SMALL_BYTES)))
            return
        opened = patiently(
            lambda: system.open(path, "rb", block_size=SMALL_BYTES, cache_type="readahead")
        )
        with opened as file:
            stream = _Stream(file)
            try:
                yield cast(BinaryIO, stream)
            finally:
                if stream.failure:
                    raise stream.failure


def read_small(files: Sequence[RemoteFile], at_a_time: int) -> dict[RemoteFile, bytes]:
    """Return the content of small files of one storage, by `at_a_time` requests at a time.

    Files that are large or of unknown size, or could not be read at the first try, are left out.
    """
    small = [file for file in files if 0 < file.size <= SMALL_BYTES]
    if not small:
        return {}
    places = [file_system(file.url) for file in small]
    found = places[0][0].cat_ranges(
        [path for _, path in places], 0, SMALL_BYTES, batch_size=at_a_time, on_error="return"
    )
    pairs = zip(small, found, strict=True)
    return {file: content for file, content in pairs if isinstance(content, bytes)}


def find_remote(url: str, suffixes: set[str]) -> list[tuple[RemoteFile, PurePosixPath]]:
    """Return the files of a URL (a file, folder or glob), each with its path below the URL.

    A folder gives the files with one of the suffixes. Raises OSError where it cannot be listed.
    """
    system, path = file_system(url)
    if any(character in path for character in "*?["):
        found = patiently(lambda: system.glob(path, detail=True))
        fixed = re.split(r"[*?\[]", path, maxsplit=1)[0].rpartition("/")[0]
    else:
        found, fixed = patiently(lambda: system.find(path, detail=True)), path
        if set(found) != {path}:
            kept = {k: v for k, v in found.items() if PurePosixPath(k).suffix.lower() in suffixes}
            found = kept
    files = []
    for name, about in sorted(found.items()):
        if about["type"] == "file":
            below = PurePosixPath(name).relative_to(fixed) if name != fixed else None
            below = below or PurePosixPath(PurePosixPath(name).name)
            if ".." in below.parts:  # a key of S3 may hold anything
                log.warning("%s: is left out, for its name leads out of its folder", name)
                continue
            files.append((RemoteFile(system.unstrip_protocol(name), int(about["size"])), below))
    return files


@contextmanager
def local_copy(url: str, names: Callable[[Path], list[str]]) -> Iterator[Path]:
    """Yield a temporary folder with files of a remote folder, which are as small as a bundle.

    `names` returns the names to copy, given the folder as far as it is copied. It is asked again
    until it names no further files. Raises OSError where a file cannot be read. Files that are
    missing in the remote folder are left out.
    """
    system, path = file_system(url)
    with TemporaryDirectory(prefix="asr-") as root:
        folder = Path(root) / (PurePosixPath(path).name or "bundle")
        folder.mkdir()
        asked: set[str] = set()
        while todo := [name for name in names(folder) if name not in asked]:
            for name in todo:
                asked.add(name)
                _copy(system, f"{path}/{name}", folder / name)
        yield folder


def _copy(system: Any, source: str, target: Path) -> None:
    """Copy a file, or the files of a folder; none if there is none."""
    for name in patiently(lambda: system.find(source)):
        below = PurePosixPath(name).relative_to(source)
        if ".." in below.parts:
            continue
        path = target / below
        path.parent.mkdir(parents=True, exist_ok=True)
        patiently(lambda name=name, path=path: system.get_file(name, str(path)))  # type: ignore[misc]
