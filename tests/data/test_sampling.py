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
