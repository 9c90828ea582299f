"""Score phrases within a text that grows token by token.

A phrase of n tokens with the weight w is worth (n - 1) · w; a phrase of a single token is worth w.
A text is worth the most that phrases in it, which do not overlap, are worth together.

While a phrase is matched, each of its tokens but the first adds w. Where the match fails, or the
text ends, all that it added is taken back. The first token adds nothing: almost any token begins
one of many phrases, and a beam would be full of matches that fail.

All matches of a text are followed at once, as in Aho and Corasick (1975), "Efficient String
Matching". They are few, since a match is dropped where it can add nothing to what its tokens are
worth already.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class _Node:
    """A prefix of phrases, with the tokens that may follow.

    `worth` is what the phrase that ends here is worth, `most` the largest worth of the phrases that
    go on, and `lead` the most that the prefix has added as a part of one of these.
    """

    __slots__ = ("depth", "lead", "most", "next", "worth")

    def __init__(self, depth: int) -> None:
        self.next: dict[int, _Node] = {}
        self.depth, self.worth, self.most, self.lead = depth, 0.0, 0.0, 0.0


class State(NamedTuple):
    """The running matches of a text, and what they have added so far.

    Each match comes with a difference: what the text before the match is worth, less what the whole
    text is worth. `rest` is what the running matches can still add, without any other match.
    """

    matches: tuple[tuple[_Node, float], ...] = ()
    added: float = 0.0
    rest: float = 0.0


_NONE = State()


class PhraseTrie:
    """A `TokenScorer` of phrases; each is given as its tokens and the weight of one token."""

    def __init__(self, phrases: Iterable[tuple[Sequence[int], float]]) -> None:
        self._root, self.most = _Node(0), 0.0
        for tokens, weight in phrases:
            self.most = max(self.most, weight)
            self._add(tokens, weight)
        self._first = {token: self._step(_NONE, token) for token in self._root.next}

    def _add(self, tokens: Sequence[int], weight: float) -> None:
        node, worth = self._root, weight * max(1, len(tokens) - 1)
        for token in tokens:
            node.most = max(node.most, worth)
            node.lead = max(node.lead, weight * (node.depth - 1))
            node = node.next.setdefault(token, _Node(node.depth + 1))
        node.worth = max(node.worth, worth)

    def start(self) -> State:
        """Return the state of the empty text."""
        return _NONE

    def score(self, state: State, token: int) -> tuple[float, State]:
        """Return what a token adds or takes back, and the state of the text with it."""
        for node, _ in state.matches:
            if token in node.next:
                return self._step(state, token)
        added, new = self._first.get(token, (0.0, _NONE))
        return added - state.added, new

    def _step(self, state: State, token: int) -> tuple[float, State]:
        """Return what `score` returns where the token continues or begins a match."""
        worth, running = 0.0, []
        for node, before in (*state.matches, (self._root, 0.0)):
            if (child := node.next.get(token)) is not None:
                worth = max(worth, before + child.worth)
                running.append((child, before))
        matches = tuple([(n, b - worth) for n, b in running if b - worth + n.most > 0])
        added = max(0.0, *[b + n.lead for n, b in matches], 0.0)
        top = max(0.0, *[b + n.most for n, b in matches], 0.0)
        return worth + added - state.added, State(matches, added, top - added)

    def end(self, state: State) -> float:
        """Return what the end of the text takes back."""
        return -state.added

    def worth(self, tokens: Sequence[int]) -> float:
        """Return what the phrases in a text are worth."""
        state, total = self.start(), 0.0
        for token in tokens:
            added, state = self.score(state, token)
            total += added
        return total + self.end(state)

    def first(self) -> list[tuple[int, float]]:
        """Return the tokens that begin phrases, with what they add to the empty text."""
        return [(token, added) for token, (added, _) in self._first.items()]

    def following(self, state: State) -> list[tuple[int, float]]:
        """Return the tokens that continue matches, with what each adds."""
        tokens = dict.fromkeys(token for node, _ in state.matches for token in node.next)
        return [(token, self.score(state, token)[0]) for token in tokens]
