"""Join the texts of parts of a recording."""

import re
from collections.abc import Iterable
from functools import reduce

# Scripts without spaces between words: Thai to Burmese, Khmer, kana and its punctuation. Chinese is
# not among them: normalization removes spaces beside its characters (`asr.normalization`).
UNSPACED = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_BEGINS, _ENDS = re.compile(f"[{UNSPACED}]"), re.compile(f"[{UNSPACED}][!?,.]*$")


def join_texts(texts: Iterable[str]) -> str:
    """Join texts in order, with a space between two unless both are in scripts without spaces."""
    return reduce(_joined, texts, "")


def _joined(text: str, more: str) -> str:
    is_unspaced = _ENDS.search(text) and _BEGINS.match(more)
    return text + more if is_unspaced or not (text and more) else f"{text} {more}"
