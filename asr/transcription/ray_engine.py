"""Ray as the engine of a job that is shared: its actors are workers like any others.

Ray gives each actor a GPU or some cores, and tells which are lost. It hands out no recordings: an
actor claims one share at a time (see `asr.transcription.leases`), so that nothing waits behind a
slow one, and machines without Ray may work on the same job.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from asr.errors import AsrError
from asr.runtime.ray_cluster import connect, told
from asr.transcription.remote_bundle import local_bundle
from asr.transcription.shared import DEATHS, ENDING, Work, work_on

log = logging.getLogger(__name__)

_LOOK = 5.0  # seconds between looks at what resources the cluster has


class _Actor:
    """A worker in a process of Ray's, on any node."""

    def __init__(self, work: Work, bundle: str) -> None:
        self._work, self._bundle = work, bundle
        self._told: asyncio.Queue[int | Exception] = asyncio.Queue()
        self._run: asyncio.Task[None] | None = None

    async def next(self) -> int:
        """Return the number of recordings of the next share done; 0 when the whole job is done."""
        self._run = self._run or asyncio.create_task(self._work_to_the_end())
        told = await self._told.get()
        if isinstance(told, Exception):
            raise told
        return told

    async def end(self) -> None:
        """Give back what is claimed."""
        if self._run:
            self._run.cancel()
            await asyncio.wait([self._run])

    async def _work_to_the_end(self) -> None:
        try:
            with local_bundle(self._bundle) as bundle:
                work = replace(self._work, bundle=bundle)
                await work_on(work, 0, lambda share: self._told.put_nowait(len(share.outputs)))
            self._told.put_nowait(0)
        except Exception as error:
            self._told.put_nowait(error)


class RayCrew:
    """Actors of a cluster: `jobs` of them, or as many as there is room for, as nodes come and go.

    Each has a GPU, where there are some and the device is not the CPU, or as many cores as
    `work.threads`. `bundle` is a folder or URL that all nodes can read.
    """

    def __init__(self, work: Work, bundle: str, engine: str, jobs: int | None) -> None:
        """Raise ConfigError where no cluster answers."""
        self._ray, self._jobs = connect(engine), jobs
        has_gpus = work.device == "auto" and "GPU" in self._ray.cluster_resources()
        self._kind, self._share = ("CPU", work.threads)
        if has_gpus or work.device.startswith("cuda"):
            self._kind, self._share = ("GPU", 1)
        needs = {f"num_{self._kind.lower()}s": self._share}
        self._actor = self._ray.remote(**needs)(_Actor)
        self._given = self._ray.put(work), bundle
        self._actors: dict[Any, Any] = {}  # by the reference to what each will tell next

    def watch(self) -> Iterator[int]:
        """Yield how many recordings are done by Ray, until the whole job is done, by any worker."""
        n_done, n_lost = 0, 0
        while True:
            self._start()
            ready, _ = self._ray.wait(list(self._actors), timeout=_LOOK)
            for reference in ready:
                actor = self._actors.pop(reference)
                n_new = self._result(reference)
                if n_new == 0:
                    return
                if n_new:
                    n_done, n_lost = n_done + n_new, 0
                    self._actors[actor.next.remote()] = actor
                    yield n_done
                    continue
                self._ray.kill(actor)
                n_lost += 1
                if n_lost >= DEATHS * (len(self._actors) + 1):
                    raise AsrError(
                        f"{n_lost} actors died in turn (out of memory?): give each more cores, "
                        "`asr --threads N transcribe`; what is done is not done again"
                    )

    def _start(self) -> None:
        """Start as many actors as are missing."""
        room = self._jobs or int(self._ray.cluster_resources().get(self._kind, 0) // self._share)
        for _ in range(len(self._actors), max(1, room)):
            actor = self._actor.remote(*self._given)
            self._actors[actor.next.remote()] = actor

    def _result(self, reference: Any) -> int | None:
        """Return how many recordings an actor has done; None if the actor was lost."""
        from ray.exceptions import RayActorError, RayTaskError

        try:
            return int(self._ray.get(reference))
        except RayActorError as error:
            log.warning("an actor was lost (%s): another starts", type(error).__name__)
            return None
        except RayTaskError as error:
            raise told(error) from error

    def end(self) -> None:
        """End the actors, which give back what they have claimed."""
        ends = [actor.end.remote() for actor in self._actors.values()]
        if ends:
            self._ray.wait(ends, num_returns=len(ends), timeout=ENDING)
        for actor in self._actors.values():
            self._ray.kill(actor)
