"""Hold what a prefix beam search knows about a prefix."""

import math
from typing import Any


class Prefix:
    """A node of the trie of prefixes; the empty prefix is its own parent.

    `total`, `of_blank` and `of_token` are scaled probabilities. They are valid while it `is_live`,
    that is, while the prefix is in the beam. `added` is what scorers and length add to log P, and
    `factor` the exponential of what `added` is more than the parent's. `growth` is the largest
    factor that a child can have by its length alone.

    `mass` and `left` are sums over the steps in which the prefix was in the beam. They include all
    that is added and are in units of e^`scale`. `mass` is P that a text begins with the prefix;
    `left` is P that the text goes on with a token that counts in its frame.
    """

    __slots__ = (
        "added", "bonus", "bonus_state", "factor", "growth", "is_live", "key", "left", "lm",
        "lm_state", "mass", "n_tokens", "n_words", "of_blank", "of_token", "parent",
        "scale", "token", "total",
    )  # fmt: skip

    def __init__(self, parent: "Prefix | None", token: int) -> None:
        self.parent: Prefix = parent or self
        self.token, self.key, self.is_live = token, 0, False
        self.total = self.of_blank = self.of_token = 0.0
        self.scale = self.mass = self.left = 0.0
        self.added = self.lm = self.bonus = self.n_words = 0.0
        self.factor = self.growth = 1.0
        self.n_tokens: int = parent.n_tokens + 1 if parent else 0
        self.lm_state: Any = None
        self.bonus_state: Any = None

    def log_prob(self, value: float) -> float:
        """Return log P by the CTC head alone for a value of `mass` or `left`."""
        return math.log(value) + self.scale - self.added if value else -math.inf

    def path(self) -> list["Prefix"]:
        """Return the prefixes from the one with a single token to this one."""
        found, node = [], self
        while node.token >= 0:
            found.append(node)
            node = node.parent
        return found[::-1]
