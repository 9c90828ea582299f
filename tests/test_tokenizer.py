"""Text to tokens and back, and the one normalization."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import BundleError, DataError
from asr.tokenizer import EOS, PAD, SOS, SPECIAL, UNK, Tokenizer, TokenizerConfig, normalize_text

TEXTS = ["今天 天气 很 好", "打开 ＷＩＦＩ 和 wifi", "三 点 go home"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("今天 天气 很 好", "今天天气很好"),
        ("ｇｏ  on\t今 天", "GO ON今天"),
        ("  a  b ", "A B"),
        ("１２３ＡＢＣ", "123ABC"),
        ("\ufeff你好\r\n", "\ufeff你好"),
        ("", ""),
    ],
)
def test_normalization(text: str, expected: str) -> None:
    assert normalize_text(text) == expected


@given(st.text())
def test_normalizing_twice_changes_nothing(text: str) -> None:
    assert normalize_text(normalize_text(text)) == normalize_text(text)


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
