"""Estimated n-grams: probabilities sum to 1, equal the textbook's, survive the file, and help."""

import itertools
import logging
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asr.bundle import Bundle
from asr.cli.train import train_lm
from asr.config import Config
from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_prefix import CtcPrefixScorer
from asr.decoding.options import DecodingOptions
from asr.decoding.scorers import JointScorer
from asr.errors import AsrError, ConfigError, DataError
from asr.lm import training
from asr.lm.backoff import Backoff, Counts, count, writable
from asr.lm.estimation import end_share, estimate, estimate_list
from asr.lm.loading import load_language_model
from asr.lm.mixture import fit, mix, perplexity
from asr.lm.ngram import NGram
from asr.lm.texts import Collector, read_texts, read_words
from asr.lm.training import train_ngram
from asr.tokenizer import EOS, SOS, UNK, Tokenizer, TokenizerConfig
from tests.helpers import WORD_COUNTS, run_cli, tones_recipe

Gram = tuple[int, ...]
Listed = dict[Gram, tuple[float, float]]

LETTERS = "一二三"
FEW = Tokenizer.train([LETTERS], TokenizerConfig())
MANY = Tokenizer.train(["".join(map(chr, range(0x4E00, 0x4E30)))], TokenizerConfig())


def tokens_of(tokenizer: Tokenizer) -> list[int]:
    return np.flatnonzero(writable(tokenizer.tokens())).tolist()


def sentences(texts: list[str], order: int, tokenizer: Tokenizer = FEW) -> Counts:
    collector = Collector(tokenizer)
    for text in texts:
        collector.add_text(text)
    return count(collector.fragments(has_ends=False), order, tokenizer.vocab_size)


def words(
    entries: dict[str, int], order: int, *, is_whole: bool, tokenizer: Tokenizer = FEW
) -> Counts:
    collector = Collector(tokenizer)
    for word, times in entries.items():
        collector.add_word(word, times, is_whole=is_whole)
    return count(collector.fragments(has_ends=not is_whole), order, tokenizer.vocab_size)


def listed(model: Backoff) -> Listed:
    """Return P and backoff weight of each n-gram."""
    found: Listed = {}
    names: list[Gram] = [()]
    for n in range(1, model.grams.order + 1):
        prefixes, last = (values.tolist() for values in model.grams.split(n))
        names = [(*names[p], t) for p, t in zip(prefixes, last, strict=True)]
        backoff = model.backoff[n - 1] if n < model.grams.order else np.ones(len(names))
        found |= zip(names, zip(model.p[n - 1], backoff, strict=True), strict=True)
    return found


def probability(grams: Listed, gram: Gram) -> float:
    """Return P of a token after a context, by Katz's recursion."""
    if gram in grams:
        return grams[gram][0]
    return grams.get(gram[:-1], (0.0, 1.0))[1] * probability(grams, gram[1:])


def chain(n: int, seed: int, tokenizer: Tokenizer) -> list[str]:
    """Return sentences in which each letter depends on the one before, as few follow each."""
    rng = random.Random(seed)
    letters = tokenizer.tokens()[UNK + 1 :]
    after = {letter: rng.sample([*letters, ""], 4) for letter in ["", *letters]}
    found = []
    for _ in range(n):
        text = letter = rng.choice(letters)
        while len(text) < 30 and (letter := rng.choices(after[letter], [8, 4, 2, 1])[0]):
            text += letter
        found.append(text)
    return found


@given(
    texts=st.lists(st.text(LETTERS + "外", min_size=1, max_size=7), min_size=1, max_size=12),
    entries=st.dictionaries(
        st.text(LETTERS, min_size=1, max_size=5), st.integers(1, 9), min_size=1, max_size=9
    ),
    order=st.integers(1, 3),
    share=st.floats(0.01, 0.99),
    ends=st.floats(0, 1),
)
@settings(max_examples=25, deadline=None)
def test_the_probabilities_after_every_context_sum_to_one(
    texts: list[str], entries: dict[str, int], order: int, share: float, ends: float
) -> None:
    assume(any(set(FEW.encode(text)) - {UNK} for text in texts))  # others are refused
    text, is_token = sentences(texts, order), writable(FEW.tokens())
    models = [
        estimate(text, is_token),
        estimate(words(entries, 3, is_whole=False).with_ends(ends), is_token, end_share([text])),
        estimate_list(words(entries, order, is_whole=True), is_token),
    ]
    models.append(mix(models[:2], np.array([[share], [1 - share]])))
    by_context = np.linspace(share, 1 - share, order)
    models.append(mix(models[:2], np.stack([by_context, 1 - by_context])))
    for model in models:
        grams = listed(model)
        for n in range(3):
            for context in itertools.product([SOS, *tokens_of(FEW)], repeat=n):
                p = [probability(grams, (*context, token)) for token in tokens_of(FEW)]
                assert min(p) > 0 and sum(p) == pytest.approx(1, abs=1e-9), context


def textbook(texts: list[str], order: int) -> tuple[Callable[[Gram], float], list[list[float]]]:
    """Return P and discounts as in Chen and Goodman 1998, equations 23 to 28."""
    occurrences: Counter[Gram] = Counter()
    for text in texts:
        sentence = (SOS, *MANY.encode(text), EOS)
        ends = range(len(sentence) + 1)
        occurrences.update(sentence[i:j] for j in ends for i in range(max(0, j - order), j))
    before: dict[Gram, set[int]] = defaultdict(set)
    for gram in occurrences:
        before[gram[1:]].add(gram[0])

    def c(gram: Gram) -> int:
        if gram == (SOS,):
            return 0
        is_counted = len(gram) == order or gram[0] == SOS
        return occurrences[gram] if is_counted else len(before[gram])

    discounts = [[0.0]]
    for n in range(1, order + 1):
        n_of = Counter(c(gram) for gram in occurrences if len(gram) == n)
        y = n_of[1] / (n_of[1] + 2 * n_of[2]) if n_of[1] and n_of[2] else 0.5
        found = [k - (k + 1) * y * n_of[k + 1] / max(1, n_of[k]) for k in (1, 2, 3)]
        is_sound = all(0 < d < k for k, d in enumerate(found, 1)) and min(
            map(n_of.get, (1, 2, 3, 4))
        )
        discounts.append([0.0, *(found if is_sound else [y] * 3)])

    def p(gram: Gram) -> float:
        if not gram:
            return 1 / len(tokens_of(MANY))
        after = [c((*gram[:-1], token)) for token in tokens_of(MANY)]
        if not sum(after):
            return p(gram[1:])
        d = discounts[len(gram)]
        left = sum(d[min(times, 3)] for times in after) / sum(after)
        return (c(gram) - d[min(c(gram), 3)]) / sum(after) + left * p(gram[1:])

    return p, discounts


@pytest.mark.parametrize(("n_texts", "is_modified"), [(60, True), (2, False)])
def test_it_is_the_textbooks_kneser_ney_also_when_read_from_the_file(
    n_texts: int, is_modified: bool, tmp_path: Path
) -> None:
    texts = chain(n_texts, 1, MANY)
    p, discounts = textbook(texts, 3)
    assert all(d[1] != d[2] for d in discounts[1:]) == is_modified
    estimate(sentences(texts, 3, MANY), writable(MANY.tokens())).write(
        tmp_path / "lm.arpa", MANY.tokens()
    )
    lm = NGram.load(tmp_path / "lm.arpa", MANY)
    state, context = torch.tensor(lm.first), [SOS]
    for text in chain(2, 2, MANY) + texts[:2]:  # unseen, then seen
        for token in [*MANY.encode(text), EOS]:
            logp, following = lm.look_up(state, torch.tensor(token))
            assert float(logp) == pytest.approx(math.log(p((*context[-2:], token))), abs=1e-5)
            state, context = following, [*context, token]
        state, context = torch.tensor(lm.first), [SOS]


def test_words_within_sentences_by_hand() -> None:
    """Three times 一二 and once 二. A 二 after 一 counts once, as the discount leaves it; the
    word's end leaves everything to what begins a word.
    """
    grams = listed(estimate(words({"一二": 3, "二": 1}, 2, is_whole=False), writable(FEW.tokens())))
    one, two, three = FEW.encode(LETTERS)
    spare = (0.5 + 0.5) / (3 + 2) / 4  # of discounts 0.5, for each of three letters and EOS
    assert grams[one,][0] == pytest.approx((3 - 0.5) / 5 + spare)
    assert grams[two,][0] == pytest.approx((1 + 1 - 0.5) / 5 + spare)
    assert grams[three,][0] == grams[EOS,][0] == pytest.approx(spare)
    assert grams[one, two][0] == pytest.approx((3 - 0.5) / 3 + 0.5 / 3 * grams[two,][0])
    assert probability(grams, (two, one)) == pytest.approx(grams[one,][0])


def test_a_text_is_cut_at_what_the_model_does_not_know() -> None:
    collector = Collector(FEW)
    for text in ("一外二", "外", "", " "):
        collector.add_text(text)
    one, two, _ = FEW.encode(LETTERS)
    found = collector.fragments(has_ends=False)
    expected = [[SOS, one], [UNK, two, EOS]]
    assert found.tokens_U.tolist() == list(itertools.chain(*expected))
    assert found.lengths_F.tolist() == list(map(len, expected))
    assert collector.n_texts == 1 and collector.unknown == {"外": 2}
    counted = count(found, 2, FEW.vocab_size)
    assert sum(times.sum() for times in counted.longest) == 3  # 一, 二 and EOS


def test_a_word_within_sentences_has_its_space() -> None:
    tokenizer = Tokenizer.train(["CAT DOG"], TokenizerConfig())
    for is_whole, expected in ((True, ["<SOS>", "C", "A", "<EOS>"]), (False, ["▁", "C", "A"])):
        collector = Collector(tokenizer)
        collector.add_word("ca", 1, is_whole=is_whole)
        tokens = collector.fragments(has_ends=not is_whole).tokens_U
        assert [tokenizer.tokens()[token] for token in tokens] == expected


def test_a_chinese_word_within_sentences_has_no_space() -> None:
    texts = ["今天王小明去上海", "王小明来了", "看见王小明"]
    tokenizer = Tokenizer.train(texts * 5, TokenizerConfig(kind="bpe", vocab_size=19))
    collector = Collector(tokenizer)
    collector.add_word("王小明", 1, is_whole=False)
    word = collector.fragments(has_ends=False).tokens_U.tolist()
    text = tokenizer.encode(texts[0])
    assert any(text[i : i + len(word)] == word for i in range(len(text)))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("今天 7 t\nB 超\t3 n\n\n很 1\n", [("今天", 7), ("B 超", 3), ("很", 1)]),
        ("\ufeff今天\r\n第 3 次\r\n打开 窗户", [("今天", 1), ("第 3 次", 1), ("打开 窗户", 1)]),
        ("一 0\n二 1\n三\n", [("一 0", 1), ("二 1", 1), ("三", 1)]),
        ("3\n4 4\n5\n", [("3", 1), ("4 4", 1), ("5", 1)]),
    ],
)
def test_a_list_has_counts_where_every_line_has_one(
    content: str, expected: list[tuple[str, int]], tmp_path: Path
) -> None:
    (tmp_path / "words").write_text(content, "utf-8")
    assert list(read_words(tmp_path / "words")) == expected


def test_a_mixture_makes_dev_more_likely_than_each_part_and_than_letters_alone() -> None:
    is_token = writable(MANY.tokens())
    dev = sentences(chain(30, 1, MANY) + chain(10, 2, MANY), 3, MANY)
    texts = [sentences(chain(200, seed, MANY), 3, MANY) for seed in (1, 2, 3)]
    models = [estimate(counts, is_token) for counts in texts]
    shares_MK, expected = fit(models, dev)
    assert shares_MK.sum(0) == pytest.approx(np.ones(3))
    assert (shares_MK[2] < 0.05).all()  # of the third's kind there is nothing
    none, _, both = shares_MK[0]
    assert both > 0.9 > none > 0.5, "its own kind, where it knows the two tokens before"
    mixed = perplexity(mix(models, shares_MK), dev)
    assert mixed == pytest.approx(expected, rel=0.02)  # but for what no model lists
    equal = perplexity(mix(models, shares_MK.mean(1, keepdims=True)), dev)
    assert mixed < equal
    assert mixed < 0.8 * min(perplexity(model, dev) for model in models)
    letters = estimate(sentences(chain(200, 1, MANY), 1, MANY), is_token)
    assert perplexity(models[0], dev) < 0.5 * perplexity(letters, dev)


def test_the_end_of_a_phrase_tells_nothing_and_that_of_a_word_does() -> None:
    """Pairs of letters of a long text beside a short one, then the text cut into words."""
    is_token, kind = writable(MANY.tokens()), 1
    text = sentences(chain(30, kind, MANY), 3, MANY)
    models, dev = [estimate(text, is_token)], sentences(chain(400, kind, MANY)[300:], 3, MANY)
    long = chain(300, kind, MANY)
    pairs = Counter(a + b for line in long for a, b in itertools.pairwise(line))
    singles = Counter(letter for line in long for letter in line)
    for entries, is_phrase in ((pairs, True), (singles, False)):
        counts = words(dict(entries), 3, is_whole=False, tokenizer=MANY)
        tried = [
            estimate(counts.with_ends(share), is_token, end_share([text])) for share in (1.0, 0.1)
        ]
        found = [fit([*models, model], dev)[1] for model in tried]
        assert (found[1] < 0.95 * found[0]) == is_phrase
        if is_phrase:
            assert training._likeliest(iter(tried), models, dev) is tried[1]
            assert training._likeliest(iter(tried), models, None) is tried[0]


@pytest.mark.parametrize("seed", range(3))
def test_a_list_of_words_restricts_what_is_recognized(seed: int, tmp_path: Path) -> None:
    entries = ["一二", "三", "二二三", "三一"]
    (tmp_path / "words").write_text("\n".join(entries), "utf-8")
    config = Config.model_validate(tones_recipe(tmp_path))
    train_ngram(config, FEW, [], [tmp_path / "words"], tmp_path / "lm.arpa", 4)
    lm = NGram.load(tmp_path / "lm.arpa", FEW)
    logp_SV = (torch.randn(5, FEW.vocab_size, generator=torch.manual_seed(seed)) * 3).log_softmax(
        -1
    )
    found = {}
    for weight in (0.0, 10.0):
        ctc = CtcPrefixScorer(logp_SV[None], torch.tensor([5]), 60)
        options = DecodingOptions(beam_size=60, lm="lm", lm_weight=weight)
        models = JointScorer(None, None, ctc, lm.start(1, 60, torch.device("cpu")))
        best = BeamSearch(options, WORD_COUNTS)(models, torch.tensor([5]))[0][0]
        found[weight] = FEW.decode(best.tokens)
    assert found[0.0] not in entries and found[10.0] in entries


@pytest.fixture(scope="module")
def recipe(tones: Path) -> tuple[Config, Tokenizer]:
    config = Config.model_validate(tones_recipe(tones))
    return config, Tokenizer.train(read_texts(*config.data.train), config.tokenizer)


def test_transcripts_texts_and_words_are_mixed_and_what_is_unknown_is_logged(
    recipe: tuple[Config, Tokenizer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, tokenizer = recipe
    letters = tokenizer.tokens()[UNK + 1 :]
    (tmp_path / "text").write_text(f"{letters[0]}外{letters[1]}\n" * 3, "utf-8")
    (tmp_path / "words").write_text(f"{letters[0]}{letters[1]} 5\n龘龘 3\n", "utf-8")
    caplog.set_level(logging.INFO)
    seen: list[float] = []
    for out, texts, words in (
        ("own", [], []),
        ("all", [*config.data.train, tmp_path / "text"], [tmp_path / "words"]),
    ):
        train_ngram(config, tokenizer, texts, words, tmp_path / out, 3, seen.append)
        assert NGram.load(tmp_path / out, tokenizer).order == 3
    logged = caplog.text
    assert f"the transcripts are those of {config.data.train_names}" in logged
    assert "text: 3 sentences: 3 characters are no tokens of the model (外 3)" in logged
    assert "words: 1 words, 1 others are left out: 2 characters are no tokens" in logged
    assert logged.count("perplexity of the dev transcripts per token") == 2
    assert f"{config.data.train_names} 0.9" in logged  # its weight: dev is of the same kind


def test_a_list_alone_needs_no_corpus_and_is_used_where_lm_is(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "words").write_text("今天\n天气\n很好\n", "utf-8")
    options = ["--words", "words", "--order", "3", "--out", "new/lm.arpa"]
    done = run_cli("train-lm", tiny_bundle, *options, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout == "new/lm.arpa\n", done.stderr
    assert "dev.jsonl.gz: there is no such manifest" in done.stderr
    tokenizer = Bundle.load(tiny_bundle).tokenizer
    lm = load_language_model(tmp_path / "new" / "lm.arpa", tokenizer, torch.device("cpu"))
    assert isinstance(lm, NGram) and lm.order == 3


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"order": None}, ConfigError, "give --order"),
        ({"resume": True}, ConfigError, "are for a Transformer"),
        ({"epochs": 3}, ConfigError, "are for a Transformer"),
        ({"out": Path("words")}, ConfigError, "words: is there and no ARPA file"),
        ({"out": Path()}, ConfigError, "is there and no ARPA file"),
        ({"words": [Path("words")] * 17}, ConfigError, "17 files of text"),
        ({"words": [Path("foreign")]}, DataError, "foreign: holds no text of this model's tokens"),
        ({"texts": [Path("foreign")]}, DataError, "foreign: holds no text of this model's tokens"),
        ({"texts": [Path("none")]}, DataError, "none: cannot be read as UTF-8"),
        ({"texts": [Path("gbk")]}, DataError, "gbk: cannot be read as UTF-8"),
        ({"words": [Path("counted")]}, DataError, "counted, line 3: has no count"),
        ({"words": None}, DataError, "train.jsonl.gz: there is no such manifest"),
    ],
)
def test_a_mistake_is_one_sentence(
    tiny_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    error: type[AsrError],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (
        ("words", "今天\n".encode()),
        ("foreign", "龘\n\n".encode()),
        ("gbk", "今天天气\n".encode("gbk")),
        ("counted", "今 1\n天 2\n气\n".encode()),
    ):
        (tmp_path / name).write_bytes(content)
    usual = {"order": 2, "words": [Path("words")], "out": Path("lm.arpa")}
    with pytest.raises(error, match=message):
        train_lm(tiny_bundle, **(usual | options))
    assert not (tmp_path / "lm.arpa").exists()


def test_without_dev_the_sources_are_equal_and_an_older_file_is_replaced(
    tiny_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "words").write_text("今天\n天气\n很好\n", "utf-8")
    caplog.set_level(logging.INFO)
    bundle, (one, two) = Bundle.load(tiny_bundle), [tmp_path / "words"] * 2
    for texts in ([], [one]):
        train_ngram(bundle.config, bundle.tokenizer, texts, [two], tmp_path / "lm.arpa", 2)
    assert f"equal without dev: {one} 0.500, {two} 0.500" in caplog.text
