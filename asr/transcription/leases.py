"""Shares of a job, each done once by any number of machines: leases in a common store.

No process is told what the others do. They share only objects, in the folder of the share's bucket.
Most of these are written once (`Store.create`), and none is removed:

    SHARE.lease.G   the G-th claim of a share; its owner replaces it as a sign of life
    SHARE.free.G    the owner of that claim gave it back
    SHARE.try.I.G   the owner of that claim is about to decode the recording I alone
    SHARE.pass.I.G  it has done so: the process did not die
    SHARE.failed.I  why there is no output of the recording I
    SHARE.done      every recording has an output or a failure

`full/BUCKET` says that all shares of a bucket are done. An output is created, so it is written once
whatever goes wrong; a lease only keeps others from the same work meanwhile. A lease has expired
when an observer has seen the same version of it for `EXPIRY` seconds of the observer's monotonic
clock: no time of one host is compared with that of another. `asr.transcription.attempts` says what
is done with a share that was lost.
"""

import asyncio
import itertools
import json
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

from asr.transcription.attempts import Attempt, Decode, Share, Store

EXPIRY = 60.0  # seconds; an owner gives four signs of life in this time
FULL = "full"


class Bucket:
    """Shares whose objects are listed together."""

    def __init__(self, name: str, shares: Iterable[Share]) -> None:
        self.name, self.shares = name, {share.name: share for share in shares}

    @cached_property
    def _first_leases(self) -> dict[str, str]:
        return {f"{name}.lease.1": name for name in self.shares}

    def unclaimed(self, listing: Mapping[str, str]) -> list[Share]:
        """Return the shares that are not claimed yet."""
        free = self._first_leases.keys() - listing.keys()
        return [self.shares[self._first_leases[name]] for name in sorted(free)]

    def running(self, listing: Mapping[str, str]) -> list[Share]:
        """Return the shares that were claimed and are not done."""
        claimed = self._first_leases.keys() & listing.keys()
        names = sorted(self._first_leases[lease] for lease in claimed)
        return [self.shares[name] for name in names if f"{name}.done" not in listing]


def as_buckets(shares: Iterable[Share]) -> list[Bucket]:
    """Return shares by the first two characters of their names."""
    groups: dict[str, list[Share]] = {}
    for share in shares:
        groups.setdefault(share.name[:2], []).append(share)
    return [Bucket(name, group) for name, group in sorted(groups.items())]


def last_claim(listing: Mapping[str, str], share: Share) -> int:
    """Return the number of the newest claim of a share; 0 if there is none."""
    numbers = itertools.count(1)
    return next(g for g in numbers if f"{share.name}.lease.{g}" not in listing) - 1


class Worker:
    """One of the processes that do a job. `clock` returns seconds that never go back."""

    def __init__(
        self,
        store: Store,
        decode: Decode,
        clock: Callable[[], float] = time.monotonic,
        expiry: float | None = None,
        seed: int | None = None,
        on_share: Callable[[Share], object] = lambda _: None,
    ) -> None:
        self._store, self._decode, self._clock = store, decode, clock
        self._expiry = expiry or EXPIRY
        self._rng, self._owner = random.Random(seed), secrets.token_hex(8)
        self._on_share = on_share
        self._seen: dict[str, tuple[str, float]] = {}  # version of a lease, and since when

    async def run(self, buckets: Sequence[Bucket]) -> None:
        """Work until all shares are done, by this worker or others."""
        todo = deque(self._rng.sample(buckets, len(buckets)))
        visited: set[str] = set()
        idle = 0.0  # seconds in turn without work
        while todo:
            full = await self._store.list(FULL)
            todo = deque(bucket for bucket in todo if bucket.name not in full)
            if not todo:
                return
            bucket = todo.popleft()
            has_worked, is_full = await self._sweep(bucket)
            if is_full:
                await self._store.create(f"{FULL}/{bucket.name}", b"")
                continue
            todo.append(bucket)
            if has_worked:
                idle = 0.0
            elif bucket.name in visited:
                # The job ends with the last shares of others: look often at first, then less.
                pause = min(max(idle / 2, self._expiry / 60), self._expiry / 6)
                pause *= self._rng.uniform(0.5, 1.5)
                await asyncio.sleep(pause)
                idle += pause
            visited.add(bucket.name)

    async def _sweep(self, bucket: Bucket) -> tuple[bool, bool]:
        """Work on all shares of a bucket that can be claimed.

        Return whether there were any, and whether all shares of the bucket are done.
        """
        has_worked = False
        while True:
            asked = self._clock()
            listing = await self._store.list(bucket.name)
            claims = [(share, 1) for share in bucket.unclaimed(listing)]
            running = bucket.running(listing)
            for share in running:
                claim = last_claim(listing, share)
                if self._has_ended(share, claim, listing, asked):
                    claims.append((share, claim + 1))
            if not claims:
                return has_worked, not running
            self._rng.shuffle(claims)
            for share, claim in claims:
                if not await self._create(bucket.name, f"{share.name}.lease.{claim}", self._owner):
                    break  # others are here too: look again
                has_worked = True
                await self._work(share, claim)

    def _has_ended(
        self, share: Share, claim: int, listing: Mapping[str, str], asked: float
    ) -> bool:
        """Tell whether a claim was given back, or shows no life; it was listed after `asked`."""
        if f"{share.name}.free.{claim}" in listing:
            return True
        version = f"{claim} {listing[f'{share.name}.lease.{claim}']}"
        known, since = self._seen.get(share.name, ("", 0.0))
        if known != version:
            self._seen[share.name] = version, self._clock()
            return False
        return asked - since > self._expiry

    async def _work(self, share: Share, claim: int) -> None:
        """Do a share that this worker has claimed; give it back if the work is interrupted."""
        beat = asyncio.create_task(self._beat(share, claim))
        try:
            await self._do(share, claim)
        except (asyncio.CancelledError, OSError):  # OSError: of the storage
            with suppress(OSError):
                await self._create(share.name[:2], f"{share.name}.free.{claim}")
            raise
        finally:
            beat.cancel()
        self._seen.pop(share.name, None)
        self._on_share(share)

    async def _beat(self, share: Share, claim: int) -> None:
        name = f"{share.name[:2]}/{share.name}.lease.{claim}"
        for number in itertools.count(1):
            await asyncio.sleep(self._expiry / 4)
            with suppress(OSError):
                await self._store.replace(name, f"{self._owner} {number}".encode())

    async def _do(self, share: Share, claim: int) -> None:
        done = await Attempt(self._store, self._decode, share, claim).run()
        await self._create(share.name[:2], f"{share.name}.done", json.dumps(done))

    async def _create(self, bucket: str, name: str, content: str = "") -> bool:
        return await self._store.create(f"{bucket}/{name}", content.encode())
