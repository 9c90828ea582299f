"""Leases under drawn schedules: crashes, pauses past the expiry, skewed clocks, slow requests."""

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.transcription.attempts import LOSSES, TRIES, Failure, Output, Past, Share
from asr.transcription.leases import Worker, as_buckets, last_claim
from benchmarks.lease_simulation import Connection, Objects, Simulation, VirtualLoop

EXPIRY, N_WORKERS, END = 20.0, 4, 150.0
SHARES = [
    Share(name, tuple(f"out/{name}-{i}" for i in range(size)))
    for name, size in (("aa1", 3), ("aa2", 1), ("aa3", 4), ("bb1", 2), ("bb2", 5), ("cc1", 3))
]
EVENTS = st.lists(
    st.tuples(
        st.floats(0, END),
        st.integers(0, N_WORKERS - 1),
        st.sampled_from(["crash", "pause", "slow"]),
        st.floats(0.1, 3 * EXPIRY),
    ),
    max_size=12,
)


class Machine:
    """A place for a worker, and what happens to it."""

    def __init__(self, world: "World", skew: float, seed: int) -> None:
        self.world, self.skew, self.rng = world, skew, random.Random(seed)
        self.slow_until, self.now_at = 0.0, ""
        self.connection = Connection(world.objects, self.latency)
        self.task: asyncio.Task[None] | None = None

    def latency(self) -> float:
        slow = max(0.0, self.slow_until - asyncio.get_running_loop().time())
        return slow + self.rng.uniform(0.001, 0.5)

    async def live(self) -> None:
        """Start a worker, and another when it has crashed, until one comes to the end."""
        loop = asyncio.get_running_loop()
        while True:
            self.connection = Connection(self.world.objects, self.latency)
            worker = Worker(
                self.connection, self.decode, lambda: loop.time() + self.skew, EXPIRY,
                self.rng.getrandbits(32), lambda _: setattr(self, "now_at", ""),
            )  # fmt: skip
            self.task = asyncio.create_task(worker.run(as_buckets(SHARES)))
            await asyncio.wait([self.task])
            if not self.connection.is_dead:
                return self.task.result()
            self.skew = self.rng.uniform(-900, 900)  # another machine
            await asyncio.sleep(self.rng.uniform(0, 10))

    async def decode(
        self, share: Share, items: Sequence[int]
    ) -> AsyncIterator[tuple[int, Output | Failure]]:
        """Decode to a content that tells of the batch, as the last digits of scores do."""
        self.now_at = share.name
        batch = " ".join(share.outputs[item] for item in items)
        for item in items:
            name = share.outputs[item]
            self.world.decoded[name] += 1
            await self.connection.wait(self.rng.uniform(0.5, 6))
            if name in self.world.killers:
                self.crash()
                await asyncio.sleep(0)
            failed = name in self.world.failing
            yield (
                item,
                Failure(f"{name} is bad") if failed else Output(f"{name} in {batch}".encode(), 1.0),
            )

    def crash(self) -> None:
        self.world.n_troubles += 1
        self.connection.is_dead, self.now_at = True, ""
        if self.task:
            self.task.cancel()

    async def suffer(self, at: float, kind: str, seconds: float) -> None:
        await asyncio.sleep(at)
        now = asyncio.get_running_loop().time()
        if kind == "crash":
            self.crash()
            return
        # A pause can cost one share, slow requests one whenever a lease expires meanwhile.
        n = 1 if kind == "pause" else 1 + math.ceil(2 * seconds / EXPIRY)
        self.world.n_troubles += n
        if kind == "pause":
            self.connection.paused_until = now + seconds
        else:
            self.slow_until = now + seconds


class World:
    """All machines, and the store."""

    def __init__(self, killers: set[str], failing: set[str]) -> None:
        self.objects, self.killers, self.failing = Objects(), killers, failing
        self.decoded: Counter[str] = Counter()
        self.n_troubles = 0  # and how many claims they can cost

    async def run(
        self, skews: list[float], seed: int, events: list[tuple[float, int, str, float]]
    ) -> None:
        machines = [Machine(self, skew, seed + i) for i, skew in enumerate(skews)]
        trouble = [
            asyncio.create_task(machines[which].suffer(at, kind, seconds))
            for at, which, kind, seconds in events
        ]
        await asyncio.wait_for(asyncio.gather(*(m.live() for m in machines)), 24 * 3600)
        for each in trouble:
            each.cancel()


def live(world: World, *args: object) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(world.run(*args))  # type: ignore[arg-type]


OUTPUTS = [output for share in SHARES for output in share.outputs]


@settings(max_examples=100)
@given(
    events=EVENTS,
    skews=st.lists(st.floats(-900, 900), min_size=N_WORKERS, max_size=N_WORKERS),
    seed=st.integers(0, 2**20),
    bad=st.lists(st.sampled_from(OUTPUTS), max_size=2, unique=True),
)
def test_every_output_is_created_once_whatever_happens(
    events: list[tuple[float, int, str, float]], skews: list[float], seed: int, bad: list[str]
) -> None:
    world = World(set(bad[:1]), set(bad[1:]))
    live(world, skews, seed, events)
    calm = World(set(bad[:1]), set(bad[1:]))
    live(calm, [0.0], 0, [])
    written, failed, n_lost = outputs(world), failures(world.objects), 0
    assert world.objects.created["out"] == len(written)
    for share in SHARES:
        listing = world.objects.list(share.name[:2])
        claims = last_claim(listing, share)
        n_lost += claims - 1
        assert f"{share.name}.done" in listing
        for output in share.outputs:
            if output in bad:
                assert output not in written and output in failed
            elif output not in written:  # its share was lost, then it alone, twice
                assert output in failed and world.n_troubles >= TRIES
        lost = {output for output in share.outputs if output in failed} - set(bad)
        if not lost and Past(share, claims, listing).n_lost_together < LOSSES:
            assert all(written.get(o) == outputs(calm).get(o) for o in share.outputs)
        for output in set(share.outputs) - set(bad):
            # A claim decodes it once together, and a later one once alone before.
            assert world.decoded[output] <= 2 * claims - 1
    assert n_lost <= world.n_troubles


def outputs(world: World) -> dict[str, str]:
    return {f"out/{k}": c.decode() for k, (c, _) in world.objects.content["out"].items()}


def failures(objects: Objects) -> dict[str, str]:
    listed = [
        json.loads(content) for folder in objects.content.values()
        for key, (content, _) in folder.items() if ".failed." in key
    ]  # fmt: skip
    return {each["output"]: each["reason"] for each in listed}


def test_undisturbed_workers_decode_each_recording_once_with_few_requests() -> None:
    world = World(set(), {"out/bb2-3"})
    live(world, [0.0] * N_WORKERS, 7, [])
    assert world.decoded.pop("out/bb2-3") == TRIES
    assert failures(world.objects) == {"out/bb2-3": "out/bb2-3 is bad"}
    assert set(world.decoded.values()) == {1} and len(world.decoded) == len(OUTPUTS) - 1
    assert world.objects.requests["head"] == len(OUTPUTS) + 1


def test_what_kills_its_process_is_tried_three_times_and_costs_the_others_nothing() -> None:
    world = World({"out/aa3-2", "out/aa2-0"}, {"out/aa3-0"})
    live(world, [0.0] * N_WORKERS, 3, [])
    assert world.decoded["out/aa3-2"] == world.decoded["out/aa2-0"] == TRIES
    reasons = failures(world.objects)
    assert reasons.keys() == {"out/aa3-2", "out/aa2-0", "out/aa3-0"}
    assert "died 3 times" in reasons["out/aa3-2"] and "died 3 times" in reasons["out/aa2-0"]
    rest = "out/aa3-0 out/aa3-1 out/aa3-3"  # together, as if there were no other
    assert outputs(world)["out/aa3-3"] == f"out/aa3-3 in {rest}"
    assert len(outputs(world)) == len(OUTPUTS) - len(reasons)


class Unlucky(Machine):
    """Crashes at a recording, where the number of its decoding is among some."""

    victim, deaths = "out/aa3-2", frozenset[int]()

    def crash(self) -> None:
        if self.world.decoded[self.victim] in self.deaths:
            super().crash()


@pytest.mark.parametrize("n", range(4, 4 + LOSSES))
def test_machines_that_are_lost_say_nothing_against_what_they_decoded(n: int) -> None:
    """Lost once together, once alone, and again and again together: no output differs."""
    calm = World(set(), set())
    live(calm, [0.0], 0, [])
    world = World({Unlucky.victim}, set())

    class Lost(Unlucky):
        deaths = frozenset({1, 2, *range(4, n)})

    async def run() -> None:
        await asyncio.gather(*(Lost(world, 0.0, i).live() for i in range(2)))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
    assert not failures(world.objects)
    share, n_lost = next(s for s in SHARES if s.name == "aa3"), len(Lost.deaths) - 1
    other = {o for o in OUTPUTS if outputs(world)[o] != outputs(calm)[o]}
    assert other == (set(share.outputs) if n_lost >= LOSSES else set())


def test_a_share_that_is_given_back_is_taken_at_once() -> None:
    """Ctrl-C says nothing against a recording: the next worker does not wait, nor goes singly."""

    async def run() -> None:
        world = World(set(), set())
        first, second = Machine(world, 0.0, 1), Machine(world, 500.0, 2)
        task = asyncio.create_task(first.live())
        await asyncio.sleep(5)
        assert first.task and first.now_at
        first.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (freed,) = [
            key for folder in world.objects.content.values() for key in folder if ".free." in key
        ]
        share, _, _ = freed.partition(".")
        start = asyncio.get_running_loop().time()
        await second.live()
        assert f"{share}.lease.2" in world.objects.content[share[:2]]
        assert not any(".try." in key for f in world.objects.content.values() for key in f)
        assert len(world.objects.content["out"]) == len(OUTPUTS)
        assert asyncio.get_running_loop().time() - start < 6.5 * len(OUTPUTS)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def test_a_lease_is_alive_as_long_as_it_changes_whatever_the_clocks_say() -> None:
    """Decoding takes ten times the expiry; the other worker's clock is hours ahead."""
    world = World(set(), set())

    class Slow(Machine):
        async def decode(
            self, share: Share, items: Sequence[int]
        ) -> AsyncIterator[tuple[int, Output | Failure]]:
            for item in items:
                world.decoded[share.outputs[item]] += 1
                await self.connection.wait(10 * EXPIRY)
                yield item, Output(share.outputs[item].encode(), 1.0)

    async def run() -> None:
        await asyncio.gather(*(Slow(world, skew, i).live() for i, skew in enumerate((0.0, 1e4))))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
    assert set(world.decoded.values()) == {1} and len(world.decoded) == len(OUTPUTS)


def test_a_simulated_job_of_many_workers_loses_nothing() -> None:
    found = Simulation(n_workers=40, n_shares=600, seconds=30, kills=6, seed=1).run()
    assert found["recordings lost"] == found["outputs written twice"] == 0
    assert found["workers killed"] > 5 and found["recordings failed by three kills"] <= 2
    n_lost = found["of them with a share in flight"]
    assert 0 < found["shares decoded more than once"] <= n_lost
    assert found["recordings decoded again"] <= 2 * 3 * n_lost
    assert found["requests per share"] < 25  # of few shares: those of idle workers at the end
