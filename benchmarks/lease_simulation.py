"""Simulate the lease protocol of `asr.transcription.leases` with many workers.

    python -m benchmarks.lease_simulation --workers 1000 --shares 1000000

A share has three recordings. Workers are the real ones, their store is in memory, and each request
takes a drawn time. Time is simulated. Workers are killed at random, and others take their place.
The script prints how many recordings were lost, written twice or decoded more than once, and the
requests per second.
"""

import argparse
import asyncio
import hashlib
import random
import selectors
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from asr.transcription.attempts import Failure, Output, Share
from asr.transcription.leases import Bucket, Worker, as_buckets
from benchmarks import record
from benchmarks.record import Result, Value

T = TypeVar("T")
_PAGE = 1000  # names in an answer to LIST
_SIZE = 3  # recordings of a share


class _Jump(selectors.DefaultSelector):
    """A selector that waits for no file; it adds the time of each wait to a clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return at once."""
        assert timeout is not None, "all tasks wait for each other"
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while all tasks sleep."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Return simulated seconds."""
        return self._jump.now


class Objects:
    """The objects that all workers share, and how often each was created and requested."""

    def __init__(self) -> None:
        self.content: dict[str, dict[str, tuple[bytes, str]]] = {}
        self.created: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.by_second: Counter[int] = Counter()

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one."""
        folder, _, key = name.rpartition("/")
        objects = self.content.setdefault(folder, {})
        if key in objects:
            return False
        objects[key] = content, "1"
        self.created[folder] += 1
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Write an object."""
        folder, _, key = name.rpartition("/")
        objects = self.content.setdefault(folder, {})
        objects[key] = content, str(int(objects[key][1]) + 1 if key in objects else 1)

    def exists(self, name: str) -> bool:
        """Tell whether there is an object."""
        folder, _, key = name.rpartition("/")
        return key in self.content.get(folder, {})

    def list(self, folder: str) -> Mapping[str, str]:
        """Return versions by name."""
        return {key: version for key, (_, version) in self.content.get(folder, {}).items()}


class Connection:
    """The store as one worker reaches it: requests take time, and end with the worker.

    `latency` draws the seconds to the effect of a request and those to its answer. A request that
    was sent takes effect even if its worker dies.
    """

    def __init__(self, objects: Objects, latency: Callable[[], float]) -> None:
        self.objects, self._latency = objects, latency
        self.is_dead, self.paused_until = False, 0.0

    async def wait(self, seconds: float) -> None:
        """Let the worker compute for a time, in which it may be killed or paused."""
        await asyncio.sleep(seconds)
        await self._continue()

    async def _continue(self) -> None:
        loop = asyncio.get_running_loop()
        while self.paused_until > loop.time():
            await asyncio.sleep(self.paused_until - loop.time())
        if self.is_dead:
            raise ConnectionError("this worker is dead")

    async def _ask(self, kind: str, effect: Callable[[], T], n: int = 1) -> T:
        await self._continue()
        loop = asyncio.get_running_loop()
        self.objects.requests[kind] += n
        self.objects.by_second[int(loop.time())] += n
        answer: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            found = effect()
            if not answer.done():
                loop.call_later(self._latency(), _answer, answer, found)

        loop.call_later(self._latency(), arrive)
        found = await answer
        await self._continue()
        return found

    async def create(self, name: str, content: bytes) -> bool:
        """See `Store`."""
        return await self._ask("put", lambda: self.objects.create(name, content))

    async def replace(self, name: str, content: bytes) -> None:
        """See `Store`."""
        await self._ask("put", lambda: self.objects.replace(name, content))

    async def exists(self, name: str) -> bool:
        """See `Store`."""
        return await self._ask("head", lambda: self.objects.exists(name))

    async def list(self, folder: str) -> Mapping[str, str]:
        """See `Store`."""
        pages = 1 + len(self.objects.content.get(folder, ())) // _PAGE
        return await self._ask("list", lambda: self.objects.list(folder), pages)


def _answer(future: "asyncio.Future[T]", found: T) -> None:
    if not future.done():
        future.set_result(found)


class Simulation:
    """Workers that come and go until all shares are done."""

    def __init__(self, n_workers: int, n_shares: int, seconds: float, kills: float, seed: int):
        self.rng, self.objects = random.Random(seed), Objects()
        names = (hashlib.sha256(str(i).encode()).hexdigest()[:16] for i in range(n_shares))
        self.buckets: list[Bucket] = as_buckets(
            Share(n, tuple(f"out/{n}-{i}" for i in range(_SIZE))) for n in names
        )
        self.n_workers, self.n_shares = n_workers, n_shares
        self.seconds, self.kills = seconds, kills
        self.decoded: Counter[str] = Counter()
        self.n_killed, self.n_in_flight = 0, 0

    def _latency(self) -> float:
        return 0.01 + self.rng.expovariate(1 / 0.01)

    async def _place(self) -> None:
        """Run a worker, and another in its place whenever it is killed."""
        loop = asyncio.get_running_loop()
        while True:
            connection = Connection(self.objects, self._latency)
            skew = self.rng.uniform(-600, 600)
            at_work = [""]

            async def decode(
                share: Share, items: Sequence[int], here: Connection = connection,
                at_work: list[str] = at_work,
            ) -> AsyncIterator[tuple[int, Output | Failure]]:  # fmt: skip
                at_work[0] = share.name
                self.decoded.update(share.outputs[item] for item in items)
                seconds = self.seconds * len(items) / _SIZE
                await here.wait(self.rng.uniform(0.5, 1.5) * seconds)
                for item in items:
                    yield item, Output(share.name.encode(), 200.0)

            def end(_: Share, at_work: list[str] = at_work) -> None:
                at_work[0] = ""

            def clock(skew: float = skew) -> float:
                return loop.time() + skew

            seed = self.rng.getrandbits(32)
            worker = Worker(connection, decode, clock, seed=seed, on_share=end)
            run = asyncio.create_task(worker.run(self.buckets))
            life = self.rng.expovariate(self.kills / 3600) if self.kills else None
            done, _ = await asyncio.wait([run], timeout=life)
            if done:
                run.result()
                return
            connection.is_dead = True
            self.n_killed += 1
            self.n_in_flight += bool(at_work[0])
            run.cancel()
            await asyncio.wait([run])
            await asyncio.sleep(self.rng.uniform(30, 120))  # a new machine starts

    async def _run(self) -> None:
        await asyncio.gather(*(self._place() for _ in range(self.n_workers)))

    def run(self) -> dict[str, float]:
        """Run the workers; return the counts by name."""
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(self._run())
            seconds = runner.get_loop().time()
        written = self.objects.content["out"].keys()
        failed = sum(".failed." in key for names in self.objects.content.values() for key in names)
        n_requests = self.objects.requests.total()
        n_recordings = self.n_shares * _SIZE
        again = {name.rpartition("-")[0] for name, n in self.decoded.items() if n > 1}
        return {
            "simulated hours": seconds / 3600,
            "ideal hours": self.n_shares * self.seconds / self.n_workers / 3600,
            "workers killed": self.n_killed,
            "of them with a share in flight": self.n_in_flight,
            "recordings lost": n_recordings - len(written) - failed,
            "recordings failed by three kills": failed,
            "outputs written twice": self.objects.created["out"] - len(written),
            "shares decoded more than once": len(again),
            "recordings decoded again": self.decoded.total() - n_recordings,
            **{f"{kind} requests": n for kind, n in sorted(self.objects.requests.items())},
            "requests per share": n_requests / self.n_shares,
            "requests per second, mean": n_requests / seconds,
            "requests per second, most": max(self.objects.by_second.values()),
        }


def main() -> None:
    """Run the simulation and print its counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--shares", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="Decoding of a share.")
    parser.add_argument("--kills", type=float, default=0.05, help="A worker's, in an hour.")
    parser.add_argument("--seed", type=int, default=0)
    record.add_option(parser)
    args = parser.parse_args()
    start = time.process_time()
    found = Simulation(args.workers, args.shares, args.seconds, args.kills, args.seed).run()
    rows: list[list[Value]] = [[name, float(value)] for name, value in found.items()]
    rows.append(["CPU seconds of this process", time.process_time() - start])
    title = f"Leases of {args.workers:,} workers and {args.shares:,} shares"
    columns = {"simulated": "", "number": ",.2f"}
    table = Result(title=title, columns=columns, rows=rows)
    record.publish(args, "leases", [table])


if __name__ == "__main__":
    main()
