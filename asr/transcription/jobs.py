"""The recordings of a job, and the files for their transcripts."""

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path, PurePath, PurePosixPath
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO

from asr.errors import AsrError, AudioError, ConfigError, DataError
from asr.runtime.files import open_regular, stdin_copy, write_text
from asr.runtime.storage import RemoteFile, find_remote, is_url

# Errors by which one file's name cannot be written; any other error ends the job.
_OF_NAME = {
    errno.EEXIST, errno.EILSEQ, errno.EINVAL, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR,
}  # fmt: skip
# What a process gets at a time: about ten minutes of speech as WAV, or so many files.
_SHARE_BYTES, _SHARE_FILES = 20e6, 64
_SHARES = 8  # of a small job, so that several processes have work
SUFFIXES = {
    ".3gp", ".aac", ".aif", ".aiff", ".amr", ".flac", ".m4a", ".mka", ".mkv", ".mov", ".mp3",
    ".mp4", ".oga", ".ogg", ".opus", ".wav", ".webm", ".wma",
}  # fmt: skip
RARER = {".aifc", ".au", ".m4b", ".mpeg", ".mpga", ".rf64", ".snd", ".sph", ".w64", ".wave"}
_SUFFIXES = ", ".join(sorted(SUFFIXES | RARER))

_Found = Sequence[tuple[Path | RemoteFile, PurePath]]


@dataclass(frozen=True)
class Task:
    """A recording, and the file for its transcript, if there is one."""

    recording: Path | RemoteFile
    out: Path | None
    is_stdin: bool = False

    @property
    def path(self) -> Path:
        """Return the recording's path, which is on this machine."""
        assert isinstance(self.recording, Path), "it is at a URL"
        return self.recording

    def named(self, warning: str) -> str:
        """Return a warning with the recording's name, unless it has it or is about hotwords."""
        name = "standard input" if self.is_stdin else str(self.recording)
        return warning if warning.startswith((name, "hotwords ")) else f"{name}: {warning}"

    @property
    def source(self) -> Path | RemoteFile | BinaryIO:
        """Return the recording's path, or standard input."""
        return stdin_copy() if self.is_stdin else self.recording

    def open(self) -> AbstractContextManager[BinaryIO]:
        """Open the recording for reading. Raises OSError if it is no plain file."""
        if isinstance(self.recording, RemoteFile):
            return self.recording.open()
        return nullcontext(stdin_copy()) if self.is_stdin else open_regular(self.recording)

    @property
    def is_done(self) -> bool:
        """Tell whether the transcript's file exists."""
        return self.out is not None and S_ISREG(_mode(self.out))

    @property
    def n_bytes(self) -> int:
        """Return the size of the recording; 0 if it cannot be read."""
        if isinstance(self.recording, RemoteFile):
            return self.recording.size
        try:
            return self.recording.stat().st_size
        except OSError:
            return 0


def write_transcript(task: Task, text: str) -> AudioError | None:
    """Write a transcript's file, if there is one; return why its name is impossible.

    Raises AsrError where no file at all can be written, as on a full disk.
    """
    if task.out is None:
        return None
    try:
        write_text(task.out, text)
    except (AsrError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in _OF_NAME:
            raise
        reason = (cause.strerror or str(cause)).lower()
        return AudioError(
            f"{task.recording}: its transcript {task.out} cannot be written ({reason}): rename it"
        )
    return None


def is_long(tasks: Iterable[Task]) -> bool:
    """Tell whether recordings are more than a process gets at a time."""
    return sum(task.n_bytes for task in tasks) > _SHARE_BYTES


def in_shares(tasks: list[Task]) -> Iterator[list[Task]]:
    """Yield the tasks in order, in groups that a process gets at a time."""
    share: list[Task] = []
    n_bytes, most = 0, min(_SHARE_BYTES, sum(task.n_bytes for task in tasks) / _SHARES)
    for task in tasks:
        share.append(task)
        n_bytes += task.n_bytes
        if n_bytes >= most or len(share) == _SHARE_FILES:
            yield share
            share, n_bytes = [], 0
    if share:
        yield share


def find_tasks(arguments: list[str], out_dir: Path | None, format: str) -> list[Task]:
    """Return the tasks for files, folders (with subfolders) and globs, each recording once.

    A transcript has the same path in `out_dir` as its recording has in the given folder, or in the
    part of the glob without wildcards. What is no plain file, such as a link to nowhere, is listed
    too: its error is reported with the results. `-` is standard input.

    Raises DataError where a folder or a glob has no recording. Raises ConfigError for an empty
    argument, for `-` beside other arguments, where two recordings would be written to one file, or
    where a transcript would replace a recording.
    """
    if "-" in arguments:
        if len(arguments) > 1:
            raise ConfigError("- stands for one recording, standard input: give no others with it")
        return [Task(Path("-"), out_dir and out_dir / f"stdin.{format}", is_stdin=True)]
    if out_dir is None:
        return [Task(recording, None) for recording in _named(arguments, format)]
    named = find_named(arguments, out_dir, format)
    tasks = [Task(recording, out_dir / path) for path, recording in named.items()]
    _check_places(tasks)
    return tasks


def find_named(
    arguments: list[str], out: Path | str, format: str
) -> dict[PurePath, Path | RemoteFile]:
    """Return recordings as `find_tasks` does, by the paths of their transcripts in `out`."""
    taken: dict[PurePath, Path | RemoteFile] = {}
    for recording, path in _named(arguments, format).items():
        if (other := taken.setdefault(path, recording)) != recording:
            place = out / path if isinstance(out, Path) else f"{out}/{path}"
            raise ConfigError(
                f"{other} and {recording} would both be written to {place}: give the "
                "folder that holds them, or rename one"
            )
    return taken


def _named(arguments: list[str], format: str) -> dict[Path | RemoteFile, PurePath]:
    paths: dict[Path | RemoteFile, PurePath] = {}
    for argument in arguments:
        for recording, path in _found(argument):
            paths.setdefault(recording, path.with_suffix(f".{format}"))
    return paths


def _check_places(tasks: list[Task]) -> None:
    """Raise ConfigError where a transcript would replace a recording, by whatever path."""
    recordings = {_identity(task.recording) for task in tasks} - {None}
    for task in tasks:
        if task.out and _identity(task.out) in recordings:
            raise ConfigError(
                f"{task.out} is a recording, which its transcript would replace: give another --out"
            )


def _found(argument: str) -> _Found:
    """Return the recordings of an argument, and their paths relative to it."""
    if not argument:
        raise ConfigError("an empty argument stands for no recording: give files or folders")
    if is_url(argument):
        return _found_remote(argument)
    path = Path(argument)
    if S_ISDIR(_mode(path)):
        below = _files(
            p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES | RARER and is_content(p)
        )
        if not below:
            raise DataError(f"{argument}: no recording in this folder ({_SUFFIXES}): give another")
        return _without_twins([(p, p.relative_to(path)) for p in below])
    if has_magic(argument) and not _mode(path):
        root = next(p for p in path.parents if not has_magic(str(p)))
        try:
            matches = _files(filter(is_content, root.glob(str(path.relative_to(root)))))
        except ValueError as error:
            raise DataError(f"{argument}: {error}: check the pattern") from error
        if not matches:
            raise DataError(f"{argument}: no file matches: check the pattern")
        return [(p, p.relative_to(root)) for p in matches]
    return [(path, Path(path.name))]


def _found_remote(url: str) -> _Found:
    try:
        found = find_remote(url, SUFFIXES | RARER)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"{url}: cannot be listed ({reason}): check the URL and the key") from error
    is_file = [path.name for _, path in found] == [PurePosixPath(url).name]
    found = [each for each in found if is_file or is_content(each[1])]
    if not found:
        raise DataError(f"{url}: no recording there ({_SUFFIXES}): give another")
    return _without_twins(found)


def is_content(path: PurePath) -> bool:
    """Tell whether a file is a user's, and not the one that macOS may keep beside it (`._`)."""
    return not path.name.startswith("._")


def _without_twins(found: _Found) -> _Found:
    """Return the files, sorted, without one such as x.sph beside x.wav, which was made of it."""
    kept = [each for each in found if each[1].suffix.lower() in SUFFIXES]
    taken = {path.with_suffix("") for _, path in kept}
    for recording, path in found:
        if path.suffix.lower() in RARER and path.with_suffix("") not in taken:
            taken.add(path.with_suffix(""))
            kept.append((recording, path))
    return sorted(kept, key=lambda each: each[1])


def _files(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if not S_ISDIR(_mode(path)))


def _identity(path: Path | RemoteFile) -> tuple[int, int] | None:
    """Return what two paths of one file have in common; None if there is no such file."""
    if isinstance(path, RemoteFile):
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _mode(path: Path) -> int:
    """Return the `st_mode` of the file that a path leads to; 0 if it leads nowhere."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0
