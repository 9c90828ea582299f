"""Compare the prefix beam with sums over all paths, torch's CTC loss, and prefix scores."""

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import ctc_loss

from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_beam import beam_texts
from asr.decoding.ctc_prefix import BLANK, CtcPrefixScorer
from asr.decoding.hypothesis import NO_SPEECH
from asr.decoding.options import DecodingOptions
from asr.decoding.prefix import Prefix
from asr.decoding.prefix_beam import PrefixBeam
from asr.decoding.request import Request
from asr.decoding.scorers import JointScorer
from asr.tokenizer import SPECIAL
from tests.helpers import LETTERS, WORD_COUNTS, V

Text = tuple[int, ...]


def random_posteriors(seed: int, steps: int, size: int = V, sharpness: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(steps, size, generator=generator) * sharpness).log_softmax(-1)


def peaky_posteriors(seed: int, steps: int, size: int, text: Text) -> Tensor:
    """Posteriors of a text: blank but for a frame or two of each token, which has two rivals."""
    rng = random.Random(seed)
    logits_SV = torch.randn(steps, size, generator=torch.Generator().manual_seed(seed))
    logits_SV[:, BLANK] = 15.0
    starts = sorted(rng.sample(range(0, steps - 1, 3), len(text)))
    for start, token in zip(starts, text, strict=True):
        for s in range(start, start + rng.choice((1, 2))):
            logits_SV[s, rng.sample(range(len(SPECIAL), size), 2)] = 15.0 + rng.uniform(-4, -2)
            logits_SV[s, token] = 16.0
            logits_SV[s, BLANK] = 15.0 + rng.uniform(-9, -1)
    return logits_SV.log_softmax(-1)


def all_log_probs(logp_SV: Tensor) -> dict[Text, float]:
    """log P of each text that is possible: the sum over all paths that collapse to it."""
    p_SV, found = logp_SV.double().exp().tolist(), dict[Text, float]()
    for path in itertools.product((BLANK, *LETTERS), repeat=len(p_SV)):
        text = tuple(token for token, _ in itertools.groupby(path) if token != BLANK)
        p = math.prod(p_V[token] for p_V, token in zip(p_SV, path, strict=True))
        found[text] = found.get(text, 0.0) + p
    return {text: math.log(p) for text, p in found.items()}


def prefixes_of(beam: PrefixBeam) -> list[tuple[Text, float]]:
    """All prefixes that were ever in a beam, parents first, with log P that a text begins so."""
    texts: dict[Prefix, Text] = {}
    for node in beam._prefixes:
        texts[node] = (*texts[node.parent], node.token) if node.token >= 0 else ()
    return [(text, node.log_prob(node.mass)) for node, text in texts.items()]


def loss(logp_SV: Tensor, text: Text) -> float:
    """log P of a text by torch."""
    labels = torch.tensor([text], dtype=torch.long).view(1, -1)
    lengths = torch.tensor([len(logp_SV)]), torch.tensor([len(text)])
    return -float(ctc_loss(logp_SV[:, None].double(), labels, *lengths, BLANK, "none"))


def beam_of(logp_SV: Tensor, beam_size: int, **options) -> PrefixBeam:
    beam = PrefixBeam(beam_size, **options)
    beam.extend(logp_SV)
    return beam


@given(st.integers(0, 10**6), st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_a_beam_that_holds_everything_sums_over_all_paths(seed: int, steps: int) -> None:
    logp_SV = random_posteriors(seed, steps)
    found = beam_of(logp_SV, 200, threshold=0.0).n_best()
    exact = all_log_probs(logp_SV)
    assert {f.tokens for f in found} == exact.keys()
    assert all(f.log_prob == pytest.approx(exact[f.tokens], abs=1e-5) for f in found)
    assert [f.score for f in found] == sorted((f.score for f in found), reverse=True)


@pytest.mark.parametrize("seed", range(3))
def test_log_probabilities_equal_torchs_where_nothing_is_pruned(seed: int) -> None:
    logp_SV = random_posteriors(seed, 11, size=6)  # two letters: at most 4095 texts
    found = beam_of(logp_SV, 4095, threshold=0.0).n_best()
    assert len(found) > 400 and sum(math.exp(f.log_prob) for f in found) < 1
    for f in found[::9]:
        assert f.log_prob == pytest.approx(loss(logp_SV, f.tokens), abs=1e-4)


@given(st.integers(0, 10**6), st.integers(1, 12), st.data())
@settings(max_examples=30, deadline=None)
def test_blocks_of_any_size_give_the_same(seed: int, beam_size: int, data) -> None:
    text = tuple(random.Random(seed).choices(range(4, 300), k=8))
    logp_SV = peaky_posteriors(seed, 40, 300, text)
    if seed % 2:  # some frames with hundreds of tokens
        logp_SV[5:15] = random_posteriors(seed, 10, 300, 0.5)
    whole = beam_of(logp_SV, beam_size, gamma=0.1, num_words=[1.0] * 300)
    cuts = sorted(data.draw(st.lists(st.integers(0, 40), max_size=6)))
    beam = PrefixBeam(beam_size, gamma=0.1, num_words=[1.0] * 300)
    for begin, end in itertools.pairwise([0, *cuts, 40]):
        beam.extend(logp_SV[begin:end])
    assert beam.n_best() == whole.n_best()
    assert prefixes_of(beam) == prefixes_of(whole)


@given(st.integers(0, 10**6), st.sampled_from((0.01, 0.05, 0.2)))
@settings(max_examples=20, deadline=None)
def test_what_a_threshold_leaves_out_has_its_bound(seed: int, threshold: float) -> None:
    logp_SV = random_posteriors(seed, 4, sharpness=3.0)
    logp_SV[seed % 4] = torch.tensor([9.0, 0, 0, 0, 1, 0, 2]).log_softmax(-1)  # a blank frame
    p_SV = logp_SV.exp()
    p_SV[:, 1:4] = 0  # no text has them
    p_SV[:, 1:][p_SV[:, 1:] >= threshold] = 0
    p_SV[:, BLANK] = 0
    bound = 1 - float((1 - p_SV.double().sum(1)).prod())
    found = {
        f.tokens: math.exp(f.log_prob) for f in beam_of(logp_SV, 200, threshold=threshold).n_best()
    }
    exact = {text: math.exp(log_p) for text, log_p in all_log_probs(logp_SV).items()}
    missing = {text: p - found.get(text, 0.0) for text, p in exact.items()}
    assert all(value >= -1e-6 for value in missing.values())
    assert sum(missing.values()) <= bound + 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_peaky_posteriors_have_the_texts_of_the_search_by_tokens(seed: int) -> None:
    rng, size = random.Random(seed), 400
    text = tuple(rng.choices(range(4, size), k=10))
    text = (*text[:5], text[4], *text[5:])  # a token twice in a row
    logp_SV = peaky_posteriors(seed, 60, size, text)
    options = DecodingOptions(method="ctc_beam", n_best=1)
    steps, words_V = torch.tensor([60]), torch.tensor([0.0] * 4 + [1.0] * (size - 4))
    ((best,),) = beam_texts(logp_SV[None], steps, options, words_V)
    scorer = JointScorer(None, None, CtcPrefixScorer(logp_SV[None], steps, 8))
    ((other,),) = BeamSearch(options, words_V)(scorer, steps)
    assert best.tokens == other.tokens == text
    assert best.score == pytest.approx(other.score, abs=1e-4)
    assert best.ctc_log_prob == pytest.approx(loss(logp_SV, text), abs=1e-4)
    assert best.length_score == pytest.approx(other.length_score)
    assert best.confidences == pytest.approx(other.confidences, abs=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_prefixes_and_confidences_are_the_prefix_scores(seed: int) -> None:
    logp_SV = random_posteriors(seed, 5)
    logp_SV[:, 1:4] = -math.inf
    logp_SV = logp_SV.log_softmax(-1)
    beam = beam_of(logp_SV, 500, threshold=0.0)
    prefixes = dict(prefixes_of(beam))
    assert () in prefixes and all(text[:-1] in prefixes for text in prefixes)
    for text in random.Random(seed).sample(sorted(prefixes), 20):
        scorer, expected = CtcPrefixScorer(logp_SV[None], torch.tensor([5]), 1), 0.0
        for token in text:
            expected = scorer.score(torch.tensor([[[token]]])).item()
            scorer.advance(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[token]]))
        assert prefixes[text] == pytest.approx(expected, abs=1e-4)
    for f in beam.n_best()[:20]:
        masses = [prefixes[f.tokens[:u]] for u in range(len(f.tokens) + 1)]
        shares = [math.exp(b - a) for a, b in itertools.pairwise(masses)]
        assert f.confidences == pytest.approx(shares, abs=1e-4)


class Bigram:
    """A made-up model of tokens after tokens; a state is the last token."""

    most = 0.0

    def start(self) -> int:
        return 1

    def score(self, state: int, token: int) -> tuple[float, int]:
        return -((3 * state + 5 * token) % 7) / 3, token

    def end(self, state: int) -> float:
        return -state / 9


class Phrase:
    """A bonus for each token of a phrase, taken back where the phrase breaks off."""

    def __init__(self, phrase: Text, bonus: float) -> None:
        self.phrase, self.most, self.bonus = phrase, bonus, bonus

    def start(self) -> int:
        return 0

    def score(self, state: int, token: int) -> tuple[float, int]:
        if token == self.phrase[state]:
            return self.bonus, (state + 1) % len(self.phrase)
        begins = token == self.phrase[0]
        return self.bonus * (begins - state), int(begins)

    def end(self, state: int) -> float:
        return -self.bonus * state


def total(scorer, text: Text) -> float:
    """What a scorer gives a text."""
    state, added = scorer.start(), 0.0
    for token in text:
        more, state = scorer.score(state, token)
        added += more
    return added + scorer.end(state)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("words", [(1.0, 1.0, 1.0), (0.0, 1.0, 2.0)])
@pytest.mark.parametrize("lm_bonus", [0.0, 1.7])
def test_scores_of_tokens_add_up_and_order_the_beam(
    seed: int, words: tuple[float, ...], lm_bonus: float
) -> None:
    logp_SV, lm, bonus = random_posteriors(seed, 4), Bigram(), Phrase((4, 6), 3.0)
    num_words, alpha = [0.0] * 4 + list(words), 0.7
    options = {"alpha": alpha, "gamma": 1.5, "num_words": num_words, "lm": lm, "lm_weight": 0.8}
    options["lm_bonus"] = lm_bonus
    exact = {}
    for text, ctc in all_log_probs(logp_SV).items():
        length = 1.5 * math.sqrt(sum(num_words[t] for t in text)) + 0.8 * lm_bonus * len(text)
        exact[text] = alpha * ctc + 0.8 * total(lm, text) + total(bonus, text) + length
    everything = beam_of(logp_SV, 200, bonus=bonus, threshold=0.0, **options).n_best()
    best = max(exact, key=lambda text: exact[text])
    assert everything[0].tokens == best
    for f in everything:
        assert f.score == pytest.approx(exact[f.tokens], abs=1e-4)
        assert f.lm_log_prob == pytest.approx(total(lm, f.tokens), abs=1e-9)
    narrow = beam_of(logp_SV, 12, bonus=bonus, threshold=0.0, **options).n_best()
    assert narrow[0].tokens == best


@pytest.mark.parametrize("seed", range(8))
def test_what_is_not_looked_at_could_not_enter_the_beam(seed: int) -> None:
    logp_SV, num_words = random_posteriors(seed, 30, size=40, sharpness=3.0), [1.0] * 40
    beams = [PrefixBeam(5, 0.7, 0.4, num_words, Bigram(), 0.8, lm_bonus=5.0) for _ in range(2)]
    beams[1]._most = math.inf  # so that no bound ends a search for extensions
    for beam in beams:
        beam.extend(logp_SV)
    assert beams[0].n_best() == beams[1].n_best()
    without = PrefixBeam(5, 0.7, 0.4, num_words, Bigram(), 0.8)
    without.extend(logp_SV)
    lengths = [len(beam.n_best()[0].tokens) for beam in (beams[0], without)]
    assert lengths[0] > lengths[1]


def test_a_late_prefix_is_extended_by_what_the_language_model_expects() -> None:
    """Of the third prefix's tokens the likeliest by the language model is the last by CTC."""
    tokens, size = list(range(4, 12)), 12
    first = torch.full((size,), 1e-9)
    first[tokens[:3]] = torch.tensor([0.4, 0.35, 0.25])
    second = torch.full((size,), 1e-9)
    second[tokens[3:]] = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1])

    class Pair(Bigram):
        def score(self, state: int, token: int) -> tuple[float, int]:
            is_pair = state == tokens[2] and token == tokens[-1]
            return (0.0 if is_pair or state == self.start() else -5.0), token

        def end(self, state: int) -> float:
            return 0.0

    beam = PrefixBeam(4, lm=Pair(), lm_weight=1.0)
    beam.extend(torch.stack([first, second]).log())
    assert beam.n_best()[0].tokens == (tokens[2], tokens[-1])


@pytest.mark.parametrize("seed", range(4))
def test_a_language_model_gives_a_bonus_back_with_each_token(seed: int) -> None:
    """By its weight, so without the model there is none."""
    logp_BSV, steps, lm = random_posteriors(seed, 4)[None], torch.tensor([4]), Bigram()
    shared = {"method": "ctc_beam", "lm": "lm", "lm_weight": 0.8, "beam_size": 200, "n_best": 200}
    without, options = DecodingOptions(**shared), DecodingOptions(lm_bonus=1.7, **shared)
    (plain,) = beam_texts(logp_BSV, steps, without, WORD_COUNTS, lm)
    (found,) = beam_texts(logp_BSV, steps, options, WORD_COUNTS, lm)
    scores = {h.tokens: h.score + 0.8 * 1.7 * len(h.tokens) for h in plain}
    assert {h.tokens: h.score for h in found} == pytest.approx(scores, abs=1e-4)
    assert found[0].tokens == max(scores, key=scores.__getitem__)
    for h in found:
        length = 0.1 * math.sqrt(len(h.tokens)) + 0.8 * 1.7 * len(h.tokens)
        assert h.length_score == pytest.approx(length, abs=1e-6)
        assert h.lm_log_prob == pytest.approx(total(lm, h.tokens), abs=1e-9)
    alone = (beam_texts(logp_BSV, steps, o, WORD_COUNTS) for o in (options, without))
    assert next(alone) == next(alone)


@pytest.mark.parametrize("seed", range(4))
def test_confidences_with_a_language_model_are_shares_by_both(seed: int) -> None:
    logp_SV, lm = random_posteriors(seed, 4), Bigram()
    logp_SV[:, 1:4] = -math.inf
    logp_SV = logp_SV.log_softmax(-1)
    beam = beam_of(logp_SV, 300, lm=lm, lm_weight=0.5, threshold=0.0)
    prefixes, exact = dict(prefixes_of(beam)), all_log_probs(logp_SV)
    for f in beam.n_best()[:20]:
        for u, token in enumerate(f.tokens):
            before, state = f.tokens[:u], f.tokens[u - 1] if u else lm.start()
            part = {
                t: prefixes[(*before, t)] + 0.5 * lm.score(state, t)[0]
                for t in LETTERS
                if (*before, t) in prefixes
            }
            ended = exact[before] + 0.5 * lm.end(state)
            whole = sum(map(math.exp, [*part.values(), ended]))
            assert f.confidences[u] == pytest.approx(math.exp(part[token]) / whole, abs=1e-4)


def test_many_uncertain_frames_neither_underflow_nor_overflow() -> None:
    logp_SV = random_posteriors(0, 1500, size=30, sharpness=0.3)
    (best, *_) = beam_of(logp_SV, 4, bonus=Phrase((4, 5), 9.0)).n_best()
    assert len(best.tokens) > 100 and best.log_prob < -1000
    assert all(0 <= c <= 1 for c in best.confidences)
    assert best.log_prob <= loss(logp_SV, best.tokens) + 1e-6
    certain = torch.full((5, 30), -math.inf)
    certain[:, 3] = 0.0  # all is <unk>, which no text has
    (only,) = beam_of(certain, 4).n_best()
    assert only.tokens == () and math.isfinite(only.score)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alpha", [0.01, 0.1])
def test_a_small_weight_of_the_ctc_head_is_no_fault(seed: int, alpha: float) -> None:
    logp_SV = random_posteriors(seed, 30, size=8, sharpness=4.0)
    words = [0.0] * 4 + [1.0, 2.0, 0.0, 1.0]
    options = {"alpha": alpha, "gamma": 5.0, "num_words": words, "bonus": Phrase((4, 5), 9.0)}
    for found in beam_of(logp_SV, 8, **options).n_best():
        assert math.isfinite(found.score) and found.log_prob <= 1e-6
        assert all(0 <= c <= 1.0001 for c in found.confidences)


def test_a_cancelled_utterance_ends_and_the_others_do_not() -> None:
    logp_BSV = torch.stack([random_posteriors(seed, 200) for seed in range(3)])
    steps, requests = torch.tensor([200, 200, 150]), [Request() for _ in range(3)]
    requests[1].is_cancelled = True
    options = DecodingOptions(method="ctc_beam", beam_size=4)
    found = beam_texts(logp_BSV, steps, options, WORD_COUNTS, requests=requests)
    assert found[1] == [NO_SPEECH]
    assert found[::2] == beam_texts(logp_BSV[::2], steps[::2], options, WORD_COUNTS)
    assert [request.n_steps > 1 for request in requests] == [True, False, True]
