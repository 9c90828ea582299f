"""Compare rescoring for one text, which leaves most texts out, with the scores of all of them."""

import math
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import DecodingOptions
from asr.decoding.rescoring import rescore
from asr.model.inference.decoder import for_inference
from asr.tokenizer import EOS, PAD, SOS
from tests.helpers import same, texts_of, tiny_model

CPU = torch.device("cpu")


def first_pass(rng: random.Random) -> list[Hypothesis]:
    """Return different texts with random parts of their scores, best first by CTC."""
    texts = {tuple(rng.choices(range(4, 9), k=rng.randint(0, 4))) for _ in range(rng.randint(1, 8))}
    found = [
        Hypothesis(
            text, 0.0, None, rng.uniform(-6, 0), "eos", rng.uniform(-4, 0), rng.random(),
            tuple(rng.random() for _ in text), hotword_score=rng.choice((0.0, 2.0)),
        )
        for text in sorted(texts)
    ]  # fmt: skip
    return sorted(found, key=lambda h: -(h.ctc_log_prob or 0.0))


class Decoder:
    """A made-up decoder, whose log-probabilities differ by utterance, text and position."""

    def __init__(self, seed: int, sharpness: float) -> None:
        self.seed, self.sharpness = seed, sharpness
        self.scored: list[tuple[int, tuple[int, ...]]] = []

    def logp(self, utterance: int, text: tuple[int, ...]) -> list[float]:
        rng = random.Random(f"{self.seed} {utterance} {text}")
        return [-self.sharpness * rng.random() for _ in range(len(text) + 1)]

    def __call__(self, texts_BWU: Tensor, utterances: Tensor) -> Tensor:
        assert len(texts_BWU) == len(utterances)
        found = torch.full((*texts_BWU.shape[:2], texts_BWU.shape[2] - 1), -99.0)
        for b, (utterance, rows) in enumerate(zip(utterances.tolist(), texts_BWU, strict=True)):
            for w, row in enumerate(rows.tolist()):
                text = tuple(row[1 : row.index(EOS)])
                assert row == [SOS, *text, EOS, *[PAD] * (len(row) - len(text) - 2)]
                found[b, w, : len(text) + 1] = torch.tensor(self.logp(utterance, text))
                self.scored.append((utterance, text))
        return found


@given(
    st.integers(0, 10**6), st.integers(1, 4), st.sampled_from((0.0, 0.3, 0.7, 0.95)),
    st.sampled_from((0.05, 1.0, 5.0)), st.sampled_from((0.0, 0.5)), st.sampled_from((1, 2, 5)),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_the_best_are_those_of_all_scores(
    seed: int, B: int, share: float, sharpness: float, lm_weight: float, n_best: int
) -> None:
    rng = random.Random(seed)
    found, decoder = [first_pass(rng) for _ in range(B)], Decoder(seed, sharpness)
    options = DecodingOptions(
        method="rescore", ctc_weight=share, alpha=0.8, lm=Path("lm.arpa"), lm_weight=lm_weight,
        n_best=n_best,
    )  # fmt: skip
    results = rescore(decoder, found, options, CPU)
    assert len(results) == B
    for b, (nbest, firsts) in enumerate(zip(results, found, strict=True)):
        expected = {}
        for h in firsts:
            assert h.ctc_log_prob is not None and h.lm_log_prob is not None
            parts = (1 - share) * sum(decoder.logp(b, h.tokens)) + share * h.ctc_log_prob
            total = 0.8 * parts + lm_weight * h.lm_log_prob + h.length_score + h.hotword_score
            expected[h.tokens] = (total, h)
        best = sorted(expected, key=lambda text: -expected[text][0])[:n_best]
        assert [h.tokens for h in nbest] == best
        for h in nbest:
            score, first = expected[h.tokens]
            logp = decoder.logp(b, h.tokens)
            assert h.score == pytest.approx(score, abs=1e-5)
            assert h.log_prob == pytest.approx(sum(logp), abs=1e-5)
            pairs = zip(logp, first.confidences, strict=False)
            mixed = [math.exp(p) ** (1 - share) * c**share for p, c in pairs]
            assert h.confidences == pytest.approx(mixed, abs=1e-5)


def test_texts_that_cannot_be_the_best_are_not_scored() -> None:
    good = Hypothesis((4, 5), 0.0, None, -0.1, "eos", confidences=(0.9, 0.9))
    rival = Hypothesis((4, 6), 0.0, None, -0.2, "eos", confidences=(0.1, 0.1))
    hopeless = Hypothesis((7,), 0.0, None, -9.0, "eos", confidences=(0.0,))
    options = DecodingOptions(method="rescore", ctc_weight=0.5, n_best=1)
    for sharpness, scored in ((0.02, {(4, 5)}), (1.0, {(4, 5), (4, 6)})):
        decoder = Decoder(0, sharpness)
        rescore(decoder, [[good, rival, hopeless], [good]], options, CPU)
        assert {text for b, text in decoder.scored if b == 0} == scored
        assert {text for b, text in decoder.scored if b == 1} == {(4, 5)}


@given(st.integers(0, 10**6), st.floats(0.05, 0.95), st.lists(st.integers(4, 40), min_size=1))
@settings(max_examples=25, deadline=None)
def test_one_text_of_a_random_model_is_the_first_of_many(
    seed: int, share: float, frames: list[int]
) -> None:
    model, generator = tiny_model(seed=seed % 7), torch.Generator().manual_seed(seed)
    model.decoder = for_inference(model.decoder)
    feats = [torch.randn(n, 8, generator=generator) for n in frames[:4]]
    many = DecodingOptions(method="rescore", ctc_weight=share, n_best=8)
    one = many.model_copy(update={"n_best": 1})
    for all_of_it, best in zip(
        texts_of(model, feats, many), texts_of(model, feats, one), strict=True
    ):
        same(best, all_of_it[:1])
