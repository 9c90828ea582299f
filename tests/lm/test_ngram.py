"""ARPA against sums by hand, alone and fused with attention and CTC over all texts."""

import math
import random
from pathlib import Path

import pytest
import torch

from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_prefix import CtcPrefixScorer
from asr.decoding.options import DecodingOptions
from asr.decoding.scorers import JointScorer
from asr.errors import BundleError
from asr.lm.loading import load_language_model
from asr.lm.ngram import NGram
from asr.tokenizer import EOS, Tokenizer, TokenizerConfig
from tests.helpers import (
    WORD_COUNTS,
    Table,
    TableState,
    V,
    all_texts,
    attention_logp,
    ctc_logp,
    step_of,
)

ARPA = """\\data\\
ngram 1=6
ngram 2=4
ngram 3=2

\\1-grams:
-99 <s> -0.5
-1.0 </s>
-0.6 一 -0.2
-0.7 二 -0.4
-2.0 <unk> -0.1
-3.0 外

\\2-grams:
-0.3 <s> 一 -0.25
-0.4 一 二 -0.15
-0.8 二 </s>
-0.9 二 外

\\3-grams:
-0.1 <s> 一 二
-0.05 一 二 </s>

\\end\\
"""
# log10, by hand. 三 is a token of the model and no word of the file: <unk>, and 外 the other way.
BY_HAND = {
    "一二": -0.3 - 0.1 - 0.05,
    "二": (-0.5 - 0.7) - 0.8,  # backoff of <s>, then 二 alone; 二 </s> is there
    "一一": -0.3 + (-0.25 - 0.2 - 0.6) + (-0.2 - 1.0),  # (<s> 一) and (一) backed off; 一 </s> too
    "一三": -0.3 + (-0.25 - 0.2 - 2.0) + (-0.1 - 1.0),
    "": -0.5 - 1.0,
    "二一二": (-0.5 - 0.7) + (-0.4 - 0.6) - 0.4 - 0.05,  # of (二 一 二) only (一 二) is known
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["一二三"], TokenizerConfig())


@pytest.fixture(scope="module")
def lm(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> NGram:
    path = tmp_path_factory.mktemp("lm") / "lm.arpa"
    path.write_text(ARPA, "utf-8")
    return NGram.load(path, tokenizer)


def lm_logp(lm: NGram, tokens: tuple[int, ...]) -> float:
    scorer, total = lm.start(1, 1, torch.device("cpu")), 0.0
    for token in (*tokens, EOS):
        total += float(scorer.score(torch.tensor([[[token]]])))
        scorer.advance(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[token]]))
    return total


@pytest.mark.parametrize("text", BY_HAND)
def test_log_probabilities_are_the_sums_by_hand(text: str, lm: NGram, tokenizer: Tokenizer) -> None:
    found = lm_logp(lm, tuple(tokenizer.encode(text)))
    assert found == pytest.approx(BY_HAND[text] * math.log(10), abs=1e-5)


def test_the_tables_are_on_the_device_that_they_are_loaded_for(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "lm.arpa").write_text(ARPA, "utf-8")
    lm = load_language_model(tmp_path / "lm.arpa", tokenizer, torch.device("meta"))
    assert isinstance(lm, NGram) and {t.device.type for t in lm.buffers()} == {"meta"}


def test_a_file_without_unk_hardly_believes_in_others(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "lm.arpa"
    path.write_text(ARPA.replace("-2.0 <unk> -0.1\n", "").replace("1=6", "1=5"), "utf-8")
    lm = NGram.load(path, tokenizer)
    expected = -0.5 - 100.0 - 1.0
    assert lm_logp(lm, tuple(tokenizer.encode("三"))) == pytest.approx(expected * math.log(10))


def test_one_token_at_a_time_scores_as_all_at_once(lm: NGram) -> None:
    one, many = lm.token_scorer(), lm.start(1, 1, torch.device("cpu"))
    rng, state, parent = random.Random(0), one.start(), torch.zeros(1, 1, dtype=torch.long)
    for _ in range(60):
        expected = many.score(torch.arange(V)[None, None])[0, 0].tolist()
        found = [one.score(state, token) for token in range(V)]
        assert [score for score, _ in found] == pytest.approx(expected, abs=1e-5)
        assert one.end(state) == pytest.approx(expected[EOS], abs=1e-5)
        token = rng.randrange(3, V)
        state = found[token][1]
        many.advance(parent, torch.tensor([[token]]))
    assert all(score <= one.most for score, _ in found)


def test_hypotheses_and_utterances_do_not_mix(lm: NGram) -> None:
    rng = torch.Generator().manual_seed(0)
    scorer = lm.start(3, 4, torch.device("cpu"))
    texts: list[list[tuple[int, ...]]] = [[()] * 4 for _ in range(3)]
    totals = torch.zeros(3, 4)
    for step in range(6):
        parents = torch.randint(4, (len(texts), 4), generator=rng)
        tokens = torch.randint(3, V, (len(texts), 4), generator=rng)
        of_parent = scorer.score(tokens[:, None].expand(-1, 4, -1))
        rows = torch.arange(len(texts))[:, None]
        totals = totals[rows, parents] + of_parent[rows, parents, torch.arange(4)]
        texts = [
            [(*row[p], t) for p, t in zip(ps, ts, strict=True)]
            for row, ps, ts in zip(texts, parents.tolist(), tokens.tolist(), strict=True)
        ]
        scorer.advance(parents, tokens)
        if step == 3:
            scorer.select(torch.tensor([2, 0]))
            texts, totals = [texts[2], texts[0]], totals[[2, 0]]
    end = scorer.score(torch.full((2, 4, 1), EOS))[..., 0]
    for row, text_row in zip(totals + end, texts, strict=True):
        for total, text in zip(row.tolist(), text_row, strict=True):
            assert total == pytest.approx(lm_logp(lm, text), abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("has_decoder", [True, False])
def test_fusion_of_all_three_equals_brute_force(seed: int, has_decoder: bool, lm: NGram) -> None:
    table, share, weight = Table([seed]), 0.4, 0.6
    torch.manual_seed(seed)
    logp_SV = (torch.randn(4, V) * 2).log_softmax(-1)
    config = DecodingOptions(
        beam_size=121, alpha=0.8, gamma=0.2, ctc_weight=share, lm="lm", lm_weight=weight, n_best=20
    )
    ctc = CtcPrefixScorer(logp_SV[None], torch.tensor([4]), 121)
    decoder = (step_of(table), TableState(table, 121)) if has_decoder else (None, None)
    models = JointScorer(*decoder, ctc, lm.start(1, 121, torch.device("cpu")))
    found = BeamSearch(config, WORD_COUNTS)(models, torch.tensor([4]))[0]
    att = 1 - share if has_decoder else 0.0
    expected = {
        text: 0.8 * att * attention_logp(table, seed, text)
        + 0.8 * (share if has_decoder else 1.0) * ctc_logp(logp_SV, text)
        + weight * lm_logp(lm, text)
        + 0.2 * math.sqrt(len(text))
        for text in all_texts(4)
    }
    assert found[0].tokens == max(expected, key=lambda text: expected[text])
    for h in found:
        assert h.score == pytest.approx(expected[h.tokens], abs=1e-3)
        assert h.lm_log_prob == pytest.approx(lm_logp(lm, h.tokens), abs=1e-3)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (ARPA.replace("\\end\\", ""), "whole"),
        (ARPA[: ARPA.index("\\3-grams")], "whole"),
        (ARPA.replace("-0.4 一 二", "x 一 二"), "line 16"),
        (ARPA.replace("-0.4 一 二", "nan 一 二"), "line 16"),
        (ARPA.replace("-0.4 一 二 -0.15", "-0.4 一"), "line 16"),
        ("\x00\x01", "whole"),
        ("", "whole"),
        (ARPA.translate(str.maketrans("一二", "甲乙")), "only 0 of its 6 words"),
        ("\\data\\\nngram 1=0\n\n\\1-grams:\n\n\\end\\\n", "only 0 of its 0 words"),
        (ARPA.replace("-0.6 一", "1e300 一"), r"near line 9.*1e\+300 and -0.2 are no log-prob"),
        (ARPA.replace("-0.6 一", "5 一"), "near line 9.*are no log-probability"),
        (ARPA.replace("-0.6 一 -0.2", "-0.6 一 1e9"), "near line 9"),
    ],
)
def test_a_broken_file_is_reported(
    broken: str, message: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "lm.arpa"
    path.write_text(broken, "utf-8")
    with pytest.raises(BundleError, match=message) as caught:
        NGram.load(path, tokenizer)
    assert str(path) in str(caught.value)


def test_words_are_no_model_of_letters(tmp_path: Path) -> None:
    """A and I are letters too."""
    letters = Tokenizer.train(["THE QUICK BROWN FOX JUMPS OVER A LAZY DOG I"], TokenizerConfig())
    words = ["A", "I", *(f"{a}{b}" for a in "THEQUICK" for b in "BROWN")]
    (path := tmp_path / "words.arpa").write_text(arpa_of(words))
    with pytest.raises(BundleError, match=r"only 2 of its 45 words are tokens"):
        NGram.load(path, letters)
    path.write_text(arpa_of(["T", "H", "E"]))  # few of the tokens: a small list of words
    NGram.load(path, letters)
    path.write_text(arpa_of([*"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *words[2:], *map(str, range(300))]))
    NGram.load(path, letters)  # many that are none: a large text


def arpa_of(words: list[str]) -> str:
    rows = "".join(f"-1 {word}\n" for word in ["<s>", "</s>", "<unk>", *words])
    return f"\\data\\\nngram 1={len(words) + 3}\n\n\\1-grams:\n{rows}\n\\end\\\n"


def test_a_missing_file_is_reported(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        NGram.load(tmp_path / "none.arpa", tokenizer)
