"""Mix n-gram models of several sources, weighted by what makes a dev text likely.

Legend: M models, G n-grams.
"""

import numpy as np

from asr.lm.backoff import Backoff, Counts, Floats, Grams

_STEPS = 100  # of expectation maximization, which ends where nothing changes any more
_CHANGE = 1e-4


def weights(models: list[Backoff], dev: Counts) -> Floats:
    """Return the weights (M,) at which the mixture makes a dev text most likely.

    By expectation maximization (Dempster, Laird and Rubin 1977), from equal weights.
    """
    times_G = np.concatenate(dev.longest)
    p_MG = np.stack([np.concatenate(model.score(dev.grams)) for model in models])
    used_G = (times_G > 0) & (p_MG.sum(0) > 0)
    times_G, p_MG = times_G[used_G], p_MG[:, used_G]
    found = np.full(len(models), 1 / len(models))
    for _ in range(_STEPS if len(times_G) else 0):
        shares_MG = found[:, None] * p_MG
        before, found = found, (shares_MG / shares_MG.sum(0)) @ times_G / times_G.sum()
        if np.abs(found - before).max() < _CHANGE:
            break
    return found


def mix(models: list[Backoff], shares: Floats) -> Backoff:
    """Return a model whose listed n-grams, all that any model lists, have the mixed P.

    The rest of each context's probability is shared as after the context without its first token.
    """
    grams = Grams.union([model.grams for model in models])
    scores = [model.score(grams) for model in models]
    p = [shares @ np.stack(of_order) for of_order in zip(*scores, strict=True)]
    backoff = []
    for n in range(2, grams.order + 1):
        prefixes, shorter = grams.split(n)[0], p[n - 2][grams.suffixes[n - 1]]
        n_contexts = len(grams.keys[n - 2])
        listed, of_shorter = (
            1 - np.bincount(prefixes, values, n_contexts) for values in (p[n - 1], shorter)
        )
        # Where all tokens are listed, nothing is left to share.
        is_open = (of_shorter > 1e-9) & (listed > 1e-12)
        backoff.append(np.divide(listed, of_shorter, out=np.ones(n_contexts), where=is_open))
    return Backoff(grams, p, backoff)


def perplexity(model: Backoff, text: Counts) -> float:
    """Return the perplexity of a text per token, EOS included, unknown ones left out."""
    times_G, p_G = np.concatenate(text.longest), np.concatenate(model.score(text.grams))
    used_G = (times_G > 0) & (p_G > 0)
    logp = np.log(p_G[used_G]) @ times_G[used_G]
    return float(np.exp(-logp / times_G[used_G].sum()))
