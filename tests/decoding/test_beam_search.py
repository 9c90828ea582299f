"""Compare beam search with brute force over all sequences, CTC prefix scores with all paths."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_prefix import BLANK, CtcPrefixScorer
from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import DecodingOptions
from asr.decoding.request import Request
from asr.decoding.scorers import JointScorer
from asr.tokenizer import EOS
from tests.helpers import (
    LETTERS,
    WORD_COUNTS,
    Table,
    TableState,
    V,
    all_texts,
    attention_logp,
    ctc_logp,
    search,
    step_of,
)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gamma", [0.0, 0.1, 2.0])
def test_a_beam_that_holds_everything_equals_brute_force(seed: int, gamma: float) -> None:
    table, limit = Table([seed]), 4
    config = DecodingOptions(beam_size=121, alpha=0.7, gamma=gamma, n_best=5)
    scored = sorted(
        (
            (0.7 * attention_logp(table, seed, text) + gamma * math.sqrt(len(text)), text)
            for text in all_texts(limit)
        ),
        reverse=True,
    )
    found = search(table, [limit], config)[0]
    assert found[0].tokens == scored[0][1]
    assert found[0].score == pytest.approx(scored[0][0], abs=1e-4)
    assert found[0].log_prob == pytest.approx(attention_logp(table, seed, scored[0][1]), abs=1e-4)
    by_text = {text: score for score, text in scored}
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(by_text[hypothesis.tokens], abs=1e-4)
        assert hypothesis.ended == ("length" if len(hypothesis.tokens) == limit else "eos")
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


@pytest.mark.parametrize("seed", range(4))
def test_joint_search_equals_brute_force(seed: int) -> None:
    limit, share = 3, 0.4
    table = Table([seed])
    torch.manual_seed(seed)
    logp_SV = (torch.randn(4, V) * 2).log_softmax(-1)
    config = DecodingOptions(beam_size=40, gamma=0.1, ctc_weight=share, n_best=40)
    ctc = CtcPrefixScorer(logp_SV[None], torch.tensor([4]), 40)
    found = search(table, [limit], config, ctc)[0]
    expected = {
        text: (1 - share) * attention_logp(table, seed, text)
        + share * ctc_logp(logp_SV, text)
        + 0.1 * math.sqrt(len(text))
        for text in all_texts(limit)
    }
    best = max(expected, key=lambda text: expected[text])
    assert found[0].tokens == best
    for h in found:
        assert h.score == pytest.approx(expected[h.tokens], abs=1e-3)
        assert h.ctc_log_prob == pytest.approx(ctc_logp(logp_SV, h.tokens), abs=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_what_only_ctc_finds_is_a_candidate(seed: int) -> None:
    """Of 60 tokens a beam of 2 looks at 16; the best may be among the decoder's last."""
    n, share, generator = 60, 0.5, torch.Generator().manual_seed(seed)
    decoder_V = (torch.randn(n, generator=generator) * 3).log_softmax(-1)
    token = int(decoder_V[4:].argmin()) + 4
    logp_SV = (torch.randn(2, n, generator=generator) * 0.1).index_fill(1, torch.tensor(token), 20)
    logp_SV = logp_SV.log_softmax(-1)
    ctc = CtcPrefixScorer(logp_SV[None], torch.tensor([2]), 2)
    scorer = JointScorer(lambda tokens, _: decoder_V.expand(*tokens.shape, n), None, ctc)
    config = DecodingOptions(beam_size=2, ctc_weight=share)
    (found,) = BeamSearch(config, torch.zeros(n))(scorer, torch.tensor([2]))
    both_ways = 2 * math.exp(logp_SV[0, token] + logp_SV[0, BLANK])  # the other frame is blank
    twice = math.exp(2 * logp_SV[0, token])
    assert found[0].tokens == (token,)
    assert found[0].ctc_log_prob == pytest.approx(math.log(both_ways + twice), abs=1e-4)


@given(st.integers(0, 10**6), st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_ctc_prefix_scores_are_sums_over_all_paths(seed: int, text: list[int]) -> None:
    logp_SV = torch.randn(4, V, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
    padded = torch.cat((logp_SV, torch.randn(3, V)))  # padding is ignored
    scorer = CtcPrefixScorer(padded[None], torch.tensor([4]), 1)
    for token in text[:-1]:
        scorer.advance(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[token]]))
    with_last = scorer.score(torch.tensor([[[text[-1]]]])).item()
    total = 0.0
    for path in itertools.product(range(V), repeat=4):
        collapsed = [k for k, _ in itertools.groupby(path)]
        if [t for t in collapsed if t != BLANK][: len(text)] == text:
            total += math.exp(sum(float(logp_SV[s, t]) for s, t in enumerate(path)))
    assert with_last == pytest.approx(math.log(total), abs=1e-6) if total else with_last < -1e6
    scorer.advance(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[text[-1]]]))
    whole = ctc_logp(logp_SV, tuple(text))
    assert scorer.total_BW.item() == pytest.approx(whole, abs=1e-6) if total else True


def test_a_beam_of_one_is_greedy() -> None:
    for seed in range(30):
        table, prefix = Table([seed]), ()
        while len(prefix) < 6:
            logp = table.logp(seed, prefix)
            best = max((EOS, *LETTERS), key=lambda t: float(logp[t]))
            if best == EOS:
                break
            prefix = (*prefix, best)
        config = DecodingOptions(beam_size=1, gamma=0.0)
        assert search(table, [6], config)[0][0].tokens == prefix


@given(st.lists(st.integers(0, 9), min_size=2, max_size=9), st.integers(1, 5), st.data())
@settings(max_examples=40, deadline=None)
def test_a_result_does_not_depend_on_the_rest_of_its_batch(seeds, beam, data) -> None:
    limits = [data.draw(st.integers(0, 7)) for _ in seeds]
    config = DecodingOptions(beam_size=beam, gamma=0.1)
    together = search(Table(seeds), limits, config)
    for seed, limit, found in zip(seeds, limits, together, strict=True):
        alone = search(Table([seed]), [limit], config)[0]
        assert [h.tokens for h in alone] == [h.tokens for h in found]
        assert [h.score for h in alone] == pytest.approx([h.score for h in found], abs=1e-4)


def test_a_wider_beam_never_finds_a_worse_text_here() -> None:
    table = Table(list(range(20)), sharpness=0.3)
    scores = [
        [nbest[0].score for nbest in search(table, [5] * 20, DecodingOptions(beam_size=b))]
        for b in (1, 3, 9, 200)
    ]
    assert sum(scores[0]) < sum(scores[1]) < sum(scores[3])
    assert all(s <= best + 1e-5 for row in scores for s, best in zip(row, scores[3], strict=True))


class Stutter(Table):
    """A language that repeats one phrase without end."""

    def __init__(self, phrase: tuple[int, ...]) -> None:
        super().__init__([0])
        self.phrase = phrase

    def logp(self, seed: int, prefix: tuple[int, ...]) -> Tensor:
        logits = torch.zeros(V)
        logits[self.phrase[len(prefix) % len(self.phrase)]] = 12.0
        return logits.log_softmax(-1)


@pytest.mark.parametrize("phrase", [(4,), (4, 5), (4, 5, 6), (4, 4, 5, 6, 5)])
def test_repetition_ends(phrase: tuple[int, ...]) -> None:
    (found,) = search(Stutter(phrase), [200], DecodingOptions(beam_size=4))
    text, n = found[0].tokens, len(phrase)
    runs = max(8, 4 * n)
    for i in range(len(text) - runs):
        assert any(text[j] != text[j + n] for j in range(i, i + runs + 1 - n))


def test_texts_are_never_longer_than_the_audio_allows() -> None:
    (found,) = search(Stutter((4, 5, 6)), [5], DecodingOptions(beam_size=2))
    assert isinstance(found[0], Hypothesis)
    assert found[0].tokens == (4, 5, 6, 4, 5)
    assert found[0].ended == "length"


class Cancelling(Stutter):
    """An endless language whose requests are cancelled while a step is computed."""

    def __init__(self, requests: list[Request], steps: list[int]) -> None:
        super().__init__((4, 5, 6))
        self.seeds, self.requests, self.steps = list(range(len(requests))), requests, steps

    def logp(self, seed: int, prefix: tuple[int, ...]) -> Tensor:
        if len(prefix) == self.steps[seed]:
            self.requests[seed].is_cancelled = True
        return super().logp(seed, prefix)


def test_a_cancelled_request_ends_within_a_step_and_steps_are_counted() -> None:
    requests, limit = [Request() for _ in range(3)], 12
    table = Cancelling(requests, steps=[0, 5, 99])
    scorer = JointScorer(step_of(table), TableState(table, 2), None)
    beam_search = BeamSearch(DecodingOptions(beam_size=2), WORD_COUNTS)
    found = beam_search(scorer, torch.full((3,), limit), requests)
    assert [request.n_steps for request in requests] == [1, 6, limit + 1]
    assert [request.is_cancelled for request in requests] == [True, True, False]
    assert [nbest[0].ended for nbest in found] == ["no_speech", "no_speech", "length"]
    alone = search(Stutter((4, 5, 6)), [limit], DecodingOptions(beam_size=2))[0]
    assert found[2][0].tokens == alone[0].tokens


def test_a_cancelled_request_keeps_the_hypotheses_that_have_ended() -> None:
    class Ending(Table):
        """A language whose texts may end at once, but more likely continue."""

        def logp(self, seed: int, prefix: tuple[int, ...]) -> Tensor:
            logits = torch.full((V,), -9.0)
            logits[4], logits[EOS] = 0.0, -0.1
            if len(prefix) == 2:
                request.is_cancelled = True
            return logits.log_softmax(-1)

    request, table = Request(), Ending([0])
    scorer = JointScorer(step_of(table), TableState(table, 4), None)
    options = DecodingOptions(beam_size=4, gamma=8.0, n_best=4)
    (found,) = BeamSearch(options, WORD_COUNTS)(scorer, torch.tensor([50]), [request])
    assert request.n_steps == 3
    assert sorted(h.tokens for h in found) == [(), (4,), (4, 4)]
    assert all(h.ended == "eos" for h in found)
