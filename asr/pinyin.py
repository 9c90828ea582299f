"""Split a Mandarin text into its sounds, by pypinyin."""

from collections.abc import Callable
from functools import partial
from typing import Any

from asr.errors import ConfigError
from asr.normalization import normalize_text

Units = Callable[[str], list[str]]


def units_of(kind: str) -> Units:
    """Return the function that splits a text into syllables with tones, or into their parts.

    `kind` is `syllable` (zhong1) or `initial_final` (zh, ong1); each letter of another script is a
    unit. With `letter` every letter is a unit, and pypinyin is not needed. The other kinds raise
    ConfigError if pypinyin is not installed.
    """
    if kind == "letter":
        return _letters
    try:
        from pypinyin import Style, lazy_pinyin
    except ImportError as error:
        raise ConfigError(
            "training.intermediate, training.shared_sounds, model.encoder.conditioning, "
            "model.encoder.sounds and decoding.method ctc_sounds are of Mandarin sounds, which "
            "pypinyin knows: pip install 'lrt-asr[chinese]'"
        ) from error
    letters: Any = list  # `errors` may return a list too, which pypinyin's types do not say

    def syllables(text: str, style: Style) -> list[str]:
        return lazy_pinyin(
            normalize_text(text).replace(" ", ""), style=style, errors=letters, strict=False,
            neutral_tone_with_five=True,
        )  # fmt: skip

    def parts(text: str) -> list[str]:
        styles = (Style.INITIALS, Style.FINALS_TONE3)
        found = zip(*(syllables(text, style) for style in styles), strict=True)
        # A letter is its own initial and final, and counts once; a syllable may have no initial.
        return [part for both in found for part in dict.fromkeys(both) if part]

    return parts if kind == "initial_final" else partial(syllables, style=Style.TONE3)


def _letters(text: str) -> list[str]:
    return list(normalize_text(text).replace(" ", ""))
