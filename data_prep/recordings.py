"""Find the recordings below a folder as tables name them."""

import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePath

from asr.data.people import key_of_person
from asr.errors import DataError
from asr.runtime.storage import RemoteFile, find_remote
from asr.transcription.jobs import RARER, SUFFIXES, is_content
from data_prep.corpus_writer import REPORT


@dataclass(frozen=True)
class Whose:
    """Who is said to be recorded in a file; names are those of `key_of_person`.

    `people` are those of the whole table. `is_shared`: other people have a file of this name too,
    so it is in a folder of the `speakers`, or in no person's folder. `is_strict`: people's
    recordings are in their own folders, so speakers with a folder have no file in another person's.
    """

    speakers: frozenset[str]
    people: frozenset[str]
    is_shared: bool
    is_strict: bool


class Recordings:
    """The recordings below a folder, found as tables name them."""

    def __init__(self, root: Path | str, converted: Path) -> None:
        self.root = root
        self.exact: dict[str, Path | RemoteFile] = {}
        self.by_path: dict[str, set[Path | RemoteFile]] = defaultdict(set)
        self.by_name: dict[str, set[Path | RemoteFile]] = defaultdict(set)
        self.by_folder: dict[tuple[str, str], set[Path | RemoteFile]] = defaultdict(set)
        self.folders = set[str]()  # names by `key_of_person`
        self.within = dict(_recordings(root, converted))
        usual = {path.with_suffix("") for path in self.within.values() if _suffix(path) in SUFFIXES}
        for path, within in self.within.items():
            self.exact[within.as_posix()] = path
            short = within.with_suffix("")
            if short in usual and _suffix(within) not in SUFFIXES:
                short = within  # `x` is x.wav, not the x.sph beside it that x.wav was made of
            for similar in (within, short):
                self.by_path[key_of(str(similar))].add(path)
                self.by_name[key_of(similar.name)].add(path)
                for folder in within.parts[:-1]:
                    self.folders.add(key_of_person(folder))
                    self.by_folder[key_of_person(folder), key_of(similar.name)].add(path)

    def find(self, audio: str, beside: Path, whose: "Whose | None" = None) -> Path | RemoteFile:
        """Return the file that a table calls `audio`.

        A path may be absolute, or relative to this folder or to `beside`, the table's folder. It
        may lack the suffix. A name without a folder may be that of a file in any subfolder, where
        `whose` decides. Raises DataError if no file of the folder is found, or several are.
        """
        places = list(self._places(audio.replace("\\", "/"), beside))
        for place in places:
            if place in self.exact:
                return self.exact[place]
        for known in (self.by_path, self.by_name):
            for place in places:
                found: Set[Path | RemoteFile] = known.get(key_of(place), set())
                if whose and known is self.by_name and found:
                    found = self._of(whose, found, key_of(place))
                    if not found:
                        raise DataError(f"{audio} is in {self.root} in folders of other speakers")
                if one := self._one(found, audio):
                    return one
        inside = [Path(self.root, place) for place in places if not place.startswith("..")]
        if any(map(os.path.isfile, inside)):  # Path.is_file raises OSError for what is no name
            raise DataError(f"{audio} is in {self.root}, but has no suffix of a recording")
        raise DataError(f"{audio} is not in {self.root}")

    def completes(self, speakers: Set[str], audio: str) -> bool:
        """Tell whether a folder of a speaker has one of several files of that name."""
        name = key_of(audio)
        is_own = any((speaker, name) in self.by_folder for speaker in speakers)
        return is_own and len(self.by_name[name]) > 1

    def _of(
        self, whose: "Whose", found: Set[Path | RemoteFile], name: str
    ) -> Set[Path | RemoteFile]:
        """Return the files of a name in a folder of the speakers, or else in no person's folder."""
        own = set(chain(*(self.by_folder.get((one, name), ()) for one in whose.speakers)))
        if len(own) == 1:
            return own
        owners = {path: self._innermost(path, whose.people) for path in own or found}
        owned = whose.speakers if own else {None}
        free = {path for path, owner in owners.items() if owner in owned}
        is_own_alone = whose.is_strict and not whose.speakers.isdisjoint(self.folders)
        return free if free or own or whose.is_shared or is_own_alone else found

    def _innermost(self, path: Path | RemoteFile, people: Set[str]) -> str | None:
        """Return the person whose folder a file is in, if one is."""
        folders = map(key_of_person, reversed(self.within[path].parts[:-1]))
        return next((folder for folder in folders if folder in people), None)

    def at(self, place: str) -> Path | RemoteFile | None:
        """Return the recording at a path in the folder, with or without its suffix, if one is.

        Raises DataError if several are.
        """
        found = self.by_path.get(key_of(place), set())
        return self.exact.get(place) or self._one(found, place)

    def _one(self, found: Set[Path | RemoteFile], audio: str) -> Path | RemoteFile | None:
        if len(found) > 1:
            raise DataError(f"{audio} may be any of {len(found)} files in {self.root}")
        return next(iter(found), None)

    def _places(self, written: str, beside: Path) -> Iterator[str]:
        """Yield the paths in the folder that a path in the table may mean."""
        if isinstance(self.root, str):
            yield written.removeprefix(self.root.rstrip("/") + "/")
            return
        for base in (self.root, beside):
            path = base.absolute() / written
            yield os.path.relpath(path, self.root)
            with suppress(OSError, ValueError, RuntimeError):  # it may be no possible path
                yield os.path.relpath(path.resolve(), self.root.resolve())


def _recordings(root: Path | str, converted: Path) -> Iterator[tuple[Path | RemoteFile, PurePath]]:
    """Yield the recordings below a folder, without converted ones, and their paths in it."""
    if isinstance(root, str):
        try:
            found = find_remote(root, SUFFIXES | RARER)
            yield from ((file, path) for file, path in found if is_content(path))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DataError(
                f"{root}: cannot be listed ({reason}): check the URL and the key"
            ) from error
        return
    for path in files_below(root):
        is_own = _suffix(Path(path.stem)) in SUFFIXES | RARER and _is_copy(path, root, converted)
        is_recording = _suffix(path) in SUFFIXES | RARER and is_content(path)
        if is_recording and path.is_file() and not is_own:
            yield path, path.relative_to(root)


def files_below(root: Path) -> Iterator[Path]:
    """Yield the files below a folder; links to folders outside of it are followed, once each."""
    seen, top = set[str](), os.path.realpath(root)
    for folder, folders, names in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        is_inside = (
            Path(folder) != root and Path(folder).is_symlink() and Path(real).is_relative_to(top)
        )
        if is_inside or real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(folder, name) for name in names)


def _is_copy(path: Path, root: Path, converted: Path) -> bool:
    """Return whether a file such as take.m4a.flac was written by a preparation below the root."""
    return path.absolute().is_relative_to(converted.absolute()) or any(
        folder.name == converted.name and (folder.parent / REPORT).is_file()
        for folder in path.parents
        if folder != root and folder.is_relative_to(root)
    )


def _suffix(path: PurePath) -> str:
    return path.suffix.lower()


def key_of(name: str) -> str:
    """Return a name for comparison: accents and letter case may be written in several ways."""
    return unicodedata.normalize("NFC", name).casefold()
