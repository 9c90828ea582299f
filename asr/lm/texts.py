"""Read what a language model is estimated from: text files, manifests and lists of words."""

import logging
from array import array
from collections import Counter
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

import numpy as np

from asr.data.manifest import load_cuts, text_of
from asr.errors import DataError
from asr.lm.backoff import Fragments, writable
from asr.normalization import HAN_LETTER
from asr.runtime.files import open_regular
from asr.tokenizer import EOS, SOS, UNK, Tokenizer

log = logging.getLogger(__name__)

_LONGEST_COUNT = 15  # digits; sums of counts stay exact
_SPACE = "▁"


def read_texts(path: Path | str) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, or the transcripts of a manifest.

    Raises DataError where it cannot be read, and for a manifest by URL.
    """
    if isinstance(path, str) or path.is_dir() or path.name.endswith((".jsonl", ".jsonl.gz")):
        yield from map(text_of, load_cuts(path))
        return
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8-sig") as file:
            yield from (line.rstrip("\n") for line in file)
    except (OSError, UnicodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({error})") from error


def read_words(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the entries of a list, a line each, with how often each occurs.

    Where every line ends with a number, this is the count; a word, such as a part of speech, may
    follow it. Where half of the lines or more have none, each line is an entry that counts once.
    Raises DataError where only most lines have a count.
    """
    lines = [(n, line.split()) for n, line in enumerate(read_texts(path), 1) if line.strip()]
    entries = [_counted(fields) for _, fields in lines]
    without = [n for (n, _), entry in zip(lines, entries, strict=True) if entry is None]
    if without and len(without) < len(lines) / 2:
        raise DataError(
            f"{path}, line {without[0]}: has no count from 1 up after the word, while most lines "
            "have one: give every line a count, or none"
        )
    for (_, fields), entry in zip(lines, entries, strict=True):
        yield entry if entry and not without else (" ".join(fields), 1)


def _counted(fields: list[str]) -> tuple[str, int] | None:
    """Return entry and count of a line `entry count` or `entry count tag`, None for others."""
    for end in (1, 2):
        if len(fields) > end and (count := _number(fields[-end])) > 0:
            return " ".join(fields[:-end]), count
    return None


def _number(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _LONGEST_COUNT
    return int(text) if is_number else 0


class Collector:
    """Fragments of the texts or words of one source, and characters that no token covers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.names = tokenizer, tokenizer.tokens()
        self.is_token_V = writable(self.names)
        self.n_texts = self.n_left_out = 0
        self.unknown: Counter[str] = Counter()
        self._known = frozenset("".join(self.names)) | {" "}
        self._space = [i for i, name in enumerate(self.names) if name == _SPACE]
        self._tokens, self._lengths, self._weights = array("q"), array("q"), array("d")

    def add_text(self, text: str) -> None:
        """Add a sentence, cut at unknown tokens; one without a known token is left out."""
        tokens = self._encode(text)
        if set(tokens) <= {UNK}:
            return
        self.n_texts += 1
        begin = 0
        sentence = [SOS, *tokens, EOS]
        for end in [i for i, token in enumerate(sentence) if token == UNK] + [len(sentence)]:
            self._add(sentence[begin:end], 1)
            begin = end

    def add_word(self, word: str, times: int, *, is_whole: bool) -> None:
        """Add an entry of a list as a sentence or a part of one; skip it with unknown tokens."""
        tokens = self._encode(word)
        if UNK in tokens or not tokens:
            self.n_left_out += 1
            return
        self.n_texts += 1
        if is_whole:
            self._add([SOS, *tokens, EOS], times)
        else:
            self._add(self._within(word, tokens), times)

    def fragments(self, *, has_ends: bool) -> Fragments:
        """Return all that was added."""
        tokens, lengths = (np.array(values) for values in (self._tokens, self._lengths))
        return Fragments(tokens, lengths, np.array(self._weights), has_ends)

    def _encode(self, text: str) -> list[int]:
        found = self.tokenizer.encode(text)
        tokens = [token if self.is_token_V[token] else UNK for token in found]
        if UNK in tokens:
            characters = self.tokenizer.normalize(text)
            self.unknown.update(c for c in characters if c not in self._known)
        return tokens

    def _within(self, word: str, tokens: list[int]) -> list[int]:
        """Return a word's tokens within a text: after a space, but for Chinese, which has none."""
        has_space = self.names[tokens[0]].startswith(_SPACE)
        if not (has_space or self._space):
            return tokens
        if HAN_LETTER.match(self.tokenizer.normalize(word)):
            return self.tokenizer.within(word) if has_space else tokens
        return tokens if has_space else [*self._space, *tokens]

    def _add(self, tokens: list[int], times: int) -> None:
        self._tokens.extend(tokens)
        self._lengths.append(len(tokens))
        self._weights.append(times)
