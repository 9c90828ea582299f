"""N-grams of tokens with backoff, read from an ARPA file (ours, KenLM's or SRILM's).

Every context is a state; a state and a token together are one key, looked up in a sorted table for
all hypotheses at once. Legend: B utterances, W hypotheses, K candidates, V vocabulary.
"""

import math
from array import array
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asr.errors import BundleError
from asr.lm.ngram_tokens import NGramTokenScorer
from asr.runtime.files import open_regular
from asr.tokenizer import EOS, SOS, UNK, Tokenizer

# The log10 probability of <unk> where a file has none, as in KenLM.
_UNKNOWN = -100.0
_MOST_ORDER = 20  # each order is a step of every look-up
_MOST_NUMBER = 1e4  # the largest absolute logarithm
_ROUNDED = 1e-3  # how far a log-probability may be above 0 by rounding
_KNOWN = 0.3  # the least share that is known of a file's words, or of the model's tokens
_LINE = 10_000  # characters; an ARPA file has no longer line
_NAMES = {"<s>": SOS, "</s>": EOS, "<unk>": UNK, "<UNK>": UNK}

Gram = tuple[int, ...]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Table(NamedTuple):
    """The n-grams of an order: their tokens, log10 P and log10 of their weights as contexts."""

    ids_GN: Ints
    logp_G: Floats
    backoff_G: Floats


def tables_of(grams: dict[Gram, tuple[float, float]]) -> list[Table]:
    """Return tables of n-grams, each with log10 P and log10 of its weight."""
    tables = []
    for n in sorted({len(gram) for gram in grams}):
        found = {gram: values for gram, values in grams.items() if len(gram) == n}
        values_G2 = np.array(list(found.values()), np.float64)
        tables.append(Table(np.array(list(found)), values_G2[:, 0], values_G2[:, 1]))
    return tables


class NGram(nn.Module):
    """A backoff language model (Katz 1987) as tables, made of each n-gram's log10 P and backoff.

    `words` maps each token to itself, or to <unk>. `keys` (sorted) are state · V + token; `logp`
    and `next_state` belong to them. `backoff` is the log-probability of dropping a state's first
    token, `shorter` the state after that. State 0 is the empty context, `first` the state of empty
    hypotheses. Log-probabilities are natural.
    """

    words: Tensor
    keys: Tensor
    logp: Tensor
    next_state: Tensor
    backoff: Tensor
    shorter: Tensor

    def __init__(self, tables: list[Table], vocab_size: int) -> None:
        super().__init__()
        trie = _Trie([*tables_of({(UNK,): (_UNKNOWN, 0.0)}), *tables], vocab_size)
        self.order, self.vocab_size = len(trie.keys), vocab_size
        self.first = max(0, int(trie.state(np.array([[SOS]]))[0]))
        places, logp, backoff, following, shorter = [], [], [np.zeros(1)], [], [np.zeros(1, int)]
        for n in range(1, self.order + 1):
            found = trie.tables[n - 1]
            before, own = trie.state(found.ids_GN[:, :-1]), trie.state(found.ids_GN)
            suffix = trie.longest(found.ids_GN[:, 1:])
            places.append(np.where(before >= 0, before * vocab_size + found.ids_GN[:, -1], -1))
            logp.append(found.logp_G)
            following.append(np.where(own >= 0, own, suffix))
            if n < self.order:  # each of them is a state
                backoff.append(found.backoff_G)
                shorter.append(suffix)
        keys = np.concatenate(places)
        arcs = np.argsort(keys, kind="stable")[(keys < 0).sum() :]
        is_word = np.isin(np.arange(vocab_size), trie.tables[0].ids_GN)
        for name, values in {
            "words": np.where(is_word, np.arange(vocab_size), UNK),
            "keys": keys[arcs],
            "logp": (np.concatenate(logp)[arcs] * math.log(10)).astype(np.float32),
            "next_state": np.concatenate(following)[arcs],
            "backoff": (np.concatenate(backoff) * math.log(10)).astype(np.float32),
            "shorter": np.concatenate(shorter),
        }.items():
            self.register_buffer(name, torch.from_numpy(values))

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer) -> "NGram":
        """Read an ARPA file, without the n-grams of words that are no tokens of the recognizer.

        Raises BundleError for a wrong line, which it names, or where hardly any word is a token.
        """
        words = {token: i for i, token in enumerate(tokenizer.tokens())}
        tables, n_words = _read_arpa(path, words | _NAMES | {"<space>": words.get("▁", UNK)})
        n_known = sum((table.ids_GN > UNK).sum() for table in tables if table.ids_GN.shape[1] == 1)
        # A list of words has few of the model's tokens, and a large text has many words that are no
        # tokens. A file with few by both measures is of other units.
        if n_known < max(1.0, _KNOWN * min(n_words - len(_NAMES), len(words))):
            raise BundleError(
                f"{path}: only {n_known} of its {n_words} words are tokens of this model: make it "
                "with `asr train-lm BUNDLE --order 4`, or of texts with spaces between the tokens"
            )
        return cls(tables, tokenizer.vocab_size)

    def start(self, n_utterances: int, n_hypotheses: int, device: torch.device) -> "NGramScorer":
        """Return a scorer of W empty hypotheses of each of B utterances."""
        states = torch.full((n_utterances, n_hypotheses), self.first, device=device)
        return NGramScorer(self, states)

    def token_scorer(self) -> NGramTokenScorer:
        """Return a scorer of one token at a time."""
        return NGramTokenScorer(self)

    def look_up(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Return log P of each token after each state, with backoff, and the state after it."""
        token, shape = self.words[token], state.shape
        total = torch.zeros(shape, device=state.device)
        following = torch.zeros(shape, dtype=torch.long, device=state.device)
        missing = torch.ones(shape, dtype=torch.bool, device=state.device)
        for _ in range(self.order):
            key = state * self.vocab_size + token
            index = torch.searchsorted(self.keys, key).clamp(max=len(self.keys) - 1)
            hit = missing & (self.keys[index] == key)
            total = torch.where(hit, total + self.logp[index], total)
            following = torch.where(hit, self.next_state[index], following)
            missing = missing & ~hit
            total = torch.where(missing, total + self.backoff[state], total)
            state = torch.where(missing, self.shorter[state], state)
        return total, following


@dataclass
class NGramScorer:
    """The states of growing hypotheses (see `asr.decoding.scorers.LmScorer`)."""

    model: NGram
    states_BW: Tensor

    def score(self, tokens_BWK: Tensor) -> Tensor:
        """Return the log-probability (B, W, K) of each candidate as the next token."""
        return self.model.look_up(self.states_BW[..., None].expand_as(tokens_BWK), tokens_BWK)[0]

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        """Replace hypothesis w by hypothesis `parents_BW[b, w]` with `tokens_BW[b, w]` appended."""
        self.states_BW = self.model.look_up(self.states_BW.gather(1, parents_BW), tokens_BW)[1]

    def select(self, indices: Tensor) -> None:
        """Continue with these utterances only."""
        self.states_BW = self.states_BW[indices]


class _Trie:
    """All n-grams and their prefixes, by order, to find an n-gram's state: its number as a context.

    A node is a row of its order's `keys`. Its key is the row of its prefix, times V, plus its last
    token.
    """

    def __init__(self, tables: list[Table], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        order = max(table.ids_GN.shape[1] for table in tables)
        self.keys: list[Ints] = []
        self.tables: list[Table] = []
        self.states: list[Ints] = [np.zeros(1, int)]
        rows, n_states = [np.zeros(len(table.logp_G), int) for table in tables], 1
        for n in range(1, order + 1):
            longer = [i for i, table in enumerate(tables) if table.ids_GN.shape[1] >= n]
            keys = [rows[i] * vocab_size + tables[i].ids_GN[:, n - 1] for i in longer]
            self.keys.append(np.unique(np.concatenate(keys)))
            for i, of_table in zip(longer, keys, strict=True):
                rows[i] = np.searchsorted(self.keys[-1], of_table)
            here = [i for i in longer if tables[i].ids_GN.shape[1] == n]
            joined = _joined([tables[i] for i in here], n)
            place = np.full(len(self.keys[-1]), -1)
            if here:
                place[np.concatenate([rows[i] for i in here])] = np.arange(len(joined.logp_G))
            is_listed = place >= 0  # where an n-gram is there twice, the last one counts
            self.tables.append(Table(*(values[place[is_listed]] for values in joined)))
            self.states.append(
                np.where(is_listed & (n < order), n_states - 1 + is_listed.cumsum(), -1)
            )
            n_states += int(is_listed.sum())

    def state(self, ids_GN: Ints) -> Ints:
        """Return the states (G,) of n-grams, -1 for those that are no contexts."""
        rows = np.zeros(len(ids_GN), int)
        for keys, ids_G in zip(self.keys, ids_GN.T, strict=False):
            wanted = rows * self.vocab_size + ids_G
            found = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
            rows = np.where((rows >= 0) & (keys[found] == wanted), found, -1)
        return np.where(rows >= 0, self.states[ids_GN.shape[1]][rows], -1)

    def longest(self, ids_GN: Ints) -> Ints:
        """Return the states (G,) of the longest suffixes that are contexts."""
        states, todo = np.full(len(ids_GN), -1), np.arange(len(ids_GN))
        for i in range(ids_GN.shape[1] + 1):
            states[todo] = self.state(ids_GN[todo, i:])
            todo = todo[states[todo] < 0]
        return states


def _joined(tables: list[Table], order: int) -> Table:
    """Return all n-grams of tables of the same order."""
    none = Table(np.zeros((0, order), np.int64), np.zeros(0), np.zeros(0))
    ids, logp, backoff = zip(none, *tables, strict=True)
    return Table(np.concatenate(ids), np.concatenate(logp), np.concatenate(backoff))


def _read_arpa(path: Path, ids: dict[str, int]) -> tuple[list[Table], int]:
    """Return the n-grams whose words have ids, and the number of all words."""
    rows: dict[int, tuple[array[int], array[float]]] = {}
    expected: dict[int, int] = {}
    found: dict[int, int] = {}
    order, ended, number = 0, False, 0
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8") as file:
            for number, raw in enumerate(iter(lambda: file.readline(_LINE), ""), 1):  # noqa: B007
                if len(raw) == _LINE:
                    raise ValueError(f"more than {_LINE - 1:,} characters")
                line = raw.strip(" \t\r\n")
                if line.startswith("ngram ") and not order:
                    n, _, count = line.removeprefix("ngram ").partition("=")
                    expected[_order(n)] = int(count)
                elif line.startswith("\\") and line.endswith("-grams:"):
                    order = _order(line[1 : -len("-grams:")])
                elif line == "\\end\\":
                    ended = True
                elif line and order and not ended:
                    found[order] = found.get(order, 0) + 1
                    words, values = _entry(line, order)
                    if all(word in ids for word in words):
                        tokens, numbers = rows.setdefault(order, (array("q"), array("d")))
                        tokens.extend([ids[word] for word in words])
                        numbers.extend(values)
    except OSError as error:
        raise BundleError(
            f"{path}: cannot be read ({error.strerror}): give an ARPA file"
        ) from error
    except ValueError as error:  # UnicodeDecodeError is one
        raise BundleError(
            f"{path}, near line {number}: not a line of an ARPA file ({error!s:.200}): make it "
            "again"
        ) from error
    if not ended or not expected or expected != {n: found.get(n, 0) for n in expected}:
        raise BundleError(
            f"{path}: not a whole ARPA file (n-grams by order: {expected} announced, {found} there)"
            ": copy it again"
        )
    tables = [
        Table(np.array(tokens).reshape(-1, n), *np.array(numbers).reshape(-1, 2).T)
        for n, (tokens, numbers) in sorted(rows.items())
    ]
    return tables, found.get(1, 0)


def _order(text: str) -> int:
    order = int(text)
    if not 1 <= order <= _MOST_ORDER:
        raise ValueError(f"the order is {order}, 1 to {_MOST_ORDER} are possible")
    return order


def _entry(line: str, order: int) -> tuple[list[str], tuple[float, float]]:
    fields = line.split()
    if len(fields) not in (order + 1, order + 2):
        raise ValueError(f"{order} words with one or two numbers expected")
    logp = float(fields[0])
    backoff = float(fields[-1]) if len(fields) == order + 2 else 0.0
    if not (-_MOST_NUMBER <= logp <= _ROUNDED and abs(backoff) <= _MOST_NUMBER):
        raise ValueError(f"{logp:g} and {backoff:g} are no log-probability and weight")
    return fields[1 : order + 1], (logp, backoff)
