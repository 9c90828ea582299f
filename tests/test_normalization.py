"""The one normalization of text."""

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.normalization import Case, normalize_text
from asr.tokenizer import TokenizerConfig


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
        alphabet="aΣΐİiIßé́ \u0307\u00ad\u200f\u0301\u0e4d\u0e32'’-·,。今か゚क्षि\u200d\ufe0f❤~$%&○՞",
        max_size=9,
    )
)
def test_normalizing_twice_changes_nothing(normalize: Callable[[str], str], text: str) -> None:
    assert normalize(normalize(text)) == normalize(text)


@given(st.text(alphabet="aÉ二年今○ ,。-'%~$", max_size=9))
def test_what_is_removed_does_not_depend_on_a_manifest(text: str) -> None:
    """Manifests have texts with punctuation, without spaces beside Chinese characters."""
    stored = normalize_text(text, "keep")
    assert normalize_text(stored, "keep", "remove") == normalize_text(text, "keep", "remove")


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
        ("50 % R&B a@b 20\u2103 §3, x_y", "50 % R&B a@b 20°C §3 x y"),
        ("سنڌ ۽ پنجاب ۾، سنڌ۔", "سنڌ ۽ پنجاب ۾ سنڌ"),
        ("မြန်မာ၏ စာ၍။", "မြန်မာ၏ စာ၍"),
        ("ինչպե՞ս եք, Անի՛։", "ինչպես եք Անի"),
        ("二○○八年 ○ 今天 二◯八, a○b", "二〇〇八年今天二〇八a b"),
        ("○今天我的○○ ○三月", "今天我的三月"),
        ("二 ○ ○ ○ 八, 廿○, ○八年", "二〇〇〇八廿〇〇八年"),
    ],
)
def test_removed_punctuation(text: str, expected: str) -> None:
    assert normalize_text(text, "keep", "remove") == expected
