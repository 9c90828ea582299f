"""Character n-grams with backoff, read from an ARPA file (ours, KenLM's or SRILM's).

Every context is a state; a state and a token together are one key, looked up in a sorted table for
all hypotheses at once. Legend: B utterances, W hypotheses, K candidates, V vocabulary.
"""

import math
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

import torch
from torch import Tensor, nn

from asr.errors import BundleError
from asr.runtime.files import open_regular
from asr.tokenizer import EOS, SOS, UNK, Tokenizer

# The log10 probability of <unk> where a file has none, as in KenLM.
_UNKNOWN = -100.0
_MOST_ORDER = 20  # each is a step of every look-up
_LINE = 10_000  # characters; a longer one is none of an ARPA file
_NAMES = {"<s>": SOS, "</s>": EOS, "<unk>": UNK, "<UNK>": UNK}

Gram = tuple[int, ...]


class NGram(nn.Module):
    """A backoff language model (Katz 1987) as tables, made of each n-gram's log10 P and backoff.

    `words` maps each token to itself, or to <unk>. `keys` (sorted) are state · V + token; `logp`
    and `next_state` belong to them. `backoff` and `shorter` are the log-probability of dropping a
    state's first token, and the state after that. State 0 is the empty context, `first` that of
    empty hypotheses. Log-probabilities are natural.
    """

    words: Tensor
    keys: Tensor
    logp: Tensor
    next_state: Tensor
    backoff: Tensor
    shorter: Tensor

    def __init__(self, grams: dict[Gram, tuple[float, float]], vocab_size: int) -> None:
        super().__init__()
        self.order, self.vocab_size = max(map(len, grams)), vocab_size
        grams = {(UNK,): (_UNKNOWN, 0.0)} | grams
        contexts = sorted((gram for gram in grams if len(gram) < self.order), key=len)
        states = {gram: state for state, gram in enumerate([(), *contexts])}
        self.first = states.get((SOS,), 0)
        arcs = sorted(
            (states[gram[:-1]] * vocab_size + gram[-1], logp * math.log(10), _longest(gram, states))
            for gram, (logp, _) in grams.items()
            if gram[:-1] in states
        )
        tables = {
            "words": [token if (token,) in grams else UNK for token in range(vocab_size)],
            **dict(zip(("keys", "logp", "next_state"), zip(*arcs, strict=True), strict=True)),
            "backoff": [grams[gram][1] * math.log(10) if gram else 0.0 for gram in states],
            "shorter": [_longest(gram[1:], states) for gram in states],
        }
        for name, values in tables.items():
            self.register_buffer(name, torch.tensor(values))

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer) -> "NGram":
        """Read an ARPA file, without the n-grams of words that are no tokens of the recognizer.

        Raises BundleError that names the line that is wrong, or where no word is a token.
        """
        words = {token: i for i, token in enumerate(tokenizer.tokens())}
        grams = _read_arpa(path, words | _NAMES | {"<space>": words.get("▁", UNK)})
        if not any(len(gram) == 1 and gram[0] > UNK for gram in grams):
            raise BundleError(
                f"{path}: none of its words is a token of this model: make it with "
                "`asr train-lm BUNDLE --order 4`, or of texts with spaces between the tokens"
            )
        return cls(grams, tokenizer.vocab_size)

    def start(self, n_utterances: int, n_hypotheses: int, device: torch.device) -> "NGramScorer":
        """Return a scorer of W empty hypotheses of each of B utterances."""
        states = torch.full((n_utterances, n_hypotheses), self.first, device=device)
        return NGramScorer(self, states)

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


def _longest(gram: Gram, states: dict[Gram, int]) -> int:
    """Return the state of the longest suffix of an n-gram that is a context."""
    return next(states[gram[i:]] for i in range(len(gram) + 1) if gram[i:] in states)


def _read_arpa(path: Path, ids: dict[str, int]) -> dict[Gram, tuple[float, float]]:
    """Return log10 P and log10 backoff of each n-gram whose words have ids."""
    grams: dict[Gram, tuple[float, float]] = {}
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
                        grams[tuple(ids[word] for word in words)] = values
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
    return grams


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
    if not (math.isfinite(logp) and math.isfinite(backoff)):
        raise ValueError("a number is not finite")
    return fields[1 : order + 1], (logp, backoff)
