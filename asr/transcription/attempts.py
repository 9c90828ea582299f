"""What the owner of a claim does with a share, so that its outputs do not depend on losses.

The last digits of scores depend on the batches in which recordings are decoded. So the recordings
of a share are decoded together, and outputs are written when all of them are decoded. What an
interrupted owner decoded is not kept. A recording that fails, after three tries, stops no other.

If a claim was not given back, either its machine was lost, or a recording killed its process. The
next owner then decodes each recording alone, as a probe. Its result is not kept, and the attempt is
written down before (`try`) and after (`pass`). A recording whose process died in two probes has
failed: with the first death it was tried three times. The other recordings are decoded together
without it, as they are in a run in which nothing else is lost. A share of one recording needs no
probe, and fails after three deaths.

This rule has two limits:

- A healthy recording fails if its share is lost once, and then twice more during the probe of this
  very recording, which takes the time to decode it.
- Some shares are decoded recording by recording, so their last digits differ. Such a share was lost
  `LOSSES` times while it was decoded together, as where its batches need more memory than there is;
  or some recording of it fails only now and then.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

TRIES = 3  # of a recording that fails, or whose process dies
LOSSES = 5  # of a share while it is decoded together; fewer than `shared.DEATHS`


class Store(Protocol):
    """Objects by name, in folders; the next `list` of any worker shows what was created."""

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

    `name` is a digest of what the share holds. Its first two characters are its bucket.
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


# Decodes recordings of a share, given by their indices; yields each index with the result.
Decode = Callable[[Share, Sequence[int]], AsyncIterator[tuple[int, Output | Failure]]]

_DIED = Failure(f"what decoded it died {TRIES} times: is it damaged, or too large?")


class Past:
    """What the objects of a share tell about its earlier claims."""

    def __init__(self, share: Share, claim: int, listing: Mapping[str, str]) -> None:
        start = f"{share.name}."
        rests = (name.removeprefix(start) for name in listing if name.startswith(start))
        marks = [rest.split(".") for rest in rests]
        tries, passes = (
            {(int(mark[1]), int(mark[2])) for mark in marks if mark[0] == kind}
            for kind in ("try", "pass")
        )
        freed = {int(mark[1]) for mark in marks if mark[0] == "free"}
        died = {(item, g) for item, g in tries - passes if g < claim and g not in freed}
        self.failed = {int(mark[1]) for mark in marks if mark[0] == "failed"}
        self.passed = {item for item, _ in passes}
        self.lost = set(range(1, claim)) - freed  # claims
        self.n_died = Counter(item for item, _ in died)  # of a recording, alone
        self.n_lost_together = len(self.lost - {g for _, g in died})

    def kills(self, item: int) -> bool:
        """Tell whether a recording's process died so often that this recording is at fault."""
        return self.n_died[item] >= TRIES - 1


class Attempt:
    """A claim of a share, by its owner."""

    def __init__(self, store: Store, decode: Decode, share: Share, claim: int) -> None:
        self._store, self._decode = store, decode
        self._share, self._claim = share, claim

    @cached_property
    def _place(self) -> str:
        return f"{self._share.name[:2]}/{self._share.name}"

    async def run(self) -> dict[str, float]:
        """Give each recording an output or a failure.

        Return the number of `recordings`, how many of them had no result yet (`decoded`), and the
        `seconds` of audio that were decoded.
        """
        listing = await self._store.list(self._share.name[:2]) if self._claim > 1 else {}
        past = Past(self._share, self._claim, listing)
        missing = await self._missing(past.failed)
        for item in filter(past.kills, missing):
            await self._write(item, _DIED)
        kept = [item for item in range(len(self._share.outputs)) if not past.kills(item)]
        left: Sequence[int] = [item for item in missing if item in kept]
        seconds = 0.0
        is_alone = past.n_lost_together >= LOSSES or (past.lost and len(kept) == 1)
        if left and not is_alone:
            if past.lost:
                # Suspects come first: another loss is less likely the sooner they are probed.
                for item in sorted(left, key=lambda item: -past.n_died[item]):
                    if item not in past.passed:
                        await self._alone(item, is_kept=False)
            seconds, left = await self._together(kept, left)
        for item in left:
            seconds += await self._alone(item, is_kept=True)
        n = len(self._share.outputs)
        return {"recordings": n, "decoded": len(missing), "seconds": seconds}

    async def _missing(self, failed: set[int]) -> list[int]:
        """Return the recordings that have neither an output nor a failure."""
        items = [i for i in range(len(self._share.outputs)) if i not in failed]
        there = await asyncio.gather(*(self._store.exists(self._share.outputs[i]) for i in items))
        return [item for item, is_there in zip(items, there, strict=True) if not is_there]

    async def _together(
        self, kept: Sequence[int], missing: Sequence[int]
    ) -> tuple[float, Sequence[int]]:
        """Decode recordings in common batches, and write the results of the missing ones.

        Return the seconds of audio, and the recordings that are left: none, or all of the missing
        ones where some recording fails only now and then.
        """
        for _ in range(TRIES):
            found = {item: outcome async for item, outcome in self._decode(self._share, kept)}
            failed = [item for item in missing if isinstance(found[item], Failure)]
            again = [await self._outcome(item, TRIES - 1) for item in failed]
            if all(isinstance(outcome, Failure) for outcome in again):
                await asyncio.gather(*(self._write(item, found[item]) for item in missing))
                return sum(o.seconds for o in found.values() if isinstance(o, Output)), []
        return 0.0, missing

    async def _alone(self, item: int, is_kept: bool) -> float:
        """Decode a recording alone, between two marks; return its seconds, 0 if it fails."""
        await self._create(f"try.{item}.{self._claim}")
        outcome = await self._outcome(item, TRIES if is_kept else 1)
        if is_kept:
            await self._write(item, outcome)
        await self._create(f"pass.{item}.{self._claim}")
        return outcome.seconds if isinstance(outcome, Output) else 0.0

    async def _outcome(self, item: int, tries: int) -> Output | Failure:
        """Return the result of a recording decoded alone, which is tried again where it fails."""
        for _ in range(tries):
            async for _, outcome in self._decode(self._share, [item]):
                if isinstance(outcome, Output):
                    return outcome
        return outcome

    async def _write(self, item: int, outcome: Output | Failure) -> None:
        output = self._share.outputs[item]
        if isinstance(outcome, Output):
            await self._store.create(output, outcome.content)
        elif not await self._store.exists(output):
            failed = {"output": output, "reason": outcome.reason}
            await self._create(f"failed.{item}", json.dumps(failed))

    async def _create(self, name: str, content: str = "") -> None:
        await self._store.create(f"{self._place}.{name}", content.encode())
