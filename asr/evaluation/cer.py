"""The error rates of characters and words, pooled over a corpus; the alignment of two texts."""

import operator
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from asr.errors import DataError
from asr.normalization import HAN_LETTER, normalize_text

if TYPE_CHECKING:
    import jiwer

Normalize = Callable[[str], str]

_GAP = "*"
_MARKS = {"equal": " ", "substitute": "S", "delete": "D", "insert": "I"}


@dataclass(frozen=True)
class ErrorCounts:
    """Numbers of edits from references to hypotheses, in characters or words; can be added."""

    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0
    reference_length: int = 0

    @property
    def errors(self) -> int:
        """Return the sum of all edits."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def rate(self) -> float:
        """Return the errors per character or word of the reference, above 1 with many insertions.

        Without a reference it is 0 or, with insertions, 1: JSON has no infinity.
        """
        if not self.reference_length:
            return float(self.errors > 0)
        return self.errors / self.reference_length

    def __str__(self) -> str:
        """Return a sentence about characters, with the rate in percent."""
        return self.described("CER", "characters")

    def described(self, rate: str, units: str) -> str:
        """Return a sentence, with the rate in percent."""
        return (
            f"{rate} {self.rate:.2%}: {self.substitutions} substitutions, {self.insertions} "
            f"insertions, {self.deletions} deletions of {self.reference_length} {units}"
        )

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(*map(operator.add, astuple(self), astuple(other)))


def character_errors(
    reference: str, hypothesis: str, normalize: Normalize = normalize_text
) -> ErrorCounts:
    """Count the fewest edits between two texts, both normalized first; either may be empty."""
    return _counts(_align(reference, hypothesis, normalize))


def word_errors(
    reference: str, hypothesis: str, normalize: Normalize = normalize_text
) -> ErrorCounts:
    """Count as `character_errors` does, but words, which have spaces between them."""
    import jiwer

    return _counts(jiwer.process_words(normalize(reference), normalize(hypothesis)))


def have_words(texts: Iterable[str]) -> bool:
    """Tell whether normalized texts have more than one word each on average.

    What holds a Chinese character does not count as a word, so Mandarin with some names in Latin
    letters has too few.
    """
    counts = [sum(not HAN_LETTER.search(word) for word in text.split()) for text in texts if text]
    return sum(counts) > len(counts)


def corpus_word_errors(
    pairs: Iterable[tuple[str, str]], normalize: Normalize = normalize_text
) -> ErrorCounts | None:
    """Return the pooled errors in words of references and hypotheses; None without words."""
    found = list(pairs)
    if not have_words(normalize(reference) for reference, _ in found):
        return None
    return sum((word_errors(*pair, normalize) for pair in found), ErrorCounts())


def corpus_errors(
    pairs: Iterable[tuple[str, str]], normalize: Normalize = normalize_text
) -> tuple[ErrorCounts, ErrorCounts | None]:
    """Return the pooled errors in characters, and in words as `corpus_word_errors` does."""
    found = list(pairs)
    characters = sum((character_errors(*pair, normalize) for pair in found), ErrorCounts())
    return characters, corpus_word_errors(found, normalize)


def rates_text(cer: float, wer: float | None) -> str:
    """Return the rates in percent for a reader; the CER alone where `wer` is None."""
    return f"CER {cer:.2%}" + ("" if wer is None else f", WER {wer:.2%}")


def score_files(references: Path, hypotheses: Path) -> tuple[ErrorCounts, ErrorCounts | None]:
    """Return the pooled errors of a file of hypotheses; each line of a file is `id text`.

    The first counts characters; the second words, None where the references have none. Raises
    DataError where a file cannot be read, where a line has no id or one that is not unique, or
    where the files have different ids.
    """
    wanted, found = _read_texts(references), _read_texts(hypotheses)
    for path, ids in ((hypotheses, wanted.keys() - found), (references, found.keys() - wanted)):
        if ids:
            raise DataError(
                f"{path}: {len(ids)} utterances of the other file are missing here "
                f"({', '.join(sorted(ids)[:3])}): score files of the same utterances"
            )
    return corpus_errors((wanted[id], found[id]) for id in wanted)


def alignment(reference: str, hypothesis: str, normalize: Normalize = normalize_text) -> str:
    """Return three lines for a terminal: both texts, normalized, and S, D or I under each error.

    `*` fills gaps; characters that take two columns (Chinese) are aligned with those that take one.
    """
    result = _align(reference, hypothesis, normalize)
    above, below = result.references[0], result.hypotheses[0]
    lines = [["REF: "], ["HYP: "], ["     "]]
    for chunk in result.alignments[0]:
        start, end = chunk.ref_start_idx, chunk.ref_end_idx
        wanted, found = above[start:end], below[chunk.hyp_start_idx : chunk.hyp_end_idx]
        for pair in zip_longest(wanted, found):
            width = max(1, *(_width(c) for c in pair if c))
            cells = [c + " " * (width - _width(c)) if c else _GAP * width for c in pair]
            cells.append(_MARKS[chunk.type].ljust(width))
            for line, cell in zip(lines, cells, strict=True):
                line.append(cell)
    return "\n".join("".join(line).rstrip() for line in lines)


def _read_texts(path: Path) -> dict[str, str]:
    """Read texts by id. An id ends at a tab, or in a line without one at the first space."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({error}): give a text") from error
    texts: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        id, _, text = line.partition("\t" if "\t" in line else " ")
        id = id.strip()
        if not id or id in texts:
            what = f"{id} appears a second time" if id else "no id before the text"
            raise DataError(f"{path}, line {number}: {what}: give each utterance one line")
        texts[id] = text
    if not texts:
        raise DataError(f"{path}: has no utterance: a line is an id, a tab and a text")
    return texts


def _align(reference: str, hypothesis: str, normalize: Normalize) -> "jiwer.CharacterOutput":
    import jiwer

    return jiwer.process_characters(normalize(reference), normalize(hypothesis))


def _counts(result: "jiwer.CharacterOutput | jiwer.WordOutput") -> ErrorCounts:
    length = len(result.references[0])
    return ErrorCounts(result.substitutions, result.insertions, result.deletions, length)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
