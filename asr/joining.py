"""Join the texts of parts of a recording."""

import re
from collections.abc import Iterable
from functools import reduce

# Scripts without spaces between words: Thai to Burmese, Khmer, kana and its punctuation. Spaces
# beside Chinese characters are no part of a text (`asr.normalization.normalize_text`).
UNSPACED = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_BEGINS, _ENDS = re.compile(f"[{UNSPACED}]"), re.compile(f"[{UNSPACED}][!?,.]*$")


def join_texts(texts: Iterable[str]) -> str:
    """Return texts one after the other, with a space between where their script has spaces."""
    return reduce(_joined, texts, "")


def _joined(text: str, more: str) -> str:
    is_unspaced = _ENDS.search(text) and _BEGINS.match(more)
    return text + more if is_unspaced or not (text and more) else f"{text} {more}"
