"""A folder by URL in which a file is created once, whoever else tries."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, cast

from asr.errors import ConfigError
from asr.runtime.files import temporary_beside
from asr.runtime.storage import file_system, patiently

# Kinds of storage that can write an object on the condition that there is none.
_CREATES = {"s3", "s3a", "gs", "gcs", "memory", "file", "local"}


class Folder:
    """A folder by URL as a store of objects that are created once (see `transcription.leases`)."""

    def __init__(self, url: str) -> None:
        """Raise ConfigError for storage that cannot create an object only once."""
        if (protocol := url.partition("://")[0]) not in _CREATES:
            raise ConfigError(
                f"{url}: {protocol}:// cannot write a file on the condition that there is none: "
                "give s3://, gs:// or file://"
            )
        self.system, self.path = file_system(url)
        self._is_local = protocol in ("file", "local")

    def create(self, name: str, content: bytes) -> bool:
        """Write a file whole unless there is one; return whether this call has written it."""
        attempts = []

        def write() -> bool:
            attempts.append(name)
            try:
                self._create(name, content)
            except FileExistsError:
                # An attempt may have succeeded though its answer was lost.
                return len(attempts) > 1 and self.read(name) == content
            return True

        return patiently(write)

    def _create(self, name: str, content: bytes) -> None:
        if self._is_local:
            path = Path(self.path, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = temporary_beside(path)
            try:
                temporary.write_bytes(content)
                path.hardlink_to(temporary)  # one of several succeeds, on NFS too
            finally:
                temporary.unlink(missing_ok=True)
        else:
            self.system.pipe_file(f"{self.path}/{name}", content, mode="create")

    def replace(self, name: str, content: bytes) -> None:
        """Write a file whole in the place of an older one."""
        if self._is_local:
            temporary = temporary_beside(path := Path(self.path, name))
            try:
                temporary.write_bytes(content)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        else:
            patiently(lambda: self.system.pipe_file(f"{self.path}/{name}", content))

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        with suppress(FileNotFoundError):
            patiently(lambda: self.system.rm_file(f"{self.path}/{name}"))

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises OSError if there is none."""
        return patiently(lambda: cast(bytes, self.system.cat_file(f"{self.path}/{name}")))

    def exists(self, name: str) -> bool:
        """Tell whether there is a file."""
        try:
            patiently(lambda: self.system.info(f"{self.path}/{name}"))
        except FileNotFoundError:
            return False
        return True

    def folders(self, folder: str) -> Sequence[str]:
        """Return the names of the folders in a folder."""
        try:
            found = patiently(lambda: self.system.ls(f"{self.path}/{folder}", detail=True))
        except FileNotFoundError:
            return []
        kept = (each["name"] for each in found if each["type"] == "directory")
        return sorted(PurePosixPath(name).name for name in kept)

    def list(self, folder: str) -> Mapping[str, dict[str, Any]]:
        """Return what is known of each file of a folder, by name."""
        try:
            found = patiently(lambda: self.system.ls(f"{self.path}/{folder}", detail=True))
        except FileNotFoundError:
            return {}
        return {PurePosixPath(each["name"]).name: each for each in found if each["type"] == "file"}


def version(about: Mapping[str, Any]) -> str:
    """Return a version, which changes with a file's content, from what a listing says of it."""
    keys = ("ETag", "etag", "generation", "mtime", "ino", "created", "size")
    return " ".join(str(about[key]) for key in keys if key in about)


def modified(about: Mapping[str, Any]) -> float:
    """Return when a file was written, in seconds of the storage's clock; 0 if it does not say."""
    found = about.get("LastModified") or about.get("updated") or about.get("mtime")
    found = found or about.get("created") or 0.0
    if isinstance(found, str):
        found = datetime.fromisoformat(found)
    return float(found) if isinstance(found, int | float) else float(found.timestamp())
