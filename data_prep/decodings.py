"""The decodings of recordings as files: which are of what a recording is now."""

from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from asr.errors import DataError
from asr.runtime.files import read_bytes
from asr.transcription.jobs import Task, write_transcript
from asr.transcription.transcript import Transcript

_STATE = ".stat"  # ends the name of what tells which recording a decoding is of
_TRANSCRIPT = TypeAdapter(Transcript)


def is_done(task: Task) -> bool:
    """Return whether a recording has a decoding and is the same file as it was then.

    One that is not there keeps its decoding.
    """
    if not (task.is_done and task.out):
        return False
    state, before = _state(task.path), task.out.with_suffix(_STATE)
    return state is None or (before.is_file() and before.read_bytes() == state.encode())


def begin(task: Task) -> None:
    """Remove the decoding of what a recording was before; write what it is now."""
    assert task.out
    if task.is_done:
        task.out.unlink()
    if state := _state(task.path):  # an impossible name is told by the decoding
        write_transcript(replace(task, out=task.out.with_suffix(_STATE)), state)


def _state(recording: Path) -> str | None:
    """Return the size and time of a file, in which another one of this name would differ."""
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
