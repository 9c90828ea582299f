"""How far a job of many machines is, as its storage alone tells (see `asr.transcription.leases`).

Times are those that the storage gives to its objects, so that no two clocks are compared.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asr.errors import ConfigError, DataError
from asr.runtime.stores import Folder, modified
from asr.transcription.leases import EXPIRY
from asr.transcription.shares import JOBS, JobNote

_SAMPLE = 200  # shares that are read to estimate the hours of all


@dataclass(frozen=True)
class Status:
    """A job: its shares, recordings that failed, hours of audio and how fast they are done.

    `running` are claimed shares with a recent sign of life, `silent` those without one, which the
    next worker takes over. `speed` is hours of audio per hour, `hours_left` the hours until the
    job's end; both are None if nothing is done yet.
    """

    name: str
    recordings: int
    shares: int
    done: int
    running: int
    silent: int
    failed: int
    hours_done: float
    speed: float | None
    hours_left: float | None


def read_status(url: str) -> list[Status]:
    """Return the jobs of a folder of transcripts.

    Raises DataError where there is none, ConfigError for a URL that cannot be read.
    """
    folder = Folder(url)
    try:
        names = folder.folders(JOBS)
        found = [_status(folder, name) for name in names]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{url}: cannot be read ({reason}): check the URL and the key") from error
    if not found:
        raise DataError(f"{url}: no job there: give the --out of `asr transcribe`")
    return found


def _status(folder: Folder, job: str) -> Status:
    root = f"{JOBS}/{job}"
    note = JobNote.model_validate_json(folder.read(f"{root}/job.json"))
    listing: dict[str, Mapping[str, Any]] = {}
    for bucket in folder.folders(root):
        found = folder.list(f"{root}/{bucket}")
        listing |= {f"{root}/{bucket}/{name}": about for name, about in found.items()}
    done = [name for name in listing if name.endswith(".done")]
    newest: dict[str, tuple[int, float]] = {}  # of a share's last claim: number and last sign
    for name, about in listing.items():
        share, _, claim = name.partition(".lease.")
        if claim and f"{share}.done" not in listing:
            newest[share] = max(newest.get(share, (0, 0.0)), (int(claim), modified(about)))
    held = [at for share, (n, at) in newest.items() if f"{share}.free.{n}" not in listing]
    times = [modified(about) for about in listing.values()]
    running = sum(max(times) - at <= EXPIRY for at in held)
    # A sample stands for all shares, which hold about the same amount of audio.
    sample = [json.loads(folder.read(name)) for name in done[:: max(1, len(done) // _SAMPLE)]]
    seconds = sum(each["seconds"] for each in sample) / max(1, len(sample)) * len(done)
    elapsed = max(times, default=0.0) - min(times, default=0.0)
    speed = seconds / elapsed if seconds and elapsed else None
    left = (note.shares - len(done)) / len(done) * elapsed / 3600 if speed else None
    return Status(
        job, note.recordings, note.shares, len(done), running, len(held) - running,
        sum(".failed." in name for name in listing), seconds / 3600, speed, left,
    )  # fmt: skip
