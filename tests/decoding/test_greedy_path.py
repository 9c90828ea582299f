"""The greedy path of a stream, and the rule that ends its segments."""

import pytest
import torch
from pydantic import ValidationError

from asr.decoding.ctc_greedy import GreedyPath, greedy_texts
from asr.decoding.endpoint import Endpoint, quiet_steps
from asr.decoding.options import DecodingOptions
from tests.helpers import WORD_COUNTS, V


@pytest.mark.parametrize("seed", range(8))
def test_in_blocks_of_any_size_it_is_the_offline_path(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logp = (torch.randn(40, V, generator=generator) * 2).log_softmax(-1)
    (offline,) = greedy_texts(logp[None], torch.tensor([40]), DecodingOptions(), WORD_COUNTS)
    path, at = GreedyPath(), 0
    while at < 40:
        n = int(torch.randint(1, 6, (), generator=generator))
        path.extend(logp[at : at + n])
        at += n
    assert tuple(path.tokens) == offline.tokens and path.n_steps == 40
    assert path.confidences == pytest.approx(offline.confidences, abs=1e-6)
    best = logp.index_fill(1, torch.tensor([1, 2, 3]), -torch.inf).max(1)
    assert path.log_prob == pytest.approx(float(best.values.sum()), abs=1e-4)
    for token, (first, last) in zip(path.tokens, path.spans, strict=True):
        assert best.indices[first:last].tolist() == [token] * (last - first)
        assert first == 0 or best.indices[first - 1] != token
    assert path.trailing_blanks == 40 - 1 - int(best.indices.nonzero()[-1])


def test_a_segment_ends_by_silence_that_may_be_shorter_the_longer_it_is() -> None:
    rule = Endpoint(silence_seconds=0.8, idle_seconds=2, longest_seconds=10)
    assert not rule.is_reached(3, 0.7, True) and rule.is_reached(3, 0.8, True)
    assert not rule.is_reached(7.5, 0.3, True) and rule.is_reached(7.5, 0.4, True)
    assert rule.is_reached(10, 0, True) and rule.is_reached(12, 0, True)
    assert not rule.is_reached(1.9, 1.9, False) and rule.is_reached(2, 2, False)
    assert Endpoint.within(None) == Endpoint.within(40) == Endpoint()
    assert Endpoint.within(1.5) == Endpoint(idle_seconds=1.5, longest_seconds=1.5)
    with pytest.raises(ValidationError, match="must not fall in this order"):
        Endpoint(silence_seconds=3)


def test_blanks_that_are_not_quiet_must_last_longer() -> None:
    rule = Endpoint(silence_seconds=0.8)
    assert rule.is_reached(3, 0.8, True, 0.8) and rule.is_reached(3, 0.8, True, 5)
    assert not rule.is_reached(3, 0.8, True, 0.7) and not rule.is_reached(3, 0.7, True, 0.8)
    assert not rule.is_reached(3, 1.9, True, 0) and rule.is_reached(3, 2, True, 0)
    assert rule.is_reached(2.4, 2.4, False, 0), "without text the audio does not matter"


@pytest.mark.parametrize(
    ("decibels", "quiet"),
    [
        ([], 0),
        ([-30], 0),
        ([-90, -30, -50, -46], 2),
        ([-90, -30, -50, -44], 0),
        ([-30, -46, -80], 2),
        ([-30, -80, -31], 0),
    ],
)
def test_a_step_is_quiet_15_db_below_the_loudest(decibels: list[float], quiet: int) -> None:
    assert quiet_steps([10 ** (each / 10) for each in decibels]) == quiet
