"""The plan of an epoch mixes all of a corpus, however large."""

import math
from itertools import chain

import pytest
from lhotse import CutSet
from lhotse.cut import Cut
from lhotse.testing.dummies import dummy_cut, dummy_recording
from lhotse.utils import fastcopy

from asr.data import sampling
from asr.data.sampling import perturb_speed, plan_epoch


@pytest.mark.costly
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


def test_a_manifest_beside_shards_is_spread_over_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = CutSet.from_cuts(dummy_cut(i, duration=2.0, recording_duration=9.0) for i in range(2000))
    shard_of = {cut.id: "" if i % 5 == 0 else f"s{i % 33}" for i, cut in enumerate(cuts)}

    def by_shard(some: CutSet) -> dict[str, list[Cut]]:
        found: dict[str, list[Cut]] = {}
        for cut in some:
            found.setdefault(shard_of[cut.id], []).append(cut)
        return found

    monkeypatch.setattr(sampling, "by_shard", by_shard)
    for epoch in (0, 1):
        steps = plan_epoch(cuts, 64.0, seed=1, epoch=epoch)
        plain = [not shard_of[cut.id] for batch in steps for cut in batch]
        assert len(plain) == 2000
        quarters = [sum(plain[i : i + 500]) for i in range(0, 2000, 500)]
        assert min(quarters) > 0.6 * 100


@pytest.mark.parametrize(
    ("rate", "factors"),
    [
        (8000, (0.9, 1.1)),
        (16000, (0.9, 1.1)),
        (44100, (0.9, 1.1)),
        (16000, (0.933, 1.05)),
        (11025, (397 / 441, 485 / 441)),
    ],
)
def test_speeds_are_those_given_where_their_filters_are_small(
    rate: int, factors: tuple[float, float]
) -> None:
    """Resampling from 9,922 to 11,025 Hz has 11,025 filters of as many values; 441 are enough."""
    recording = fastcopy(dummy_recording(0, duration=1.0), sampling_rate=rate, num_samples=rate)
    wanted = (0.9, 1.1) if rate == 11025 else factors
    cuts = CutSet.from_cuts([recording.to_cut()])
    slower, usual, faster = perturb_speed(cuts, (wanted[0], 1.0, wanted[1]))
    assert usual.duration == 1.0
    for cut, factor in zip((slower, faster), factors, strict=True):
        assert cut.recording.transforms[0].factor == factor
        assert cut.duration == pytest.approx(1 / factor, abs=2 / rate)
        assert rate // math.gcd(rate, round(rate * factor)) <= 1000
