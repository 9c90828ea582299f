"""The plan of an epoch mixes all of a corpus, however large."""

from itertools import chain

from lhotse import CutSet
from lhotse.testing.dummies import dummy_cut

from asr.data.sampling import plan_epoch


def test_a_corpus_larger_than_the_buffer_is_mixed_as_a_whole() -> None:
    """Lhotse shuffles 20,000 cuts at a time; copies of other speeds follow one another."""
    n = 24_000
    cuts = CutSet.from_cuts(
        dummy_cut(i, duration=1.0 + i % 7, recording_duration=9.0) for i in range(n)
    )
    order = {cut.id: i for i, cut in enumerate(cuts)}
    steps = plan_epoch(cuts, 64.0, seed=1, epoch=0)
    ids = list(chain.from_iterable((cut.id for cut in batch) for batch in steps))
    assert sorted(ids) == sorted(order)
    first = [order[id] for id in ids[: n // 10]]
    share = [sum(third * n // 3 <= i < (third + 1) * n // 3 for i in first) for third in range(3)]
    assert min(share) > 0.8 * len(first) / 3
    assert [[cut.id for cut in batch] for batch in plan_epoch(cuts, 64.0, seed=1, epoch=0)] == [
        [cut.id for cut in batch] for batch in steps
    ]


def test_batches_and_their_order_differ_between_epochs_and_seeds() -> None:
    """Lhotse draws the order of lengths from a generator of its own, which no seed changes."""
    cuts = CutSet.from_cuts(
        dummy_cut(i, duration=1.0 + i % 12, recording_duration=13.0) for i in range(1_200)
    )

    def plan(seed: int, epoch: int) -> list[list[tuple[str, float]]]:
        return [[(c.id, c.duration) for c in b] for b in plan_epoch(cuts, 64.0, seed, epoch)]

    first = plan(seed=1, epoch=0)
    for other in (plan(seed=1, epoch=1), plan(seed=2, epoch=0), plan(seed=0, epoch=1)):
        lengths = [[max(seconds for _, seconds in batch) for batch in p] for p in (first, other)]
        same = sum(a == b for a, b in zip(*lengths, strict=False))
        assert same < len(first) / 3
        shared = {frozenset(batch) for batch in first} & {frozenset(batch) for batch in other}
        assert len(shared) < len(first) / 10


def test_batches_that_are_not_full_are_spread_over_the_epoch() -> None:
    """Lhotse gives what is left of each length at the end."""
    cuts = CutSet.from_cuts(
        dummy_cut(i, duration=1.0 + (i * 0.37) % 12, recording_duration=14.0) for i in range(1_200)
    )
    places = []
    for epoch in range(4):
        seconds = [sum(c.duration for c in b) for b in plan_epoch(cuts, 64.0, 1, epoch)]
        least = sorted(range(len(seconds)), key=seconds.__getitem__)[:10]
        places += [i / len(seconds) for i in least]
    assert 0.35 < sum(places) / len(places) < 0.65
