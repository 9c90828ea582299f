"""The character error rate, pooled over a corpus, and how two texts line up."""

import unicodedata
from dataclasses import dataclass
from pathlib import Path

import jiwer

from asr.errors import DataError
from asr.tokenizer import normalize_text

_GAP = "*"
_MARKS = {"equal": " ", "substitute": "S", "delete": "D", "insert": "I"}


@dataclass(frozen=True)
class ErrorCounts:
    """The edits that turn references into hypotheses, in characters; corpora add up."""

    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0
    reference_length: int = 0

    @property
    def errors(self) -> int:
        """All edits together."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def rate(self) -> float:
        """Errors per reference character, above 1 where much was inserted.

        Without any reference character it is 0 where nothing was recognised and 1 where something
        was: JSON, which this ends in, knows no infinity.
        """
        if not self.reference_length:
            return float(self.errors > 0)
        return self.errors / self.reference_length

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(
            self.substitutions + other.substitutions,
            self.insertions + other.insertions,
            self.deletions + other.deletions,
            self.reference_length + other.reference_length,
        )


def character_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """The fewest edits between two texts, both normalized first; either may be empty."""
    result = _aligned(reference, hypothesis)
    return ErrorCounts(
        result.substitutions,
        result.insertions,
        result.deletions,
        len(result.references[0]),
    )


def score_files(references: Path, hypotheses: Path) -> ErrorCounts:
    """The errors of a file of hypotheses, pooled; both files have a line `id text` an utterance.

    Raises DataError where a line has no id or one that was there before, or where the files are
    not of the same utterances.
    """
    said, heard = _read_texts(references), _read_texts(hypotheses)
    for path, ids in ((hypotheses, said.keys() - heard), (references, heard.keys() - said)):
        if ids:
            raise DataError(
                f"{path}: {len(ids)} utterances of the other file are missing here "
                f"({', '.join(sorted(ids)[:3])}): score files of the same utterances"
            )
    return sum((character_errors(said[id], heard[id]) for id in said), ErrorCounts())


def alignment(reference: str, hypothesis: str) -> str:
    """Three lines for a terminal: both texts, normalized, and S, D or I under each error.

    `*` fills gaps, and characters that take two columns (Chinese) line up with those that take one.
    """
    result = _aligned(reference, hypothesis)
    above, below = result.references[0], result.hypotheses[0]
    lines = ["REF: ", "HYP: ", "     "]
    for chunk in result.alignments[0]:
        start, end = chunk.ref_start_idx, chunk.ref_end_idx
        heard = below[chunk.hyp_start_idx : chunk.hyp_end_idx]
        said = above[start:end]
        for i in range(max(len(said), len(heard))):
            column = _column(said[i : i + 1], heard[i : i + 1], _MARKS[chunk.type])
            lines = [line + cell for line, cell in zip(lines, column, strict=True)]
    return "\n".join(line.rstrip() for line in lines)


def _read_texts(path: Path) -> dict[str, str]:
    """Texts by id. An id ends at a tab, or in a line without one at the first space."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except ValueError as error:
        raise DataError(f"{path}: not UTF-8 ({error}): convert it") from error
    texts: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        id, _, text = line.partition("\t" if "\t" in line else " ")
        id = id.strip()
        if not id or id in texts:
            what = f"{id} stands here a second time" if id else "no id before the text"
            raise DataError(f"{path}, line {number}: {what}: give each utterance one line")
        texts[id] = text
    if not texts:
        raise DataError(f"{path}: holds no utterance: a line is an id, a tab and a text")
    return texts


def _aligned(reference: str, hypothesis: str) -> jiwer.CharacterOutput:
    return jiwer.process_characters(normalize_text(reference), normalize_text(hypothesis))


def _column(said: list[str], heard: list[str], mark: str) -> tuple[str, str, str]:
    """One character of each line, at most one of them missing, padded to a common width."""
    width = max(1, *(_width(character) for character in said + heard))
    cells = [c[0] + " " * (width - _width(c[0])) if c else _GAP * width for c in (said, heard)]
    return cells[0], cells[1], mark.ljust(width)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
