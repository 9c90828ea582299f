"""The one normalization of text: of transcripts, recognized texts, and both in a comparison."""

import re
import unicodedata
from typing import Literal

_HAN = r"\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_SPACE_BESIDE_HAN = re.compile(rf"(?<=[{_HAN}]) | (?=[{_HAN}])")
HAN_LETTER = re.compile(rf"[{_HAN}]")

# Punctuation that is part of a word if it stands between two letters, and its normalized form:
# apostrophes, hyphens, the middle dot of Catalan, maqaf, geresh and gershayim of Hebrew.
_IN_WORDS = {c: "'" for c in "'\u2018\u2019"} | {c: "-" for c in "-\u2010"}
_IN_WORDS |= {c: c for c in "\u00b7\u05be\u05f3\u05f4"}
_MORE_PUNCTUATION = "|~<>"  # mathematical symbols that are not read aloud
# Marks that are read aloud: percent, and, at, section, degree; Sindhi's "and" and "in", four of
# Burmese.
_READ_ALOUD = "%\u2030&@\u00a7\u00b0\u06fd\u06fe\u104c\u104d\u104e\u104f"
_ON_VOWELS = re.compile("[\u055b\u055c\u055e\u055f]")  # Armenian marks within a word
# Circles that people type for the Chinese zero, after a numeral or before the last one of a year.
_CIRCLES = re.compile("[\u25cb\u25ef](?: ?[\u25cb\u25ef])*")
_NUMBERS = frozenset("一二三四五六七八九十百千万\u3007零廿卅两壹贰叁肆伍陆柒捌玖拾")
# Invisible characters except joiners of letters: soft hyphens, directions of writing, byte order
# marks.
_INVISIBLE = re.compile("[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
_JOINERS = "\u200d\ufe0e\ufe0f"  # they join emoji; the first one also joins letters
_REST_OF_EMOJI = re.compile(rf"(?<!\S)[{_JOINERS}]+")

Case = Literal["upper", "lower", "lower_tr", "keep"]
Punctuation = Literal["keep", "remove"]


def normalize_text(text: str, case: Case = "upper", punctuation: Punctuation = "keep") -> str:
    """Return text without differences of width (NFKC), case and spaces, or invisible characters.

    Spaces beside Chinese characters are removed, because word segmentation is no part of a Mandarin
    transcript. Other spaces collapse to one, so that "今天 ｇｏ  on" becomes "今天GO ON". Removed
    punctuation leaves a space.
    """
    text = _INVISIBLE.sub("", text)
    if punctuation == "remove":
        text = _ON_VOWELS.sub("", text)
    text = unicodedata.normalize("NFKC", text)
    if case != "keep":
        # The other case of a letter, such as ΐ, may be several characters.
        text = unicodedata.normalize("NFKC", _cased(text, case))
    # NFKC splits the Thai and the Lao letter AM, which everybody writes as one character.
    text = text.replace("\u0e4d\u0e32", "\u0e33").replace("\u0ecd\u0eb2", "\u0eb3")
    if punctuation == "remove":
        text = _without_punctuation(text)
    return _without_spaces(text)


def _without_spaces(text: str) -> str:
    # Runs of spaces collapse to one first, because the pattern removes only one space.
    return _SPACE_BESIDE_HAN.sub("", " ".join(text.split()))


def _cased(text: str, case: Case) -> str:
    """Return text in a case; in lower case İ becomes i, without a combining dot.

    With `lower_tr`, for Turkish and Azeri, I becomes ı.
    """
    if case == "upper":
        return text.upper()
    if case == "lower_tr":
        text = text.replace("I", "ı")
    return re.sub("i\u0307+", "i", text.lower())


def _without_punctuation(text: str) -> str:
    """Return text with a space for each mark of punctuation that is not within a word."""
    text = _CIRCLES.sub(_zeros, _without_spaces(text))
    three = zip(f" {text}", text, f"{text[1:]} ", strict=False)
    kept = (" " if _is_punctuation(*each) else _IN_WORDS.get(each[1], each[1]) for each in three)
    return _REST_OF_EMOJI.sub("", "".join(kept))


def _zeros(circles: re.Match[str]) -> str:
    """Return circles as zeros if they follow a numeral or precede the last one of a year."""
    first, last = circles.span()
    before, after = circles.string[max(0, first - 1) : first], circles.string[last : last + 2]
    is_zero = before in _NUMBERS or (after[:1] in _NUMBERS and after[1:] == "年")
    return "\u3007" * (len(circles.group().replace(" ", ""))) if is_zero else circles.group()


def _is_punctuation(before: str, character: str, after: str) -> bool:
    """Tell whether a character between two others is punctuation, or a symbol that is not read.

    Marks on letters (category M), currencies and most of mathematics are neither.
    """
    if character in _READ_ALOUD:
        return False
    if character in _IN_WORDS:
        return not (_is_letter(before) and _is_letter(after))
    kind = unicodedata.category(character)
    return kind[0] == "P" or kind in ("Sk", "So") or character in _MORE_PUNCTUATION


def _is_letter(character: str) -> bool:
    """Tell whether a character is a letter, a mark on one or a digit, but not a Chinese one."""
    is_letter = unicodedata.category(character)[0] in "LMN" and character not in _JOINERS
    return is_letter and not HAN_LETTER.match(character)
