"""Shares of a job, each done once by any number of machines: leases in a common store.

No process is told what the others do. All that is shared are objects, most of which are written
once (`Store.create`) and never removed, under the folder of the share's bucket:

    SHARE.lease.G   the G-th claim of a share; its owner replaces it as a sign of life
    SHARE.free.G    the owner of that claim gave it back
    SHARE.try.I.K   the recording I of a share is about to be decoded alone, for the K-th time
    SHARE.failed.I  why there is no output of it
    SHARE.done      every recording has an output or a failure

`full/BUCKET` says that all shares of a bucket are done. An output is created, so it is written once
whatever goes wrong; a lease only keeps others from the same work meanwhile. A lease has expired
when an observer has seen the same version of it for `EXPIRY` seconds of its own monotonic clock:
no time of one host is compared with that of another. Where a claim ended without a word, its
share is decoded again as a whole, in the same batches, so that the output is the same to the last
digit; after a second one its recordings are decoded alone, each attempt recorded before. Where the
process died in three attempts alone, the recording has failed; other losses say nothing about it.
"""

import asyncio
import itertools
import json
import random
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

EXPIRY = 60.0  # seconds; a sign of life comes four times in them
TRIES = 3  # of a recording that fails; of one whose process dies, those alone
_TOGETHER = 2  # claims of a share that decode it as a whole
FULL = "full"


class Store(Protocol):
    """Objects by name, in folders; what was created is seen by the next `list` of anyone."""

    async def create(self, name: str, content: bytes) -> bool:
        """Write an object whole; return False if there was one, which stays as it is."""

    async def replace(self, name: str, content: bytes) -> None:
        """Write an object whole in the place of an older one."""

    async def exists(self, name: str) -> bool:
        """Tell whether there is an object."""

    async def list(self, folder: str) -> Mapping[str, str]:
        """Return the objects of a folder: a version, which changes with the content, by name."""


@dataclass(frozen=True)
class Share:
    """Recordings that are claimed together, by the names of their outputs.

    `name` is made of what it holds and begins with two characters that are its bucket.
    """

    name: str
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Output:
    """The content of a recording's output, and the length of the recording."""

    content: bytes
    seconds: float


@dataclass(frozen=True)
class Failure:
    """Why a recording has no output."""

    reason: str


# Decodes recordings of a share, given by their indices; yields each index with what came of it.
Decode = Callable[[Share, Sequence[int]], AsyncIterator[tuple[int, Output | Failure]]]


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
        """Work until all shares are done, by whomever."""
        todo = deque(self._rng.sample(buckets, len(buckets)))
        visited: set[str] = set()
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
            if bucket.name in visited and not has_worked:
                await asyncio.sleep(self._expiry / 6 * self._rng.uniform(0.5, 1.5))
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
        """Tell whether a claim was given back, or shows no life; `asked` is before the listing."""
        if f"{share.name}.free.{claim}" in listing:
            return True
        version = f"{claim} {listing[f'{share.name}.lease.{claim}']}"
        known, since = self._seen.get(share.name, ("", 0.0))
        if known != version:
            self._seen[share.name] = version, self._clock()
            return False
        return asked - since > self._expiry

    async def _work(self, share: Share, claim: int) -> None:
        """Do a share that this worker has claimed; give it back if that is interrupted."""
        beat = asyncio.create_task(self._beat(share, claim))
        try:
            await self._do(share, claim)
        except asyncio.CancelledError:
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
        listing: Mapping[str, str] = {}
        if claim > 1:
            listing = await self._store.list(share.name[:2])
        missing = await self._missing(share, listing)
        spent = sum(f"{share.name}.free.{g}" not in listing for g in range(1, claim))
        seconds, again, n_failed = 0.0, missing, 0
        if missing and spent < _TOGETHER:
            seconds, again = await self._together(share, missing)
            n_failed = 1
        for item in again:
            seconds += await self._alone(share, item, n_failed, listing)
        done = {"recordings": len(share.outputs), "decoded": len(missing), "seconds": seconds}
        await self._create(share.name[:2], f"{share.name}.done", json.dumps(done))

    async def _missing(self, share: Share, listing: Mapping[str, str]) -> list[int]:
        """Return the recordings of a share that have neither an output nor a failure."""
        items = [i for i in range(len(share.outputs)) if f"{share.name}.failed.{i}" not in listing]
        there = await asyncio.gather(*(self._store.exists(share.outputs[i]) for i in items))
        return [item for item, is_there in zip(items, there, strict=True) if not is_there]

    async def _together(self, share: Share, missing: Sequence[int]) -> tuple[float, list[int]]:
        """Decode a share as a whole; return its seconds, and which of the missing ones failed."""
        seconds, failed = 0.0, []
        async for item, outcome in self._decode(share, range(len(share.outputs))):
            if isinstance(outcome, Output):
                seconds += outcome.seconds
                if item in missing:
                    await self._store.create(share.outputs[item], outcome.content)
            elif item in missing:
                failed.append(item)
        return seconds, failed

    async def _alone(
        self, share: Share, item: int, n_failed: int, listing: Mapping[str, str]
    ) -> float:
        """Decode a recording that failed so often; return its seconds, 0 if it fails again."""
        reason = f"what decoded it alone died {TRIES} times: is it damaged, or too large?"
        for number in range(n_failed + 1, TRIES + 1):
            name = f"{share.name}.try.{item}.{number}"
            if name in listing or not await self._create(share.name[:2], name):
                continue
            async for _, outcome in self._decode(share, [item]):
                if isinstance(outcome, Output):
                    await self._store.create(share.outputs[item], outcome.content)
                    return outcome.seconds
                reason = outcome.reason
        if not await self._store.exists(share.outputs[item]):
            failed = {"output": share.outputs[item], "reason": reason}
            await self._create(share.name[:2], f"{share.name}.failed.{item}", json.dumps(failed))
        return 0.0

    async def _create(self, bucket: str, name: str, content: str = "") -> bool:
        return await self._store.create(f"{bucket}/{name}", content.encode())
