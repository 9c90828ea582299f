"""Estimate n-grams from counts: interpolated modified Kneser-Ney (Chen and Goodman 1998).

The counts of the shorter n-grams are chosen so that the model's own share of each token is that of
the text. Such an n-gram counts once for each different token that it follows, and once for each
time that it begins a fragment, where it follows nothing.
Legend: G n-grams of an order, V vocabulary.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from asr.lm.backoff import Backoff, Counts, Floats
from asr.tokenizer import EOS, SOS, UNK

# The discount where the counts are too few to give one.
_DISCOUNT = 0.5
# The share of each context's probability that is left to what a list does not hold.
_UNLISTED = 0.01


def estimate(counts: Counts, is_token_V: NDArray[np.bool_], end_share: float = 0.0) -> Backoff:
    """Return a model of text, or of words within a text; the fragments are samples of it.

    `end_share` is how many sentences end per token, for fragments that are no sentences.
    """
    counted = [
        np.bincount(suffixes, minlength=len(begins)) + begins
        for suffixes, begins in zip(counts.grams.suffixes[1:], counts.begins[:-1], strict=True)
    ]
    counted.append(counts.total[-1])
    counted[0] = counted[0].copy()
    counted[0][[SOS, UNK]] = 0.0
    counted[0][EOS] += end_share * counts.total[0].sum()
    return _interpolated(counts, counted, [_discounts(c_G) for c_G in counted], is_token_V)


def estimate_list(counts: Counts, is_token_V: NDArray[np.bool_]) -> Backoff:
    """Return a model of a list that holds nearly all that is said, each entry with its share."""
    counted = [c_G.copy() for c_G in counts.total]
    counted[0][SOS] = 0.0
    return _interpolated(counts, counted, [_UNLISTED * c_G for c_G in counted], is_token_V)


def end_share(texts: Iterable[Counts]) -> float:
    """Return how many sentences end per token of several texts."""
    total_V = sum((counts.total[0] for counts in texts), np.zeros(1))
    return float(total_V[EOS] / max(1.0, total_V[UNK + 1 :].sum()))


def _interpolated(
    counts: Counts, counted: list[Floats], discounts: list[Floats], is_token_V: NDArray[np.bool_]
) -> Backoff:
    """Return P(w | h) = (c(h w) - D(h w) + (D(h) + e(h)) · P(w | h')) / (c(h) + e(h)).

    D(h) is the sum of the discounts after h, e(h) how many fragments end in h, and h' is h without
    its first token. Below order 1 all tokens are equally likely.
    """
    grams = counts.grams
    p, backoff = [is_token_V / is_token_V.sum()], []
    for n, (c_G, discount_G) in enumerate(zip(counted, discounts, strict=True), 1):
        prefixes = grams.split(n)[0]
        ends = counts.ends[n - 2] if n > 1 else np.zeros(1)
        total = np.bincount(prefixes, c_G, len(ends)) + ends
        spare = np.bincount(prefixes, discount_G, len(ends)) + ends
        weight = np.divide(spare, total, out=np.ones(len(ends)), where=total > 0)
        share = np.divide(c_G - discount_G, total[prefixes], out=np.zeros(len(c_G)), where=c_G > 0)
        p.append(
            share + weight[prefixes] * p[-1][grams.suffixes[n - 1] if n > 1 else grams.keys[0]]
        )
        backoff.append(weight)
    return Backoff(grams, p[1:], backoff[1:])


def _discounts(c_G: Floats) -> Floats:
    """Return the discount (G,) of each count: one for 1, one for 2, one for more (ibid., eq. 26).

    Where these are impossible, as with few texts, all counts have the same discount (Ney, Essen and
    Kneser 1994).
    """
    n1, n2, n3, n4 = (int((c_G == times).sum()) for times in (1, 2, 3, 4))
    y = n1 / (n1 + 2 * n2) if n1 and n2 else _DISCOUNT
    chosen = (y, y, y)
    if n1 and n2 and n3 and n4:
        found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        if all(0 < d < times for times, d in enumerate(found, 1)):
            chosen = found
    discounts: Floats = np.array([0.0, *chosen])[c_G.astype(np.int64).clip(max=3)]
    return discounts
