"""Search the best texts of one utterance by its CTC head, frame by frame.

The beam holds prefixes with the probability that the frames so far are the prefix, ending in a
blank or in its last token (Graves 2012, "Supervised Sequence Labelling with Recurrent Neural
Networks", sec. 7.5; Hannun et al. 2014, algorithm 1). Probabilities are products that are scaled up
before they get too small, so that few steps take a logarithm.

In a frame only the blank counts, and the likeliest tokens whose probability reaches a threshold θ.
In most frames no token reaches θ, and nothing is extended. Let r_s be the probability of all other
tokens of frame s together. The paths that take one of these have together the probability
1 - ∏(1 - r_s) ≤ Σ r_s. By this much the probabilities of all texts together are too low; none is
too high. What the beam drops is missing too.

Legend: S encoder steps, V vocabulary, W prefixes (the beam).
"""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from asr.decoding.frame_tokens import frames
from asr.decoding.prefix import Prefix
from asr.tokenizer import MOST_TOKENS

_THRESHOLD = 1e-3
# Without scorers the W + 1 likeliest tokens of a frame are all that a beam of W can take; twice as
# many are looked at. After the i-th best prefix these are the 1 / i likeliest of them: for each
# token that follows it, i - 1 extensions of better prefixes are at least as good. A language model
# or a bonus can favor any token, so with one a prefix is extended by all.
_SLACK = 2
_SMALL, _LEAST_BLANK = 1e-100, 1e-30
# The product of two factors up to e^_MOST_OF_FACTOR and a total below 1 / _SMALL is still finite.
_MOST_OF_FACTOR, _MOST_OF_SCALE = 200.0, 600.0


def exp(x: float, most: float = _MOST_OF_FACTOR) -> float:
    """Return e^x, but e^`most` at the most: only senseless weights need more."""
    return math.exp(x if x < most else most)


class TokenScorer(Protocol):
    """Scores a token after a prefix, which a state represents. No score exceeds `most`."""

    most: float

    def start(self) -> Any:
        """Return the state of the empty prefix."""

    def score(self, state: Any, token: int) -> tuple[float, Any]:
        """Return what a token adds, and the state of the prefix with it."""

    def end(self, state: Any) -> float:
        """Return what the end of the text adds."""


class Found(NamedTuple):
    """A text, and log P of the CTC head and of the language model, without weights.

    `length_score` is what its length adds to the score. A token's confidence is its share among all
    tokens that may stand in its place, and the end of the text, by CTC head, language model and
    bonus.
    """

    tokens: tuple[int, ...]
    score: float
    log_prob: float
    lm_log_prob: float
    length_score: float
    confidences: tuple[float, ...]


# The next total, of_blank and of_token of a prefix: as it is (_ITSELF), or extended by a token.
_Entry = tuple[float, float, float, Prefix, int]
_ITSELF = -1


class PrefixBeam:
    """A prefix beam search of one utterance; its frames may come in blocks of any size.

    Prefixes are ordered by alpha · log P + lm_weight · (`lm` + lm_bonus · tokens) + gamma · √words
    + `bonus`. `num_words` is the number of words of each token. With a threshold of 0 only the beam
    leaves out tokens.
    """

    def __init__(
        self,
        beam_size: int,
        alpha: float = 1.0,
        gamma: float = 0.0,
        num_words: Sequence[float] = (),
        lm: TokenScorer | None = None,
        lm_weight: float = 1.0,
        bonus: TokenScorer | None = None,
        threshold: float = _THRESHOLD,
        lm_bonus: float = 0.0,
    ) -> None:
        self.beam_size, self.alpha, self.gamma = beam_size, alpha, gamma
        self.lm, self.lm_weight, self.bonus, self.threshold = lm, lm_weight, bonus, threshold
        self.token_bonus = lm_weight * lm_bonus if lm else 0.0
        self.num_words = num_words if gamma else ()
        self._most_words = max(self.num_words, default=0.0)
        most = (lm.most * lm_weight if lm else 0.0) + (bonus.most if bonus else 0.0)
        self._most = exp(most / alpha)
        root = Prefix(None, -1)
        root.lm_state, root.bonus_state = lm and lm.start(), bonus and bonus.start()
        root.total = root.of_blank = 1.0
        root.mass, root.is_live, root.growth = 1.0, True, self._growth(0.0)
        self._prefixes, self._beam = [root], [root]
        self._children: dict[int, Prefix] = {}  # by the key of the parent + token
        self._log_scale = 0.0

    def extend(self, logp_SV: Tensor) -> None:
        """Take the log-probabilities of the next steps."""
        for log_blank, tokens, probs in frames(logp_SV, self.threshold, _SLACK * self.beam_size):
            if tokens:
                self._take(max(math.exp(log_blank), _LEAST_BLANK), tokens, probs)
            else:
                self._log_scale += max(log_blank, math.log(_LEAST_BLANK))
                for node in self._beam:
                    node.of_blank, node.of_token = node.total, 0.0

    def n_best(self) -> list[Found]:
        """Return the texts of the beam as if the utterance ended here, best first."""
        found, ends = [], {}
        for node in self._beam:
            log_prob = math.log(node.total) + self._log_scale - node.added
            lm = node.lm + (self.lm.end(node.lm_state) if self.lm else 0.0)
            bonus = node.bonus + (self.bonus.end(node.bonus_state) if self.bonus else 0.0)
            ends[node] = log_prob, self._weighted(log_prob, lm) + bonus
            length = self._length(node)
            found.append((ends[node][1] + length, log_prob, lm, length, node.path()))
        found.sort(key=itemgetter(0), reverse=True)
        share = self._shares(ends)
        return [
            Found(
                tuple([n.token for n in path]), score, log_prob, lm, length,
                tuple([share[n] for n in path]),
            )
            for score, log_prob, lm, length, path in found
        ]  # fmt: skip

    def _shares(self, ends: dict[Prefix, tuple[float, float]]) -> dict[Prefix, float]:
        """Return the confidence of the last token of each prefix of the whole texts in `ends`.

        `ends` has log P of each text by the CTC head, and by all scorers with their weights. A
        confidence is the product of two shares. By all scorers, it is the token's share among the
        tokens that entered the beam after the same prefix, and the end of the text. By the CTC
        head, it is the share of all these in what left the prefix.
        """
        parts: dict[Prefix, list[tuple[Prefix, float, float]]] = {}
        for end in ends:
            parts |= {node.parent: [] for node in end.path()}
        for node in self._prefixes[1:]:
            if node.parent in parts:
                ctc = node.log_prob(node.mass)
                both = self._weighted(ctc, node.lm) + node.bonus
                parts[node.parent].append((node, ctc, both))
        shares: dict[Prefix, float] = {}
        for parent, children in parts.items():
            end_ctc, end_both = ends.get(parent, (-math.inf, -math.inf))
            top = max(end_both, *[both for *_, both in children])
            whole = math.exp(end_both - top) + sum([math.exp(p - top) for *_, p in children])
            one = parent.log_prob(1.0)
            known = sum([math.exp(p - one) for p in (end_ctc, *[p for _, p, _ in children])])
            all_left = max(known, parent.left + math.exp(end_ctc - one))
            part = known / all_left if all_left else 1.0
            shares |= {node: part * math.exp(both - top) / whole for node, _, both in children}
        return shares

    def _weighted(self, ctc: float, lm: float) -> float:
        return self.alpha * ctc + self.lm_weight * lm

    def _take(self, blank: float, tokens: list[int], probs: list[float]) -> None:
        """Take a frame: P of the blank, and the likeliest tokens with their P, falling."""
        p_of, p_any = dict(zip(tokens, probs, strict=True)), sum(probs)
        entries: list[_Entry] = []
        for node in self._beam:
            of_blank, of_token, left = node.total * blank, 0.0, node.total * p_any
            scale, p = exp(self._log_scale - node.scale, _MOST_OF_SCALE), p_of.get(node.token)
            if p is not None:
                of_token = node.of_token * p
                left -= of_token
                parent = node.parent
                if parent.is_live:
                    # A token that repeats the last one needs a blank between.
                    ways = parent.of_blank if parent.token == node.token else parent.total
                    inflow = ways * p * node.factor
                    of_token += inflow
                    node.mass += inflow * scale
            node.left += left * scale
            entries.append((of_blank + of_token, of_blank, of_token, node, _ITSELF))
        entries += self._extensions(min(entries, key=itemgetter(0))[0], tokens, probs)
        entries.sort(key=itemgetter(0), reverse=True)
        self._enter(entries[: self.beam_size])

    def _extensions(self, least: float, tokens: list[int], probs: list[float]) -> list[_Entry]:
        """Return the prefixes that are not in the beam, and that a frame may bring into it.

        `least` is the lowest total of the prefixes in the beam.
        """
        children, words, found = self._children, self.num_words, []
        has_lm, most_words, bonus = self.lm is not None, self._most_words, self.bonus
        floor = least if len(self._beam) == self.beam_size else 0.0
        is_scored, most = has_lm or bonus is not None, _SLACK * self.beam_size
        for i, node in enumerate(self._beam, 1):
            total, last, key, growth = node.total, node.token, node.key, node.growth
            bound, n = floor / (growth * self._most), most // (1 if is_scored else i)
            for token, p in zip(tokens[:n], probs[:n], strict=True):
                value = total * p
                if value <= bound:
                    break
                if token == last:
                    value = node.of_blank * p
                child = children.get(key + token)
                if child is None and (has_lm or (words and words[token] != most_words)):
                    child = self._child(node, token)  # its factor is not `growth`
                if child is None:
                    value *= growth
                    if bonus:
                        value *= exp(bonus.score(node.bonus_state, token)[0] / self.alpha)
                    if value > floor:
                        found.append((value, 0.0, value, node, token))
                elif not child.is_live:
                    value *= child.factor
                    if value > floor:
                        found.append((value, 0.0, value, child, _ITSELF))
        return found

    def _child(self, parent: Prefix, token: int) -> Prefix:
        """Return a new prefix: its parent and a token."""
        node = Prefix(parent, token)
        if self.lm:
            lm, node.lm_state = self.lm.score(parent.lm_state, token)
            node.lm = parent.lm + lm
        if self.bonus:
            bonus, node.bonus_state = self.bonus.score(parent.bonus_state, token)
            node.bonus = parent.bonus + bonus
        if self.num_words:
            node.n_words = parent.n_words + self.num_words[token]
        added = self.lm_weight * node.lm + node.bonus + self._length(node)
        node.added = added / self.alpha
        node.factor = exp(node.added - parent.added)
        node.growth = self._growth(node.n_words)
        self._children[parent.key + token] = node
        node.key = len(self._children) * MOST_TOKENS
        return node

    def _length(self, node: Prefix) -> float:
        """Return what the length of a prefix adds to its score."""
        return self.gamma * math.sqrt(node.n_words) + self.token_bonus * node.n_tokens

    def _growth(self, n_words: float) -> float:
        """Return the largest factor that the length of one more token can give."""
        more = math.sqrt(n_words + self._most_words) - math.sqrt(n_words)
        return exp((self.gamma * more + self.token_bonus) / self.alpha)

    def _enter(self, entries: list[_Entry]) -> None:
        """Make these the beam, best first; the best total becomes 1 where it is small or large."""
        beam = []
        for total, of_blank, of_token, origin, token in entries:
            if not total:
                break
            node = origin if token == _ITSELF else self._child(origin, token)
            if not node.is_live:
                if not node.mass:
                    self._prefixes.append(node)
                    node.scale = self._log_scale
                node.mass += of_token * exp(self._log_scale - node.scale, _MOST_OF_SCALE)
            beam.append((total, of_blank, of_token, node))
        for node in self._beam:
            node.is_live = False
        best = beam[0][0]
        scale = 1.0 if _SMALL < best < 1 / _SMALL else 1 / best
        self._log_scale -= math.log(scale)
        for total, of_blank, of_token, node in beam:
            node.total, node.of_blank = total * scale, of_blank * scale
            node.of_token, node.is_live = of_token * scale, node.total > 0
        self._beam = [node for *_, node in beam if node.is_live]
