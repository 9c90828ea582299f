"""Compare hotwords in every search with brute force over all texts."""

import itertools
import math
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_beam import beam_texts
from asr.decoding.ctc_prefix import BLANK, CtcPrefixScorer
from asr.decoding.decode import SpeechDecoder
from asr.decoding.hotword_scorer import Hotwords, HotwordScorer
from asr.decoding.hotwords import Hotword, as_hotwords
from asr.decoding.options import DecodingOptions
from asr.decoding.phrase_trie import PhraseTrie
from asr.decoding.prefix_beam import PrefixBeam
from asr.decoding.scorers import JointScorer
from asr.errors import ConfigError
from asr.tokenizer import Tokenizer, TokenizerConfig
from tests.helpers import (
    LETTERS,
    WORD_COUNTS,
    Table,
    TableState,
    V,
    all_texts,
    attention_logp,
    ctc_logp,
    step_of,
)

Text = tuple[int, ...]
Phrases = list[tuple[Text, float]]


def test_threads_that_share_a_decoder_have_their_own_hotwords() -> None:
    tokenizer = Tokenizer.train(["一二三四五六七八"], TokenizerConfig())
    model: Any = None
    decoder, n = SpeechDecoder(model, tokenizer), 3000
    asked = [DecodingOptions(hotwords=(Hotword(name),)) for name in ("Anna", "Bob", "Eve")]

    def warnings(options: DecodingOptions) -> list[str | None]:
        return [decoder.hotwords(options).warning for _ in range(n)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(warnings, asked))
    finally:
        sys.setswitchinterval(interval)
    for name, told in zip(("Anna", "Bob", "Eve"), found, strict=True):
        assert len(set(told)) == 1 and name in str(told[0])


def worth(text: Text, phrases: Phrases) -> float:
    """The definition: the most that phrases in a text which do not overlap are worth together."""
    if not text:
        return 0.0
    ways = [worth(text[1:], phrases)]
    for phrase, weight in phrases:
        if text[: len(phrase)] == phrase:
            ways.append(weight * max(1, len(phrase) - 1) + worth(text[len(phrase) :], phrases))
    return max(ways)


def draw_phrases(seed: int, n: int, longest: int = 3) -> Phrases:
    rng = random.Random(seed)
    texts = [tuple(rng.choices(LETTERS, k=rng.randint(1, longest))) for _ in range(n)]
    return [(text, rng.choice((0.5, 1.0, 2.5))) for text in texts]


@given(st.integers(0, 10**6), st.integers(1, 6), st.lists(st.sampled_from(LETTERS), max_size=9))
@settings(max_examples=300, deadline=None)
def test_a_text_has_the_most_that_its_phrases_are_worth(
    seed: int, n: int, letters: list[int]
) -> None:
    phrases, text = draw_phrases(seed, n, 4), tuple(letters)
    trie = PhraseTrie(phrases)
    state, total = trie.start(), 0.0
    for i, token in enumerate(text):
        firsts = dict(trie.first())
        expected = dict(trie.following(state)).get(token, firsts.get(token, 0.0) - state.added)
        added, state = trie.score(state, token)
        assert added == pytest.approx(expected) and added <= trie.most + 1e-9
        total += added
        assert total + trie.end(state) == pytest.approx(worth(text[: i + 1], phrases))
        assert state.added >= 0 and state.rest >= 0
    # No text that goes on with the running matches alone is worth more than was said.
    for more in itertools.product(LETTERS, repeat=2):
        if all(len(p) > 1 for p, _ in phrases) and not any(p[0] in more for p, _ in phrases):
            assert worth(text + more, phrases) <= total + state.rest + 1e-9


def test_a_bonus_grows_with_depth_and_is_taken_back() -> None:
    trie = PhraseTrie([((4, 5, 6), 1.5), ((4, 5, 4, 4), 1.5), ((6, 6), 1.0)])
    state, running = trie.start(), []
    for token in (4, 5, 4, 5, 6, 6):
        added, state = trie.score(state, token)
        running.append(added)
    # 4 5 4 fails at 5, where 4 5 begun later goes on; 4 5 6 is whole, and 6 6 begins after it.
    assert running == [0, 1.5, 1.5, -1.5, 1.5, 0] and trie.end(state) == 0
    assert trie.worth((4, 5)) == 0 and trie.worth((4, 5, 4)) == 0
    assert trie.worth((4, 5, 6, 4, 5, 6)) == 6 and trie.worth((5, 6)) == 0


def posteriors(seed: int, steps: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(steps, V, generator=generator) * 2).log_softmax(-1)


@pytest.mark.parametrize("seed", range(8))
def test_the_ctc_beam_equals_brute_force(seed: int) -> None:
    phrases = draw_phrases(seed, 3)
    logp_SV, trie, alpha = posteriors(seed, 4), PhraseTrie(phrases), 0.7
    exact = {
        text: alpha * ctc_logp(logp_SV, text) + math.sqrt(len(text)) + worth(text, phrases)
        for text in all_texts(4)
        if len(text) + sum(a == b for a, b in itertools.pairwise(text)) <= 4
    }
    best = max(exact, key=lambda text: exact[text])
    for beam_size in (200, 12):
        beam = PrefixBeam(beam_size, alpha, 1.0, WORD_COUNTS.tolist(), bonus=trie, threshold=0.0)
        beam.extend(logp_SV)
        found = beam.n_best()
        assert found[0].tokens == best
        assert found[0].score == pytest.approx(exact[best], abs=1e-4 if beam_size == 200 else 0.1)
    options = DecodingOptions(method="ctc_beam", beam_size=100, alpha=alpha, gamma=1.0, n_best=100)
    (nbest,) = beam_texts(logp_SV[None], torch.tensor([4]), options, WORD_COUNTS, hotwords=trie)
    for h in nbest:
        assert h.score == pytest.approx(exact[h.tokens], abs=1e-4)
        assert h.hotword_score == pytest.approx(worth(h.tokens, phrases))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("parts", ["both", "decoder", "ctc"])
def test_joint_search_equals_brute_force(seed: int, parts: str) -> None:
    limit, share, alpha = 3, {"both": 0.4, "decoder": 0.0, "ctc": 0.4}[parts], 0.7
    phrases, table, logp_SV = draw_phrases(seed, 3), Table([seed]), posteriors(seed, 4)
    options = DecodingOptions(beam_size=40, alpha=alpha, ctc_weight=share, n_best=40)
    ctc = CtcPrefixScorer(logp_SV[None], torch.tensor([4]), 40) if parts != "decoder" else None
    step, state = (None, None) if parts == "ctc" else (step_of(table), TableState(table, 40))
    hotwords = HotwordScorer(PhraseTrie(phrases), V, torch.zeros(1, 40))
    scorer = JointScorer(step, state, ctc, None, hotwords)
    (found,) = BeamSearch(options, WORD_COUNTS)(scorer, torch.tensor([limit]))
    if parts == "ctc":
        share = 1.0
    expected = {
        text: alpha * (1 - share) * attention_logp(table, seed, text)
        + (alpha * share * ctc_logp(logp_SV, text) if share else 0.0)
        + 0.1 * math.sqrt(len(text))
        + worth(text, phrases)
        for text in all_texts(limit)
    }
    assert found[0].tokens == max(expected, key=lambda text: expected[text])
    for h in found:
        assert h.score == pytest.approx(expected[h.tokens], abs=1e-3)
        assert h.hotword_score == pytest.approx(worth(h.tokens, phrases), abs=1e-5)


def test_the_next_token_of_a_hotword_is_a_candidate() -> None:
    """Of 60 tokens a beam of 2 looks at 16; those that end the phrase are the decoder's last."""
    n = 60
    decoder_V = (torch.arange(n, 0, -1) * 0.05).log_softmax(-1)
    decoder_V[2] = -20.0  # EOS, until the limit
    options = DecodingOptions(beam_size=2, gamma=0.0)
    for phrase in ((4, 59), (4, 59, 57)):
        hotwords = HotwordScorer(PhraseTrie([(phrase, 5.0)]), n, torch.zeros(1, 2))
        scorer = JointScorer(
            lambda tokens, _: decoder_V.expand(*tokens.shape, n), None, hotwords=hotwords
        )
        (found,) = BeamSearch(options, torch.zeros(n))(scorer, torch.tensor([2]))
        is_whole = len(phrase) == 2
        assert found[0].hotword_score == 5 * is_whole
        assert (found[0].tokens == phrase) == is_whole  # one that the limit cuts is worth nothing


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_a_phrase_that_never_matches_changes_nothing(seed: int, beam: int) -> None:
    never = PhraseTrie([((7, 4), 9.0), ((8,), 9.0)])  # tokens that no path has
    logp_SV = torch.full((12, 9), -1e9)
    logp_SV[:, :V] = posteriors(seed, 12)
    words_V, steps = torch.tensor([0.0] * 4 + [1.0] * 5), torch.tensor([12])
    options = DecodingOptions(method="ctc_beam", beam_size=beam, n_best=beam)
    wider = options.changed({"beam_size": beam + beam // 2})  # as wide as with hotwords
    without = beam_texts(logp_SV[None], steps, wider, words_V)[0]
    with_it = beam_texts(logp_SV[None], steps, options, words_V, hotwords=never)[0]
    assert [h.tokens for h in with_it][:1] == [h.tokens for h in without][:1] or (
        with_it[0].score >= without[0].score  # it extends worse prefixes by more tokens
    )
    table = Table([seed])
    found = []

    def step(tokens: Tensor, state: TableState) -> Tensor:
        logp_BWV = torch.full((*tokens.shape, 9), -1e9)
        logp_BWV[..., :V] = step_of(table)(tokens, state)
        return logp_BWV

    for trie in (None, never):
        hotwords = HotwordScorer(trie, 9, torch.zeros(1, beam)) if trie else None
        scorer = JointScorer(step, TableState(table, beam), hotwords=hotwords)
        found.append(BeamSearch(options, words_V)(scorer, torch.tensor([5]))[0])
    assert [h.tokens for h in found[0]] == [h.tokens for h in found[1]]
    for one, other in zip(*found, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)
        assert one.confidences == pytest.approx(other.confidences, abs=1e-5)


def test_utterances_of_a_batch_do_not_depend_on_each_other() -> None:
    phrases = draw_phrases(3, 4)
    limits = [1, 5, 3, 5, 2, 4, 5]

    def search(seeds: list[int], limits: list[int]) -> list[list[float]]:
        mine = Table(seeds)
        hotwords = HotwordScorer(PhraseTrie(phrases), V, torch.zeros(len(seeds), 3))
        scorer = JointScorer(step_of(mine), TableState(mine, 3), hotwords=hotwords)
        found = BeamSearch(DecodingOptions(beam_size=3, n_best=3), WORD_COUNTS)(
            scorer, torch.tensor(limits)
        )
        return [[h.score for h in nbest] for nbest in found]

    together = search(list(range(len(limits))), limits)
    for i, limit in enumerate(limits):
        assert search([i], [limit])[0] == pytest.approx(together[i], abs=1e-4)


def test_a_thousand_phrases_cost_little() -> None:
    rng = random.Random(0)
    n = 3000
    phrases = [(tuple(rng.choices(range(4, n), k=rng.randint(2, 8))), 1.5) for _ in range(1000)]
    logits_SV = torch.randn(400, n, generator=torch.Generator().manual_seed(0))
    logits_SV[:, BLANK] = 14.0
    for s in range(0, 400, 7):
        logits_SV[s, rng.sample(range(4, n), 3)] = torch.tensor([15.0, 13.0, 12.0])
    logp_SV, trie = logits_SV.log_softmax(-1), PhraseTrie(phrases)

    def seconds(bonus: PhraseTrie | None) -> float:
        start = time.process_time()
        for _ in range(3):
            PrefixBeam(8, gamma=0.1, num_words=[1.0] * n, bonus=bonus).extend(logp_SV)
        return time.process_time() - start

    seconds(trie)
    ratio = min(seconds(trie) for _ in range(3)) / min(seconds(None) for _ in range(3))
    assert ratio < 5  # of the search alone, about 2; the network takes far longer


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_phrase_is_found_within_chinese_text(kind: Any) -> None:
    """Tokens of several characters have a space before each text, and none behind a character."""
    texts = ["今天王小明去上海", "王小明来了", "我去 NEW YORK 工作", "去 NEW YORK", "他去北京"]
    tokenizer = Tokenizer.train(texts * 5, TokenizerConfig(kind=kind, vocab_size=30))
    for phrase, said in (("王小明", texts[:2]),):
        found = Hotwords.of((Hotword(phrase),), 2.0, tokenizer)
        assert found.trie and found.warning is None
        assert all(found.trie.worth(tokenizer.encode(text)) >= 2 for text in said)
        assert found.trie.worth(tokenizer.encode(texts[-1])) == 0


def test_phrases_are_given_in_many_ways() -> None:
    expected = (Hotword("北京", 9.0), Hotword("王小明"))
    ways: list[Any] = [
        {"北京": 9.0, "王小明": None}, [{"北京": 9.0}, "王小明"], [["北京", 9.0], ["王小明"]]
    ]  # fmt: skip
    for phrases in ways:
        assert as_hotwords(phrases) == expected
        assert DecodingOptions.model_validate({"hotwords": phrases}).hotwords == expected
    for wrong in (110, ["王小明", 2, 3], [], None, {"北京": 9.0, 110: 1.0}):
        with pytest.raises(ConfigError, match="is no phrase and no pair of a phrase"):
            as_hotwords([wrong])
        with pytest.raises(ValidationError, match="no phrase and no pair"):
            DecodingOptions.model_validate({"hotwords": [wrong]})
