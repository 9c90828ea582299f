"""TODO: jobs."""

from dataclasses import dataclass
from glob import has_magic
from pathlib import Path

from asr.errors import ConfigError, DataError
from asr.runtime.files import write_atomically

SUFFIXES = {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff"}


@dataclass(frozen=True)
class Task:
    """A recording and the file that its transcript goes to, if it goes to a file."""

    recording: Path
    out: Path | None


def find_tasks(arguments: list[str], out_dir: Path | None, format: str) -> list[Task]:
    """The recordings that files, folders (with all below) and globs stand for, each once.

    A transcript's place below `out_dir` is its recording's below the folder, or the part without
    wildcards, that was given. Raises
    DataError where a folder or a glob holds no recording, ConfigError where two recordings would
    be written to one file.
    """
    places: dict[Path, Path] = {}
    for argument in arguments:
        for recording, place in _found(argument):
            places.setdefault(recording, place.with_suffix(f".{format}"))
    if out_dir is None:
        return [Task(recording, None) for recording in places]
    taken: dict[Path, Path] = {}
    for recording, place in places.items():
        if (other := taken.setdefault(place, recording)) != recording:
            raise ConfigError(
                f"{other} and {recording} would both be written to {out_dir / place}: give the "
                "folder that holds them, or rename one"
            )
    return [Task(recording, out_dir / place) for recording, place in places.items()]


def _found(argument: str) -> list[tuple[Path, Path]]:
    """What an argument stands for: recordings, and where each is below what was given."""
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


def write_text(path: Path, text: str) -> None:
    """A transcript's file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: temporary.write_text(text, "utf-8"))
