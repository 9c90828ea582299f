"""Compare speculative joint search with the search step by step, which must find the same."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.decoding import speculation
from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_greedy import greedy_texts
from asr.decoding.ctc_prefix import CtcPrefixScorer
from asr.decoding.decode import Encoded, SpeechDecoder
from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import DecodingOptions
from asr.decoding.request import Request
from asr.decoding.scorers import JointScorer, LmScorer
from asr.decoding.speculation import search_one
from asr.model.inference.decoder import FastDecoder
from asr.model.inference.tree import PrefixTree
from asr.model.projection import DenseConfig, LowRankConfig
from asr.model.transformer import DecoderConfig, ModelConfig
from asr.tokenizer import EOS, SOS

V, D, S = 40, 16, 9
PROJECTIONS = {"dense": DenseConfig(), "low_rank": LowRankConfig(rank=4)}


class BigramLm:
    """A random bigram model, which counts no passes: an independent LmScorer."""

    def __init__(self, seed: int) -> None:
        logits_VV = torch.randn(V, V, generator=torch.Generator().manual_seed(seed))
        self.logp_VV, self.last_BW = logits_VV.log_softmax(-1), torch.empty(0)

    def start(self, n_utterances: int, n_hypotheses: int, _: torch.device) -> LmScorer:
        scorer = BigramLm(0)
        scorer.logp_VV = self.logp_VV
        scorer.last_BW = torch.full((n_utterances, n_hypotheses), SOS)
        return scorer

    def score(self, tokens_BWK: Tensor) -> Tensor:
        return self.logp_VV[self.last_BW[..., None], tokens_BWK]

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        self.last_BW = tokens_BW

    def select(self, indices: Tensor) -> None:
        self.last_BW = self.last_BW[indices]


class Words:
    """A tokenizer whose tokens count as 0, 1 or 2 words."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = list(counts)

    def word_counts(self) -> list[int]:
        return self.counts

    def decode(self, tokens: tuple[int, ...]) -> str:
        return " ".join(map(str, tokens))


def build(
    seed: int, projection: str, norm: str = "post", counts: Sequence[int] = (1,) * V
) -> tuple[SpeechDecoder, Encoded]:
    """Return a random recognizer with sharp distributions, and a random encoder output."""
    torch.manual_seed(seed)
    config = ModelConfig(
        d_model=D, d_inner=2 * D, n_heads=2, norm=norm, projection=PROJECTIONS[projection],
        ctc_weight=0.3, decoder=DecoderConfig(n_layers=2),
    )  # fmt: skip
    model = config.build(20, V).eval()
    with torch.no_grad():
        model.decoder.output.weight.mul_(4 * torch.rand(()))
        model.decoder.output.bias[EOS] += 2
    model.decoder = FastDecoder(model.decoder)
    logp_SV = (torch.randn(S, V) * 5 * torch.rand(())).log_softmax(-1)
    mask = torch.arange(S)[None] < int(torch.randint(1, S + 1, ()))
    return (
        SpeechDecoder(model, Words(counts)),  # type: ignore[arg-type]
        Encoded(torch.randn(1, S, D), mask, logp_SV[None]),
    )


def both(
    recognizer: SpeechDecoder, encoded: Encoded, options: DecodingOptions, lm: BigramLm | None
) -> tuple[list[Hypothesis], list[Hypothesis]]:
    """Return the n best of the speculative search and of the search step by step."""
    found = []
    for recognizer.speculates in (True, False):
        with pytest.MonkeyPatch.context() as patch:  # speculate however unsure the draft is
            patch.setattr(speculation, "_LEAST_SCORE", -torch.inf)
            (nbest,) = recognizer.decode(encoded, options, lm)
        found.append(nbest)
    return found[0], found[1]


@pytest.mark.costly
@given(
    seed=st.integers(0, 10**6), beam=st.integers(1, 16), share=st.floats(0.05, 0.95),
    projection=st.sampled_from(sorted(PROJECTIONS)), norm=st.sampled_from(["pre", "post"]),
    gamma=st.sampled_from([0.0, 0.1, 1.0]), alpha=st.sampled_from([0.4, 1.0]),
    lm_weight=st.sampled_from([0.0, 0.3]), n_best=st.sampled_from([1, 1, 1, 5]),
    most_words=st.integers(1, 2), least_words=st.integers(0, 1),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_the_same_texts_and_scores(
    seed: int, beam: int, share: float, projection: str, norm: str, gamma: float, alpha: float,
    lm_weight: float, n_best: int, most_words: int, least_words: int,
) -> None:  # fmt: skip
    counts = [least_words if i % 3 else most_words for i in range(V)]
    recognizer, encoded = build(seed, projection, norm, counts)
    options = DecodingOptions(
        beam_size=beam, ctc_weight=share, gamma=gamma, alpha=alpha, n_best=n_best,
        speech_threshold=0.0, lm="lm.arpa", lm_weight=lm_weight,
    )  # fmt: skip
    found, expected = both(recognizer, encoded, options, BigramLm(seed))
    assert len(found) == len(expected) <= n_best
    for mine, its in zip(found, expected, strict=True):
        assert mine.tokens == its.tokens and mine.ended == its.ended
        for name in ("score", "log_prob", "ctc_log_prob", "lm_log_prob", "length_score"):
            assert getattr(mine, name) == pytest.approx(getattr(its, name), abs=1e-4), name
        assert mine.confidences == pytest.approx(its.confidences, abs=1e-4)


@given(seed=st.integers(0, 10**6), projection=st.sampled_from(sorted(PROJECTIONS)))
@settings(max_examples=20, deadline=None)
def test_a_tree_has_the_log_probabilities_of_whole_texts(seed: int, projection: str) -> None:
    recognizer, encoded = build(seed, projection)
    decoder, rng = recognizer.model.decoder, torch.Generator().manual_seed(seed)
    assert isinstance(decoder, FastDecoder)
    tree = PrefixTree(decoder, encoded.memory_BSD, encoded.mask_BS)
    texts: list[list[int]] = [[SOS]]
    nodes = tree.path(-1, [SOS])
    with torch.inference_mode():
        for i in range(90):  # more than the first buffers hold; some passes have many nodes
            parent = int(torch.randint(len(nodes), (), generator=rng))
            token = int(torch.randint(V, (), generator=rng))
            nodes.append(tree.node(nodes[parent], token))
            texts.append([*texts[parent], token])
            if i % 7 == 0:
                tree.logp(nodes)
        logp_NV = tree.logp(nodes)
        for text, logp_V in zip(texts, logp_NV, strict=True):
            logits = decoder(torch.tensor([text]), encoded.memory_BSD, encoded.mask_BS)
            assert torch.allclose(logits[0, -1].log_softmax(-1), logp_V, atol=1e-4)
    assert len(tree) == len({tuple(text) for text in texts})
    assert tree.n_passes <= 15


class Agreeing(FastDecoder):
    """A decoder that finds a text likely, by position."""

    likely_UV: Tensor

    def step(self, tokens_BW: Tensor, state):  # type: ignore[no-untyped-def, override]
        logp_BWV = super().step(tokens_BW, state)
        return (logp_BWV + self.likely_UV[state.position - 1]).log_softmax(-1)

    def expand(self, tokens, depths, state):  # type: ignore[no-untyped-def]
        return super().expand(tokens, depths, state) + self.likely_UV[depths]


def agreeing(text: list[int]) -> tuple[SpeechDecoder, Encoded]:
    """Return a decoder and a CTC head that both find this text likely."""
    recognizer, encoded = build(0, "low_rank")
    decoder = Agreeing(recognizer.model.decoder)
    decoder.likely_UV = torch.zeros(S + 1, V)
    for i in range(S + 1):
        decoder.likely_UV[i, text[i] if i < len(text) else EOS] = 30
    recognizer.model.decoder = decoder
    logits_SV = torch.zeros(S, V)
    for i in range(S):
        logits_SV[i, text[i // 2] if i % 2 == 0 and i // 2 < len(text) else 0] = 12
    mask = torch.ones(1, S, dtype=torch.bool)
    return recognizer, replace(encoded, mask_BS=mask, logp_BSV=logits_SV.log_softmax(-1)[None])


@pytest.mark.parametrize("beam", [1, 8])
def test_one_pass_is_enough_where_both_models_are_sure(beam: int) -> None:
    text = [5, 7, 6, 9]
    recognizer, encoded = agreeing(text)
    decoder, steps = recognizer.model.decoder, encoded.mask_BS.sum(1)
    assert isinstance(decoder, FastDecoder) and encoded.logp_BSV is not None
    logp_BSV = encoded.logp_BSV
    options = DecodingOptions(beam_size=beam, ctc_weight=0.3, n_best=1)
    search, tree = (
        BeamSearch(options, torch.ones(V)),
        PrefixTree(decoder, encoded.memory_BSD, encoded.mask_BS),
    )
    with torch.inference_mode():
        (draft,) = greedy_texts(logp_BSV, steps, options, torch.ones(V))
        found = search_one(
            search, tree, draft, lambda: CtcPrefixScorer(logp_BSV, steps, 1),
            steps, None,
        )  # fmt: skip
    assert found and found[0][0].tokens == tuple(text)
    assert (tree.n_passes, len(tree)) == (1, len(text) + 1)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("draft", [(), (5, 5, 5, 5, 5, 5), (4, 11, 4), (5, 7, 6, 9, 8)])
@torch.inference_mode()
def test_any_draft_leads_to_the_same_text(
    monkeypatch: pytest.MonkeyPatch, seed: int, draft: tuple[int, ...]
) -> None:
    """Where a draft scores more than all that a narrow beam finds, the search is repeated."""
    recognizer, encoded = build(seed, "dense")
    decoder, steps = recognizer.model.decoder, encoded.mask_BS.sum(1)
    assert isinstance(decoder, FastDecoder) and encoded.logp_BSV is not None
    options = DecodingOptions(beam_size=2, ctc_weight=0.3, n_best=1)
    search = BeamSearch(options, torch.ones(V))
    state = decoder.start(encoded.memory_BSD, encoded.mask_BS)
    ctc = CtcPrefixScorer(encoded.logp_BSV, steps, 2)
    (expected,) = search(JointScorer(decoder.step, state, ctc), steps)
    monkeypatch.setattr(speculation, "_LEAST_SCORE", -torch.inf)
    # Its CTC score; 30 is more than any text has.
    for claimed in (-30.0, -9.0, -3.0, 0.0, 3.0, 6.0, 12.0, 30.0):
        found = search_one(
            search, PrefixTree(decoder, encoded.memory_BSD, encoded.mask_BS),
            Hypothesis(draft, 0.0, None, claimed, "eos"),
            partial(CtcPrefixScorer, encoded.logp_BSV, steps, 1), steps, None,
        )  # fmt: skip
        assert found
        assert found[0][0].tokens == expected[0].tokens
        assert found[0][0].score == pytest.approx(expected[0].score, abs=1e-4)


class Misleading(FastDecoder):
    """A decoder that begins with token 4 rather than 5, and then finds few texts likely."""

    def _logp(self, last: list[int]) -> Tensor:
        shares = {SOS: {4: 60, 5: 40}, 4: {6: 0.1, EOS: 0.01}, 5: {EOS: 60}, 6: {EOS: 60}}
        p_NV = torch.full((len(last), V), 0.02)
        for row, token in zip(p_NV, last, strict=True):
            for following, p in shares.get(token, {}).items():
                row[following] = p
        return p_NV.log().log_softmax(-1)

    def step(self, tokens_BW: Tensor, state):  # type: ignore[no-untyped-def, override]
        super().step(tokens_BW, state)
        return self._logp(tokens_BW.flatten().tolist()).view(*tokens_BW.shape, V)

    def expand(self, tokens, depths, state):  # type: ignore[no-untyped-def]
        super().expand(tokens, depths, state)
        return self._logp(tokens)


def test_where_the_draft_is_better_than_what_a_beam_finds_the_beam_counts() -> None:
    """A beam of one takes token 4; of what follows, the draft's score leaves the worse part."""
    recognizer, encoded = build(0, "dense")
    recognizer.model.decoder = Misleading(recognizer.model.decoder)
    p_SV = torch.full((S, V), 1e-4)
    p_SV[0, 4], p_SV[0, 5], p_SV[1:, 0], p_SV[1:, 6] = 0.45, 0.55, 0.9, 0.05
    mask = torch.ones(1, S, dtype=torch.bool)
    encoded = replace(encoded, mask_BS=mask, logp_BSV=p_SV.log().log_softmax(-1)[None])
    found, expected = both(recognizer, encoded, DecodingOptions(beam_size=1, ctc_weight=0.3), None)
    assert [h.tokens for h in found] == [h.tokens for h in expected] == [(4, 6)]


def test_a_cancelled_request_ends_at_once() -> None:
    recognizer, encoded = build(1, "dense")
    request = Request(is_cancelled=True)
    options = DecodingOptions(ctc_weight=0.3, n_best=1, speech_threshold=0.0)
    ((found,),) = recognizer.decode(replace(encoded, requests=(request,)), options)
    assert found.tokens == () and request.n_steps <= 2
