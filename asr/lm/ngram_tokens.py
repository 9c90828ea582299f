"""Look up one token of an n-gram at a time, without the overhead of tensors."""

from bisect import bisect_left
from typing import TYPE_CHECKING

from asr.tokenizer import EOS

if TYPE_CHECKING:
    from asr.lm.ngram import NGram


class NGramTokenScorer:
    """Look up one token after one state (see `asr.decoding.prefix_beam.TokenScorer`)."""

    most = 0.0

    def __init__(self, model: "NGram") -> None:
        self.order, self.vocab_size, self.first = model.order, model.vocab_size, model.first
        # A memoryview gives Python's own numbers, faster than an array does.
        self.words, self.keys, self.logp, self.next_state, self.backoff, self.shorter = (
            memoryview(table.cpu().numpy())  # type: ignore[arg-type]
            for table in (
                model.words, model.keys, model.logp, model.next_state, model.backoff, model.shorter,
            )
        )  # fmt: skip

    def start(self) -> int:
        """Return the state of the empty prefix."""
        return self.first

    def score(self, state: int, token: int) -> tuple[float, int]:
        """Return log P of a token after a state, with backoff, and the state after it."""
        token, total = self.words[token], 0.0
        for _ in range(self.order):
            key = state * self.vocab_size + token
            index = bisect_left(self.keys, key)
            if index < len(self.keys) and self.keys[index] == key:
                return total + self.logp[index], self.next_state[index]
            total += self.backoff[state]
            state = self.shorter[state]
        return total, 0

    def end(self, state: int) -> float:
        """Return log P of the end of the text."""
        return self.score(state, EOS)[0]
