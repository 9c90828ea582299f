"""Text to tokens and back."""

import pytest

from asr.errors import BundleError, DataError
from asr.normalization import Case, normalize_text
from asr.tokenizer import EOS, PAD, SOS, SPECIAL, UNK, Tokenizer, TokenizerConfig

TEXTS = ["今天 天气 很 好", "打开 ＷＩＦＩ 和 wifi", "三 点 go home"]


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_a_tokenizer_has_the_case_and_the_punctuation_of_its_texts(kind: str) -> None:
    config = TokenizerConfig(kind=kind, vocab_size=22, case="lower", punctuation="remove")
    tokenizer = Tokenizer.train(["Don't go, Tom.", "Go on: Don't!"] * 5, config)
    assert not set("".join(tokenizer.tokens()[4:])) - set("don'tgm▁")
    for text in ("DON’T GO, TOM", "don't go tom"):
        assert tokenizer.decode(tokenizer.encode(text)) == "don't go tom"


def test_a_character_vocabulary_is_every_character_and_the_special_tokens() -> None:
    tokenizer = Tokenizer.train(TEXTS, TokenizerConfig())
    characters = set("".join(map(normalize_text, TEXTS)))
    assert tokenizer.vocab_size == len(characters) + len(SPECIAL)
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        assert len(tokens) == len(normalize_text(text))
        assert not set(tokens) & set(SPECIAL)
        assert tokenizer.decode([SOS, *tokens, EOS, PAD]) == normalize_text(text)
    counts = tokenizer.word_counts()
    assert counts[:4] == [0, 0, 0, 0] and set(counts[4:]) == {1}


@pytest.mark.parametrize("case", ["upper", "lower", "keep"])
@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_every_character_of_the_texts_is_a_token(kind: str, case: Case) -> None:
    """Also those of a line that sentencepiece skips, for a sign of its own, or cuts out of it."""
    texts = ["ab▅c", "hello, <unk> <UNK> <s>", "guten tag, <pad>"]
    size = 30 if kind == "bpe" else None
    config = TokenizerConfig(kind=kind, case=case, vocab_size=size)
    assert set(Tokenizer.train(texts, config).unknown(texts)) == {"▅"}


def test_an_unknown_character_is_one_unknown_token_without_text() -> None:
    tokenizer = Tokenizer.train(TEXTS, TokenizerConfig())
    assert tokenizer.encode("今龘天").count(UNK) == 1
    assert tokenizer.decode(tokenizer.encode("今龘天")) == "今天"


def test_longer_tokens_count_words() -> None:
    lines = ["HELLO WORLD", "HELLO THERE", "OTHER WORLD"] * 5
    tokenizer = Tokenizer.train(lines, TokenizerConfig(kind="bpe", vocab_size=30))
    counts = tokenizer.word_counts()
    assert sum(counts[t] for t in tokenizer.encode("HELLO OTHER WORLD")) == 3
    assert tokenizer.decode(tokenizer.encode("hello world")) == "HELLO WORLD"


def test_training_is_deterministic_and_survives_bytes() -> None:
    one, two = (Tokenizer.train(TEXTS, TokenizerConfig()).model for _ in range(2))
    assert one == two
    assert Tokenizer(one).encode(TEXTS[0]) == Tokenizer.train(TEXTS, TokenizerConfig()).encode(
        TEXTS[0]
    )


def test_what_cannot_be_learned_or_read_is_an_error() -> None:
    with pytest.raises(DataError, match="nothing to tokenize"):
        Tokenizer.train(["", "  "], TokenizerConfig())
    with pytest.raises(DataError, match="vocab_size 5000"):
        Tokenizer.train(TEXTS, TokenizerConfig(kind="bpe", vocab_size=5000))
    with pytest.raises(BundleError, match="not a sentencepiece model"):
        Tokenizer(b"no model")
