"""Compare CTC decoding and rescoring with sums over all paths; check scores and silence."""

import math
import random
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.decoding.ctc_beam import beam_texts
from asr.decoding.ctc_greedy import greedy_texts
from asr.decoding.ctc_prefix import BLANK
from asr.decoding.decode import is_constant
from asr.decoding.hypothesis import UNCERTAIN, Hypothesis
from asr.decoding.options import DecodingOptions
from asr.decoding.rescoring import rescore
from asr.errors import ConfigError
from asr.lm.ngram import NGram, tables_of
from asr.model.inference.decoder import for_inference
from asr.tokenizer import EOS
from tests.helpers import (
    LETTERS,
    METHODS,
    WORD_COUNTS,
    Table,
    V,
    all_texts,
    attention_logp,
    ctc_logp,
    same,
    search,
    texts_of,
    tiny_model,
)


def head(seed: int, steps: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(steps, V, generator=generator) * 2).log_softmax(-1)


def ctc_beam(logp_SV: torch.Tensor, config: DecodingOptions) -> list[Hypothesis]:
    return beam_texts(logp_SV[None], torch.tensor([len(logp_SV)]), config, WORD_COUNTS)[0]


@pytest.mark.parametrize("seed", range(4))
def test_the_ctc_prefix_beam_equals_brute_force_over_all_paths(seed: int) -> None:
    logp_SV = head(seed)
    config = DecodingOptions(method="ctc_beam", beam_size=121, gamma=0.3, n_best=9)
    expected = {t: ctc_logp(logp_SV, t) for t in all_texts(4)}
    scores = {t: p + 0.3 * math.sqrt(len(t)) for t, p in expected.items()}
    found = ctc_beam(logp_SV, config)
    best = sorted(scores, key=lambda t: -scores[t])
    assert found[0].tokens == best[0]
    for h in found:
        assert h.log_prob is None
        assert h.ctc_log_prob == pytest.approx(expected[h.tokens], abs=1e-4)
        assert h.score == pytest.approx(scores[h.tokens], abs=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_greedy_ctc_is_the_likeliest_path_collapsed(seed: int) -> None:
    logp_BSV = torch.stack((head(seed, 5), head(seed + 100, 5)))
    steps = torch.tensor([5, 3])  # the last two frames of the second are padding
    found = greedy_texts(logp_BSV, steps, DecodingOptions(gamma=0.1), WORD_COUNTS)
    for h, logp_SV, n in zip(found, logp_BSV, steps.tolist(), strict=True):
        text, peaks, last = [], [], BLANK
        for frame in logp_SV[:n]:
            token = max((BLANK, *LETTERS), key=lambda k: float(frame[k]))
            if token not in (BLANK, last):
                text.append(token)
                peaks.append(0.0)
            if token != BLANK:
                peaks[-1] = max(peaks[-1], math.exp(frame[token]))
            last = token
        assert h.tokens == tuple(text)
        assert h.confidences == pytest.approx(peaks, abs=1e-5)
        assert h.ctc_log_prob == pytest.approx(ctc_logp(logp_SV[:n], h.tokens), abs=1e-4)
        assert h.score == pytest.approx(h.ctc_log_prob + 0.1 * math.sqrt(len(text)), abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_rescoring_puts_the_first_pass_in_the_joint_order(seed: int) -> None:
    logp_SV, table, share = head(seed), Table([seed]), 0.3
    config = DecodingOptions(method="rescore", beam_size=6, ctc_weight=share, n_best=3)
    first = ctc_beam(logp_SV, config.first_pass)
    assert len(first) == 6

    def log_probs(tokens_BWU: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        rows = []
        for text in tokens_BWU[0].tolist():
            pairs = [(tuple(text[1:u]), text[u]) for u in range(1, len(text))]
            rows.append([float(table.logp(seed, prefix)[token]) for prefix, token in pairs])
        return torch.tensor(rows)[None]

    (found,) = rescore(log_probs, [first], config, torch.device("cpu"))
    expected = {
        h.tokens: (1 - share) * attention_logp(table, seed, h.tokens)
        + share * ctc_logp(logp_SV, h.tokens)
        + 0.1 * math.sqrt(len(h.tokens))
        for h in first
    }
    assert [h.tokens for h in found] == sorted(expected, key=lambda t: -expected[t])[:3]
    for h in found:
        assert h.score == pytest.approx(expected[h.tokens], abs=1e-4)
        assert h.log_prob == pytest.approx(attention_logp(table, seed, h.tokens), abs=1e-4)
        (before,) = [other.confidences for other in first if other.tokens == h.tokens]
        for u, (token, confidence) in enumerate(zip(h.tokens, h.confidences, strict=True)):
            p = float(table.logp(seed, h.tokens[:u])[token].exp())
            assert confidence == pytest.approx(p ** (1 - share) * before[u] ** share, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_parts_add_up_and_confidences_are_the_tokens_own_probabilities(seed: int) -> None:
    table = Table([seed])
    for h in search(table, [4], DecodingOptions(beam_size=20, gamma=0.5))[0]:
        assert h.score == pytest.approx(h.log_prob + h.length_score, abs=1e-4)
        assert h.length_score == pytest.approx(0.5 * math.sqrt(len(h.tokens)), abs=1e-5)
        assert (h.ctc_log_prob, h.lm_log_prob) == (None, None)
        for i, (token, confidence) in enumerate(zip(h.tokens, h.confidences, strict=True)):
            p = table.logp(seed, h.tokens[:i]).exp()
            assert confidence == pytest.approx(float(p[token] / p[[EOS, *LETTERS]].sum()), abs=1e-4)


BIGRAMS = {(t,): (-1.0, -0.2) for t in range(V)} | {(4, 5): (-0.2, 0.0), (6, EOS): (-0.3, 0.0)}


@contextmanager
def threads(n: int):
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.costly
@given(
    st.sampled_from(METHODS), st.integers(1, 6), st.sampled_from((0.0, 0.4)), st.booleans(),
    st.lists(st.integers(4, 40), min_size=1, max_size=6), st.integers(0, 30), st.integers(0, 9999),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_texts_and_scores_depend_on_nothing_but_the_utterance(
    method, beam, share, with_lm, frames, padding, seed
) -> None:
    """Compare the trained decoder alone with its fast form in a batch, on one thread or two."""
    model, fast = tiny_model(seed=seed % 7), tiny_model(seed=seed % 7)
    fast.decoder = for_inference(fast.decoder)
    generator = torch.Generator().manual_seed(seed)
    feats = [torch.randn(n, 8, generator=generator) for n in frames]
    config = DecodingOptions(
        method=method, beam_size=beam, ctc_weight=share, n_best=3,
        confidence_threshold=0.4 * (seed % 2),
    )  # fmt: skip
    lm = NGram(tables_of(BIGRAMS), V) if with_lm else None
    if lm:
        config = config.model_copy(update={"lm_weight": 0.5})
    alone = [texts_of(model, [f], config, lm=lm)[0] for f in feats]
    order = random.Random(seed).sample(range(len(feats)), len(feats))
    with threads(1 + seed % 3 % 2):
        together = texts_of(fast, [feats[i] for i in order], config, padding, lm)
    for i, found in zip(order, together, strict=True):
        same(found, alone[i])


@pytest.mark.parametrize("change", [{"method": m} for m in METHODS[1:]] + [{"ctc_weight": 0.2}])
def test_what_needs_a_ctc_head_is_refused_without_one(change) -> None:
    model = tiny_model(ctc_weight=0.0)
    with pytest.raises(ConfigError, match=r"decoding\.method .* no CTC head"):
        texts_of(model, [torch.randn(20, 8)], DecodingOptions(**change))


@pytest.mark.parametrize("method", METHODS)
def test_where_ctc_finds_no_token_there_is_no_speech(method) -> None:
    model, feats = tiny_model(), [torch.randn(20, 8), torch.randn(12, 8)]
    assert all(n[0].ended != "no_speech" for n in texts_of(model, feats, DecodingOptions()))
    model.ctc_head.bias.data[BLANK] += 30.0
    found = texts_of(model, feats, DecodingOptions(method=method))
    assert [(n[0].tokens, n[0].ended, len(n)) for n in found] == [((), "no_speech", 1)] * 2
    spoken = texts_of(model, feats, DecodingOptions(method=method, speech_threshold=0.0))
    assert all(n[0].ended != "no_speech" for n in spoken)


@pytest.mark.parametrize("method", METHODS)
def test_a_text_of_guesses_is_left_out_and_listed(method) -> None:
    model, feats = tiny_model(), [torch.randn(n, 8) for n in (20, 12, 33)]
    config = DecodingOptions(method=method, ctc_weight=0.4, confidence_threshold=0.0)
    free = texts_of(model, feats, config)
    means = [torch.tensor(n[0].confidences).log().mean().exp().item() for n in free]
    assert max(means) - min(means) > 1e-3
    between = sorted(means)[1] + 1e-6
    found = texts_of(model, feats, config.model_copy(update={"confidence_threshold": between}))
    for nbest, before, mean in zip(found, free, means, strict=True):
        assert nbest == ([UNCERTAIN, *before] if mean < between else before)


def test_a_threshold_stays_with_its_head() -> None:
    joint = DecodingOptions(confidence_threshold=0.3)
    greedy = joint.model_copy(update={"method": "ctc_greedy"})
    assert joint.changed({"method": "rescore"}).confidence_threshold is None
    assert greedy.changed({"method": "joint", "beam_size": 4}).confidence_threshold is None
    assert greedy.changed({"method": "ctc_beam"}).confidence_threshold == 0.3
    assert joint.changed({"beam_size": 4}).confidence_threshold == 0.3
    given = {"method": "ctc_beam", "confidence_threshold": 0.2}
    assert joint.changed(given).confidence_threshold == 0.2


def test_digital_silence_is_a_constant_wave() -> None:
    assert is_constant(torch.zeros(100)) and is_constant(torch.full((9,), 0.3))
    assert is_constant(torch.zeros(0))
    assert not is_constant(torch.tensor([0.0, 1e-6]))
