"""Character n-grams with backoff, read from an ARPA file (KenLM's or SRILM's output).

Every context is a state; a state and a token are one number, looked up in a sorted table for all
hypotheses together. Legend: B utterances, W hypotheses, K candidates, V vocabulary.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from asr.errors import BundleError
from asr.tokenizer import EOS, SOS, UNK, Tokenizer

# What an ARPA file that has no <unk> does not know: log10 P, as KenLM takes it.
_UNKNOWN = -100.0
_NAMES: dict[str, int | str] = {"<s>": SOS, "</s>": EOS, "<unk>": UNK, "<UNK>": UNK, "<space>": "▁"}

Gram = tuple[int, ...]


@dataclass
class NGram:
    """A language model as tables; state 0 knows nothing, hypotheses begin in state `first`.

    `words` is what each token is to the model: itself, or <unk>.
    `keys` (sorted) are state · V + token, `logp` and `next_state` what follows from each;
    `backoff` and `shorter` are what it costs a state to forget its first token, and the state then.
    Log-probabilities are natural.
    """

    order: int
    vocab_size: int
    first: int
    words: Tensor
    keys: Tensor
    logp: Tensor
    next_state: Tensor
    backoff: Tensor
    shorter: Tensor
    _moved: dict[torch.device, "NGram"] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer) -> "NGram":
        """Read an ARPA file; n-grams of words that are no tokens of the recogniser are left out.

        Raises BundleError that names the line that is wrong, or where no word is a token.
        """
        words = {piece: i for i, piece in enumerate(tokenizer.tokens())}
        ids: dict[str, int] = dict(words)
        for word, i in _NAMES.items():
            ids[word] = words.get(i, UNK) if isinstance(i, str) else i
        grams = _read_arpa(path, ids)
        if not any(len(gram) == 1 and gram[0] > UNK for gram in grams):
            raise BundleError(
                f"{path}: none of its words is a token of this model: train it on the model's "
                "tokens, for characters one each with spaces between"
            )
        return cls.build(grams, tokenizer.vocab_size)

    @classmethod
    def build(cls, grams: dict[Gram, tuple[float, float]], vocab_size: int) -> "NGram":
        """Tables from each n-gram's log10 P and log10 backoff."""
        order = max(map(len, grams))
        grams = {(UNK,): (_UNKNOWN, 0.0)} | grams
        words = [token if (token,) in grams else UNK for token in range(vocab_size)]
        states: dict[Gram, int] = {(): 0}
        for gram in sorted(grams, key=len):
            if len(gram) < order:
                states[gram] = len(states)
        arcs = sorted(
            (states[gram[:-1]] * vocab_size + gram[-1], logp * math.log(10), _longest(gram, states))
            for gram, (logp, _) in grams.items() if gram[:-1] in states
        )  # fmt: skip
        keys, logp, next_state = zip(*arcs, strict=True)
        backoff = [grams[gram][1] * math.log(10) if gram else 0.0 for gram in states]
        shorter = [_longest(gram[1:], states) for gram in states]
        return cls(
            order, vocab_size, states.get((SOS,), 0), torch.tensor(words), torch.tensor(keys),
            torch.tensor(logp), torch.tensor(next_state), torch.tensor(backoff),
            torch.tensor(shorter),
        )  # fmt: skip

    def start(self, n_utterances: int, n_hypotheses: int, device: torch.device) -> "NGramScorer":
        """A scorer of W empty hypotheses of each of B utterances."""
        if device not in self._moved:  # once, since the tables may be large
            tables = {name: value.to(device) for name, value in vars(self).items()
                      if isinstance(value, Tensor)}  # fmt: skip
            self._moved[device] = NGram(self.order, self.vocab_size, self.first, **tables)
        states = torch.full((n_utterances, n_hypotheses), self.first, device=device)
        return NGramScorer(self._moved[device], states)

    def look_up(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Log P of each token after each state, backing off, and the state it leads to."""
        token, shape = self.words[token], state.shape
        total = torch.zeros(shape, device=state.device)
        going = torch.zeros(shape, dtype=torch.long, device=state.device)
        open_ = torch.ones(shape, dtype=torch.bool, device=state.device)
        for _ in range(self.order):
            key = state * self.vocab_size + token
            place = torch.searchsorted(self.keys, key).clamp(max=len(self.keys) - 1)
            hit = open_ & (self.keys[place] == key)
            total = torch.where(hit, total + self.logp[place], total)
            going = torch.where(hit, self.next_state[place], going)
            open_ = open_ & ~hit
            total = torch.where(open_, total + self.backoff[state], total)
            state = torch.where(open_, self.shorter[state], state)
        return total, going


@dataclass
class NGramScorer:
    """The states of the hypotheses as they grow (see `asr.decoding.scorers.LmScorer`)."""

    model: NGram
    states_BW: Tensor

    def score(self, tokens_BWK: Tensor) -> Tensor:
        """(B, W, K): log-probability of each candidate as the next token."""
        return self.model.look_up(self.states_BW[..., None].expand_as(tokens_BWK), tokens_BWK)[0]

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        """Let hypothesis w be hypothesis `parents_BW[b, w]` with `tokens_BW[b, w]` appended."""
        self.states_BW = self.model.look_up(self.states_BW.gather(1, parents_BW), tokens_BW)[1]

    def select(self, indices: Tensor) -> None:
        """Go on with these utterances only."""
        self.states_BW = self.states_BW[indices]


def _longest(gram: Gram, states: dict[Gram, int]) -> int:
    """The state of the longest end of an n-gram that is one."""
    return next(states[gram[i:]] for i in range(len(gram) + 1) if gram[i:] in states)


def _read_arpa(path: Path, ids: dict[str, int]) -> dict[Gram, tuple[float, float]]:
    """log10 P and log10 backoff of each n-gram whose words have ids."""
    grams: dict[Gram, tuple[float, float]] = {}
    expected: dict[int, int] = {}
    found: dict[int, int] = {}
    number, order, ended = 0, 0, False
    try:
        with path.open(encoding="utf-8") as file:
            for raw in file:
                number += 1
                line = raw.strip(" \t\r\n")
                if line.startswith("ngram ") and not order:
                    n, _, count = line.removeprefix("ngram ").partition("=")
                    expected[int(n)] = int(count)
                elif line.startswith("\\") and line.endswith("-grams:"):
                    order = int(line[1 : -len("-grams:")])
                elif line == "\\end\\":
                    ended = True
                elif line and order and not ended:
                    found[order] = found.get(order, 0) + 1
                    words, values = _entry(line, order)
                    gram = tuple(ids[word] for word in words if word in ids)
                    if len(gram) == order:
                        grams[gram] = values
    except OSError as error:
        raise BundleError(
            f"{path}: cannot be read ({error.strerror}): give an ARPA file"
        ) from error
    except ValueError as error:  # UnicodeDecodeError is one
        raise BundleError(
            f"{path}, near line {number}: not a line of an ARPA file ({error}): make it again"
        ) from error
    if not ended or not expected or expected != {n: found.get(n, 0) for n in expected}:
        raise BundleError(
            f"{path}: not a whole ARPA file (n-grams by order: {expected} announced, {found} there)"
            ": copy it again"
        )
    return grams


def _entry(line: str, order: int) -> tuple[list[str], tuple[float, float]]:
    fields = line.split()
    if len(fields) not in (order + 1, order + 2):
        raise ValueError(f"{order} words with one or two numbers expected")
    logp = float(fields[0])
    backoff = float(fields[-1]) if len(fields) == order + 2 else 0.0
    if not (math.isfinite(logp) and math.isfinite(backoff)):
        raise ValueError("a number is not finite")
    return fields[1 : order + 1], (logp, backoff)
