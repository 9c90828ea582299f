"""Files with the decodings of recordings, and whether they are still those of the recordings."""

from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from asr.errors import DataError
from asr.runtime.files import read_bytes
from asr.transcription.jobs import Task, write_transcript
from asr.transcription.transcript import Transcript

_STATE = ".stat"  # suffix of the file that tells which state of a recording was decoded
_TRANSCRIPT = TypeAdapter(Transcript)


def is_done(task: Task) -> bool:
    """Tell whether a recording has a decoding, and is the same file as when it was decoded.

    A recording that no longer exists keeps its decoding.
    """
    if not (task.is_done and task.out):
        return False
    state, before = _state(task.path), task.out.with_suffix(_STATE)
    return state is None or (before.is_file() and before.read_bytes() == state.encode())


def begin(task: Task) -> None:
    """Remove the outdated decoding of a recording, and write the recording's state now."""
    assert task.out
    if task.is_done:
        task.out.unlink()
    if state := _state(task.path):  # for an impossible name the decoding reports the error
        write_transcript(replace(task, out=task.out.with_suffix(_STATE)), state)


def _state(recording: Path) -> str | None:
    """Return the size and time of a file, which identify it, or None if it cannot be found."""
    try:
        found = recording.stat()
    except OSError:
        return None
    return f"{found.st_size} {found.st_mtime_ns}\n"


def read(task: Task) -> Transcript:
    """Read a decoding. Raises DataError where it is damaged."""
    assert task.out
    try:
        return _TRANSCRIPT.validate_json(read_bytes(task.out))
    except (ValidationError, OSError) as error:
        raise DataError(f"{task.out}: is no decoding of `asr pseudo-label`: remove it") from error
