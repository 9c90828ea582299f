"""The recordings of a job, and the files for their transcripts."""

from dataclasses import dataclass
from glob import has_magic
from pathlib import Path

from asr.errors import ConfigError, DataError

SUFFIXES = {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff"}


@dataclass(frozen=True)
class Task:
    """A recording, and the file for its transcript, if there is one."""

    recording: Path
    out: Path | None


def find_tasks(arguments: list[str], out_dir: Path | None, format: str) -> list[Task]:
    """Return the recordings of files, folders (with subfolders) and globs, each once.

    A transcript's path in `out_dir` is its recording's in the given folder, or in the part of the
    glob without wildcards. Raises DataError where a folder or a glob has no recording, ConfigError
    where two recordings would be written to one file.
    """
    paths: dict[Path, Path] = {}
    for argument in arguments:
        for recording, path in _found(argument):
            paths.setdefault(recording, path.with_suffix(f".{format}"))
    if out_dir is None:
        return [Task(recording, None) for recording in paths]
    taken: dict[Path, Path] = {}
    for recording, path in paths.items():
        if (other := taken.setdefault(path, recording)) != recording:
            raise ConfigError(
                f"{other} and {recording} would both be written to {out_dir / path}: give the "
                "folder that holds them, or rename one"
            )
    return [Task(recording, out_dir / path) for recording, path in paths.items()]


def _found(argument: str) -> list[tuple[Path, Path]]:
    """Return the recordings of an argument, and their paths relative to it."""
    path = Path(argument)
    if path.is_dir():
        below = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if not below:
            raise DataError(
                f"{argument}: no recording in this folder ({', '.join(sorted(SUFFIXES))}): give "
                "another"
            )
        return [(p, p.relative_to(path)) for p in below]
    if has_magic(argument) and not path.exists():
        root = next(p for p in path.parents if not has_magic(str(p)))
        matches = sorted(p for p in root.glob(str(path.relative_to(root))) if p.is_file())
        if not matches:
            raise DataError(f"{argument}: no file matches: check the pattern")
        return [(p, p.relative_to(root)) for p in matches]
    return [(path, Path(path.name))]
