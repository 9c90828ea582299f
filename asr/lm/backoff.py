"""Backoff n-grams as sorted tables: counted, scored, mixed and written as an ARPA file.

The n-grams of an order are the rows of a table. An n-gram's key is `prefix * V + token`, where
`prefix` is the row of all its tokens but the last in the table of the order below. Its suffix, all
tokens but the first, is given as a row there too. Legend: G n-grams of an order, V vocabulary, U
tokens, F fragments of text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asr.tokenizer import EOS, SOS, UNK

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_NEVER = -99.0  # log10 P of <s>, as every program writes it
_NAMES = {SOS: "<s>", EOS: "</s>"}
_RESERVED = {"<s>", "</s>", "<unk>", "<UNK>", "<space>"}


@dataclass(frozen=True)
class Fragments:
    """Stretches of text: their tokens in a row, and the length and the count of each fragment.

    A sentence is SOS, tokens and EOS. UNK stands only in front of what follows an unknown
    character. With `has_ends` the text goes on after each fragment, in a way that is not known.
    """

    tokens_U: Ints
    lengths_F: Ints
    weights_F: Floats
    has_ends: bool = False


@dataclass(frozen=True)
class Grams:
    """N-grams of all orders from 1 up, with all their prefixes and suffixes; order 1 has all V."""

    vocab_size: int
    keys: list[Ints]
    suffixes: list[Ints]

    @property
    def order(self) -> int:
        """Return the largest order."""
        return len(self.keys)

    def split(self, n: int) -> tuple[Ints, Ints]:
        """Return each n-gram's prefix (G,), a row of order n - 1, and last token (G,)."""
        prefixes, tokens = np.divmod(self.keys[n - 1], self.vocab_size)
        return prefixes, tokens

    def find(self, n: int, prefixes: Ints, tokens: Ints) -> Ints:
        """Return rows of order n, -1 for n-grams that are not there or whose prefix is -1."""
        if n > self.order:
            return np.full(len(prefixes), -1)
        wanted = prefixes * self.vocab_size + tokens
        rows = np.searchsorted(self.keys[n - 1], wanted).clip(max=len(self.keys[n - 1]) - 1)
        return np.where((prefixes >= 0) & (self.keys[n - 1][rows] == wanted), rows, -1)

    @classmethod
    def union(cls, several: Sequence["Grams"]) -> "Grams":
        """Return all n-grams of several."""
        made = cls(several[0].vocab_size, [several[0].keys[0]], [several[0].suffixes[0]])
        rows = [grams.keys[0] for grams in several]  # in `made`, of the n-grams of each
        for n in range(2, max(grams.order for grams in several) + 1):
            found = []
            for i, grams in enumerate(several):
                if n <= grams.order:
                    prefixes, tokens = grams.split(n)
                    found.append(rows[i][prefixes] * made.vocab_size + tokens)
            keys = np.unique(np.concatenate(found))
            prefixes, tokens = np.divmod(keys, made.vocab_size)
            made.suffixes.append(made.find(n - 1, made.suffixes[n - 2][prefixes], tokens))
            made.keys.append(keys)
            longer = iter(found)
            rows = [
                np.searchsorted(keys, next(longer)) if n <= grams.order else row
                for grams, row in zip(several, rows, strict=True)
            ]
        return made


@dataclass(frozen=True)
class Counts:
    """How often n-grams occur, by order: in all, and at the beginning and end of a fragment."""

    grams: Grams
    total: list[Floats]
    begins: list[Floats]
    ends: list[Floats]

    @property
    def longest(self) -> list[Floats]:
        """Return counts by order where each token of a text counts once: in its longest n-gram."""
        found = [*self.begins[:-1], self.total[-1]]
        found[0] = found[0].copy()
        found[0][[SOS, UNK]] = 0  # the beginning of a text is not predicted
        return found

    def with_ends(self, share: float) -> "Counts":
        """Return the same counts with those at the ends of fragments multiplied by `share`."""
        return replace(self, ends=[share * ends_G for ends_G in self.ends])


def count(text: Fragments, order: int, vocab_size: int) -> Counts:
    """Count all n-grams up to an order, or up to the longest fragment."""
    weights_U = np.repeat(text.weights_F, text.lengths_F)
    begin_F = np.cumsum(text.lengths_F) - text.lengths_F
    place_U = np.arange(len(text.tokens_U)) - np.repeat(begin_F, text.lengths_F)
    is_end_U = (place_U == np.repeat(text.lengths_F, text.lengths_F) - 1) & text.has_ends
    counts = Counts(Grams(vocab_size, [], []), [], [], [])
    rows_U = np.zeros_like(text.tokens_U)
    for n in range(1, min(order, int(text.lengths_F.max())) + 1):
        whole = np.flatnonzero(place_U >= n - 1)
        shorter_U, rows_U = rows_U, np.full_like(rows_U, -1)
        if n == 1:
            keys, suffixes = np.arange(vocab_size), np.zeros(vocab_size, np.int64)
            rows_U[whole] = text.tokens_U
        else:
            wanted = shorter_U[whole - 1] * vocab_size + text.tokens_U[whole]
            keys, first, rows_U[whole] = np.unique(wanted, return_index=True, return_inverse=True)
            suffixes = shorter_U[whole[first]]
        counts.grams.keys.append(keys)
        counts.grams.suffixes.append(suffixes)
        for found, chosen in (
            (counts.total, whole),
            (counts.begins, whole[place_U[whole] == n - 1]),
            (counts.ends, whole[is_end_U[whole]]),
        ):
            counted = np.bincount(rows_U[chosen], weights_U[chosen], len(keys))
            found.append(counted.astype(np.float64))  # numpy returns integers for no items
    return counts


@dataclass(frozen=True)
class Backoff:
    """A backoff language model (Katz 1987): probabilities and weights of n-grams, by order.

    `p` is P of each n-gram's last token after its prefix. `backoff` is the weight of what is not
    listed after the n-gram. Order 1 has P = 0 for tokens that no text can have.
    """

    grams: Grams
    p: list[Floats]
    backoff: list[Floats]

    def score(self, grams: Grams) -> list[Floats]:
        """Return P of other n-grams of the same vocabulary, by order."""
        rows, found = grams.keys[0], [self.p[0]]
        for n in range(2, grams.order + 1):
            prefixes, tokens = grams.split(n)
            contexts = rows[prefixes]
            rows = self.grams.find(n, contexts, tokens)
            p = found[-1][grams.suffixes[n - 1]]
            if n <= self.grams.order:
                p = p * np.where(contexts >= 0, self.backoff[n - 2][contexts], 1.0)
                p = np.where(rows >= 0, self.p[n - 1][rows], p)
            found.append(p)
        return found

    def write(self, path: Path, tokens: Sequence[str]) -> None:
        """Write an ARPA file, without the n-grams that no text can have."""
        words = [_NAMES.get(i, token) for i, token in enumerate(tokens)]
        names, kept = words, [(self.p[0] > 0) | (self.grams.keys[0] == SOS)]
        for n in range(2, self.grams.order + 1):
            kept.append(kept[-1][self.grams.split(n)[0]])
        with path.open("w", encoding="utf-8") as file:
            file.write("\\data\\\n")
            file.writelines(f"ngram {n}={is_kept.sum()}\n" for n, is_kept in enumerate(kept, 1))
            for n, is_kept in enumerate(kept, 1):
                if n > 1:
                    prefixes, last = (found.tolist() for found in self.grams.split(n))
                    names = [f"{names[i]} {words[t]}" for i, t in zip(prefixes, last, strict=True)]
                file.write(f"\n\\{n}-grams:\n")
                file.writelines(self._lines(n, names, np.flatnonzero(is_kept)))
            file.write("\n\\end\\\n")

    def _lines(self, n: int, names: list[str], rows: Ints) -> Iterator[str]:
        """Yield the lines of some n-grams: log10 P, tokens, and log10 of the backoff unless 0."""
        p, is_last = self.p[n - 1][rows], n == self.grams.order
        logp = np.log10(p, out=np.full(len(p), _NEVER), where=p > 0)
        weights = np.zeros(len(p)) if is_last else np.log10(self.backoff[n - 1][rows])
        for row, value, weight in zip(rows.tolist(), logp, weights, strict=True):
            yield f"{value:.6f}\t{names[row]}" + (f"\t{weight:.6f}\n" if weight else "\n")


def writable(tokens: Sequence[str]) -> NDArray[np.bool_]:
    """Tell for each token (V,) if a text can have it and an ARPA file can name it; EOS is one."""
    found = [token.split() == [token] and token not in _RESERVED for token in tokens]
    found[: UNK + 1] = [i == EOS for i in range(UNK + 1)]
    return np.array(found)
