"""A job that many machines do together: its recordings, its shares by content, its folder.

Below the folder of the transcripts, `.asr/JOB/` holds the objects of `asr.transcription.leases`,
and `job.json` what the job is. Machines that are given the same recordings, options and model find
the same names without telling each other.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from asr.errors import AsrError, ConfigError
from asr.runtime.stores import Folder, version
from asr.schema import FrozenModel
from asr.transcription.attempts import Share
from asr.transcription.jobs import Task, find_named, in_shares

JOBS = ".asr"
_OUT = "out/"  # in front of the names of outputs, which are not below JOBS


class JobNote(FrozenModel):
    """What `job.json` says."""

    recordings: int
    shares: int
    n_bytes: int
    options: dict[str, str]


@dataclass(frozen=True)
class Job:
    """Recordings by the names of their outputs, in shares."""

    name: str
    tasks: Mapping[str, Task]
    shares: tuple[Share, ...]
    note: JobNote


def plan(arguments: list[str], out: str, format: str, options: Mapping[str, object]) -> Job:
    """Return the job of recordings (see `find_tasks`) and options that decide on transcripts.

    Raises ConfigError for standard input, and as `find_tasks` does.
    """
    if "-" in arguments:
        raise ConfigError("- is standard input, which only one machine has: give files with --out")
    named = sorted((str(path), r) for path, r in find_named(arguments, out, format).items())
    tasks = {_OUT + path: Task(recording, None) for path, recording in named}
    told = {key: str(value) for key, value in sorted({**options, "format": format}.items())}
    names = {id(task): name for name, task in tasks.items()}
    shares = []
    for group in in_shares(list(tasks.values())):
        outputs = tuple(names[id(task)] for task in group)
        content = [told, [(names[id(task)], task.n_bytes) for task in group]]
        shares.append(Share(_digest(content), outputs))
    n_bytes = sum(task.n_bytes for task in tasks.values())
    note = JobNote(recordings=len(tasks), shares=len(shares), n_bytes=n_bytes, options=told)
    return Job(_digest([told, sorted(share.name for share in shares)]), tasks, tuple(shares), note)


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class JobStore:
    """The folder of a job's outputs as the `Store` of its workers."""

    def __init__(self, out: str, job: str) -> None:
        self._folder, self._job = Folder(out), job

    async def create(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one."""
        return await asyncio.to_thread(self._folder.create, self._place(name), content)

    async def replace(self, name: str, content: bytes) -> None:
        """Write an object."""
        await asyncio.to_thread(self._folder.replace, self._place(name), content)

    async def exists(self, name: str) -> bool:
        """Tell whether there is an object."""
        return await asyncio.to_thread(self._folder.exists, self._place(name))

    async def list(self, folder: str) -> Mapping[str, str]:
        """Return the versions of a folder's objects by name."""
        found = await asyncio.to_thread(self._folder.list, self._place(folder))
        return {name: version(about) for name, about in found.items()}

    def _place(self, name: str) -> str:
        return name.removeprefix(_OUT) if name.startswith(_OUT) else f"{JOBS}/{self._job}/{name}"


def announce(job: Job, out: str) -> None:
    """Write `job.json`, unless another machine did.

    Raises ConfigError for storage that replaces a file that is to be created once, AsrError where
    it cannot be written.
    """
    folder, name = Folder(out), f"{JOBS}/{job.name}/job.json"
    content = job.note.model_dump_json().encode()
    try:
        folder.create(name, content)
        if folder.create(name, b"{}"):
            raise ConfigError(
                f"{out}: this storage replaces files that are to be created once: give one that "
                "knows If-None-Match"
            )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AsrError(f"{out}: cannot be written ({reason}): check the URL and the key") from error


def failures(job: Job, out: str) -> list[tuple[Task, str]]:
    """Return the recordings without a transcript and why, once the job is done."""
    folder = Folder(out)
    found = []
    for bucket in sorted({share.name[:2] for share in job.shares}):
        place = f"{JOBS}/{job.name}/{bucket}"
        names = [name for name in sorted(folder.list(place)) if ".failed." in name]
        for told in (json.loads(folder.read(f"{place}/{name}")) for name in names):
            if not folder.exists(told["output"].removeprefix(_OUT)):  # one may be written late
                found.append((job.tasks[told["output"]], str(told["reason"])))
    return found
