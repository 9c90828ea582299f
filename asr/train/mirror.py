"""A run by URL: it trains in a local folder, and its states are copied to the storage.

`URL/training/objects/` has the files, each named by the hash of its content. The lists
`URL/training/00000001.json` and so on name the files of one state each. A list is created once,
when all of its files are there. So a killed upload leaves the state before. If two processes write
to one run, the one that was started later goes on. The bundle's files are also below `URL/`, under
their own names.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from asr.bundle import WEIGHTS
from asr.errors import AsrError, ConfigError
from asr.runtime.files import LOCK
from asr.runtime.storage import is_url
from asr.runtime.stores import Folder
from asr.train.checkpoints import LAST
from asr.train.distributed import rank, rank_zero_first

log = logging.getLogger(__name__)

_STATES, _OBJECTS = "training", "training/objects"
_LIST = re.compile(r"(\d{8})\.json")
_KEPT = 2  # states in the storage


@contextmanager
def run_folder(given: Path | str) -> Iterator[tuple[Path, Callable[[bool], None]]]:
    """Yield the folder of a run, and a function that copies its state to the storage of a URL.

    The function's argument tells whether a failure ends the run; otherwise the next state tries
    again. For a path the function does nothing. An AsrError names the URL in place of the folder.
    """
    if not is_url(str(given)):
        yield Path(given), lambda _: None
        return
    url = str(given).rstrip("/")
    with TemporaryDirectory(prefix="asr-") as root:
        folder = Path(root, PurePosixPath(url).name)
        try:
            mirror = Mirror(url, folder)
            rank_zero_first(lambda: None if rank() else mirror.load())
            yield folder, mirror.save
        except AsrError as error:
            error.args = (str(error).replace(str(folder), url),)
            raise


class Mirror:
    """The states of a run's folder in the storage; only rank 0 reads and writes them."""

    def __init__(self, url: str, folder: Path) -> None:
        """Raise ConfigError for storage that cannot create an object only once."""
        self.url, self.folder, self._store = url, folder, Folder(url)
        self._last = 0  # the number of the latest list
        self._stored: dict[str, str] = {}  # hashes by name, of the latest state
        self._published: dict[str, str] = {}  # those of the bundle's files that this process wrote

    def load(self) -> None:
        """Copy the latest whole state to the folder; do nothing where the URL is empty.

        Raises ConfigError where no state is whole, or where the URL holds a bundle or a run that
        was copied there; AsrError where the storage cannot be read.
        """
        try:
            lists = self._lists()
            if not lists and self._store.exists(f"{_STATES}/{LAST}"):
                raise ConfigError(
                    f"{self.url}: holds a run that was copied there: copy it to a folder, and give "
                    "that or another URL as --out"
                )
            if not lists and self._store.exists(WEIGHTS):
                raise ConfigError(
                    f"{self.url}: holds a bundle already: give another URL, or remove it"
                )
            if lists:
                self._load(lists)
        except OSError as error:
            raise self._failed(error, "read") from error

    def _load(self, lists: list[str]) -> None:
        """Copy the latest whole state, then remove the later ones, which are damaged."""
        for i in reversed(range(len(lists))):
            try:
                listed = json.loads(self._store.read(f"{_STATES}/{lists[i]}"))
                contents = {key: self._checked(digest) for key, digest in dict(listed).items()}
            except (ValueError, TypeError, FileNotFoundError) as error:
                log.warning("%s: state %s is damaged (%s)", self.url, lists[i], error)
                continue
            for key, content in contents.items():
                self._write(key, content)
            for damaged in lists[i + 1 :]:
                self._store.remove(f"{_STATES}/{damaged}")
            self._stored, self._last = listed, _number(lists[-1])
            return
        raise ConfigError(f"{self.url}: damaged, it cannot be continued: give another --out")

    def save(self, must: bool) -> None:
        """Copy the folder's state to the storage.

        Raises ConfigError where another process has continued the run. Where the storage fails,
        it raises AsrError if the state `must` be stored, and else only warns.
        """
        try:
            self._save()
        except OSError as error:
            failure = self._failed(error, "written")
            if must:
                raise failure from error
            log.warning("%s; the next state tries again", failure)

    def _save(self) -> None:
        stored: dict[str, str] = {}
        for path in sorted(self.folder.rglob("*")):
            if path.name == LOCK or path.name.startswith(".") or not path.is_file():
                continue
            content, name = path.read_bytes(), path.relative_to(self.folder).as_posix()
            stored[name] = hashlib.sha256(content).hexdigest()
            if stored[name] not in self._stored.values():
                self._store.create(f"{_OBJECTS}/{stored[name]}", content)
        name = f"{self._last + 1:08}.json"
        is_new = self._store.create(f"{_STATES}/{name}", _dump(stored))
        # The number may be free again where another process has removed old lists.
        if is_new and self._lists()[-1] != name:
            self._store.remove(f"{_STATES}/{name}")
            is_new = False
        if not is_new:
            raise ConfigError(
                f"{self.url}: another process has continued this run: let one of them work there"
            )
        self._stored, self._last = stored, self._last + 1
        bundle = {name: digest for name, digest in stored.items() if "/" not in name}
        for name in bundle.keys() - {k for k, v in bundle.items() if v == self._published.get(k)}:
            self._store.replace(name, (self.folder / name).read_bytes())
        self._published = bundle
        self._remove_old()

    def _remove_old(self) -> None:
        """Remove all lists but the latest two, then the files that neither of these names."""
        lists, needed = self._lists(), set[str]()
        for name in lists[-_KEPT:]:
            needed |= set(json.loads(self._store.read(f"{_STATES}/{name}")).values())
        for name in lists[:-_KEPT]:
            self._store.remove(f"{_STATES}/{name}")
        for digest in self._store.list(_OBJECTS).keys() - needed:
            self._store.remove(f"{_OBJECTS}/{digest}")

    def _lists(self) -> list[str]:
        return sorted(filter(_number, self._store.list(_STATES)))

    def _checked(self, digest: str) -> bytes:
        content = self._store.read(f"{_OBJECTS}/{digest}")
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{digest} has other content")
        return content

    def _write(self, name: str, content: bytes) -> None:
        below = PurePosixPath(name)
        if below.is_absolute() or ".." in below.parts:
            raise ConfigError(f"{self.url}: lists {name}, which leads out of the run's folder")
        path = self.folder / below
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def _failed(self, error: OSError, done: str) -> AsrError:
        reason = (error.strerror or str(error)).lower()
        return AsrError(f"{self.url}: cannot be {done} ({reason}): check the URL and the key")


def _number(name: str) -> int:
    """Return the number of a list, 0 for other files."""
    found = _LIST.fullmatch(name)
    return int(found[1]) if found else 0


def _dump(stored: dict[str, str]) -> bytes:
    return json.dumps(stored, indent=1).encode()
