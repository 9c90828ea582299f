"""Text to tokens and back, and the one normalization."""

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import BundleError, DataError
from asr.tokenizer import (
    EOS,
    PAD,
    SOS,
    SPECIAL,
    UNK,
    Case,
    Tokenizer,
    TokenizerConfig,
    normalize_text,
)

TEXTS = ["今天 天气 很 好", "打开 ＷＩＦＩ 和 wifi", "三 点 go home"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("今天 天气 很 好", "今天天气很好"),
        ("ｇｏ  on\t今 天", "GO ON今天"),
        ("  a  b ", "A B"),
        ("１２３ＡＢＣ", "123ABC"),
        ("\ufeff你好\r\n", "你好"),
        ("\u202b\u05e9\u05dc\u05d5\u05dd\u202c\u200f", "\u05e9\u05dc\u05d5\u05dd"),
        ("Donau\u00addampf a\u200bb", "DONAUDAMPF AB"),
        (
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        ),
        ("", ""),
        (
            "\u0e17\u0e33 \u0e19\u0e49\u0e33 \u0e99\u0eb3",
            "\u0e17\u0e33 \u0e19\u0e49\u0e33 \u0e99\u0eb3",
        ),
    ],
)
def test_normalization(text: str, expected: str) -> None:
    assert normalize_text(text) == expected


NORMALIZATIONS = [
    TokenizerConfig(case=case, punctuation=punctuation).normalize
    for case in ("upper", "lower", "lower_tr", "keep")
    for punctuation in ("keep", "remove")
]


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@given(
    st.text()
    | st.text(
        alphabet="aΣΐİiIßé́ \u0307\u00ad\u200f\u0301\u0e4d\u0e32'’-·,。今か゚क्षि\u200d\ufe0f❤~$",
        max_size=9,
    )
)
def test_normalizing_twice_changes_nothing(normalize: Callable[[str], str], text: str) -> None:
    assert normalize(normalize(text)) == normalize(text)


def test_the_default_is_upper_case_with_punctuation() -> None:
    assert TokenizerConfig().normalize("Don’t, 今天。 go!") == "DON’T,今天。 GO!"
    assert TokenizerConfig().normalize("Don’t, 今天。 go!") == normalize_text("Don’t, 今天。 go!")


@pytest.mark.parametrize(
    ("case", "expected"), [("upper", "CAFÉ ΜΑΪ́ΟΥ"), ("lower", "café μαΐου"), ("keep", "Café Μαΐου")]
)
def test_case_and_combining_marks_become_one_form(case: Case, expected: str) -> None:
    for form in ("NFC", "NFD"):
        assert normalize_text(unicodedata.normalize(form, "Café Μαΐου"), case) == expected


def test_a_capital_i_with_a_dot_is_an_i_in_lower_case() -> None:
    for text in ("İSTANBUL", "İstanbul", "i\u0307stanbul", "I\u0307stanbul"):
        assert normalize_text(text, "lower") == "istanbul"
    assert normalize_text("İ ı ß", "keep") == "İ ı ß"


def test_turkish_has_two_letters_i() -> None:
    for text in ("Işık İyi ISPARTA", "IŞIK İYİ ISPARTA", "I\u015f\u0131k I\u0307yi Isparta"):
        assert normalize_text(text, "lower_tr") == "ışık iyi ısparta"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't send e-mail, O’Brien!", "Don't send e-mail O'Brien"),
        ("'quoted' dogs' -- well-known - \u2010x\u2011y", "quoted dogs well-known x-y"),
        ("one,two;three.Four", "one two three Four"),
        ("今天，天气好！真的？《书》：“是”、对；。", "今天天气好真的书是对"),
        ("维吾尔·买买提 col·lecció", "维吾尔买买提col·lecció"),
        ("नमस्ते, क्या हाल है।", "नमस्ते क्या हाल है"),
        ("السَّلَامُ عَلَيْكُمْ، كَيْفَ؟", "السَّلَامُ عَلَيْكُمْ كَيْفَ"),
        ("\u05e6\u05d4\u05f4\u05dc", "\u05e6\u05d4\u05f4\u05dc"),
        ("ok ❤\ufe0f 👨\u200d👩 ♪ yes~ <b>", "ok yes b"),
        ("$5 + 3 = 8", "$5 + 3 = 8"),
        ("…?!", ""),
    ],
)
def test_removed_punctuation(text: str, expected: str) -> None:
    assert normalize_text(text, "keep", "remove") == expected


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
