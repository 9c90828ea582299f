"""Mix n-gram models of several sources, weighted by what makes a dev text likely.

Legend: M models, G n-grams, K numbers of known tokens.
"""

import numpy as np

from asr.lm.backoff import Backoff, Counts, Floats, Grams, Ints

_STEPS = 100  # of expectation maximization at most; it ends where nothing changes any more
_CHANGE = 1e-4
_PRIOR = 50.0  # dev tokens that are added for each K, with the weights of all tokens


def fit(models: list[Backoff], dev: Counts) -> tuple[Floats, float]:
    """Return the weights (M, K) that make a dev text most likely, and its perplexity per token.

    The weights differ by K, how many of the tokens before a token the first model knows. Where it
    knows many, as in a phrase of its text, it is to be trusted more. The weights are found by
    expectation maximization (Dempster, Laird and Rubin 1977), from equal ones. Where K has few dev
    tokens, its weights stay near those of all tokens.
    """
    times_G = np.concatenate(dev.longest)
    p_MG = np.stack([np.concatenate(model.score(dev.grams)) for model in models])
    known_G = np.concatenate(_contexts(models[0], dev.grams))
    used_G = (times_G > 0) & (p_MG.sum(0) > 0)
    times_G, p_MG, known_G = times_G[used_G], p_MG[:, used_G], known_G[used_G]
    of_all = _likeliest(times_G, p_MG, np.zeros(len(models)))
    found = []
    for k in range(models[0].grams.order):
        here_G = known_G == k
        found.append(_likeliest(times_G[here_G], p_MG[:, here_G], _PRIOR * of_all))
    shares_MK = np.stack(found, 1)
    logp_G = np.log((shares_MK[:, known_G] * p_MG).sum(0))
    return shares_MK, float(np.exp(-(logp_G @ times_G) / max(1.0, times_G.sum())))


def _likeliest(times_G: Floats, p_MG: Floats, prior_M: Floats) -> Floats:
    """Return the weights (M,) that make counted tokens most likely, with prior counts added."""
    total = times_G.sum() + prior_M.sum()
    found = np.full(len(prior_M), 1 / len(prior_M))
    for _ in range(_STEPS if total else 0):
        shares_MG = found[:, None] * p_MG
        before, found = found, ((shares_MG / shares_MG.sum(0)) @ times_G + prior_M) / total
        if np.abs(found - before).max() < _CHANGE:
            break
    return found


def _contexts(model: Backoff, grams: Grams) -> list[Ints]:
    """Return, by order, how many tokens before each n-gram's last one the model knows."""
    known = [np.zeros(1, np.int64)]  # of a context: length of its longest suffix that is followed
    rows = np.zeros(1, np.int64)
    contexts = []
    for n in range(1, grams.order + 1):
        prefixes, tokens = grams.split(n)
        contexts.append(known[-1][prefixes])
        rows = model.grams.find(n, rows[prefixes], tokens)
        if n < model.grams.order:
            followed = np.zeros(len(model.grams.keys[n - 1]), bool)
            followed[model.grams.split(n + 1)[0]] = True
            is_known = (rows >= 0) & followed[rows]
        else:
            is_known = np.zeros(len(rows), bool)
        known.append(np.where(is_known, n, known[-1][grams.suffixes[n - 1]]))
    return contexts


def mix(models: list[Backoff], shares_MK: Floats) -> Backoff:
    """Return a model that lists each n-gram that any of the models lists, with the mixed P.

    The weights are those of `fit`, or (M, 1) where all contexts have the same. The rest of each
    context's probability is distributed as after the context without its first token.
    """
    grams = Grams.union([model.grams for model in models])
    scores = [model.score(grams) for model in models]
    p = []
    for known_G, of_order in zip(
        _contexts(models[0], grams), zip(*scores, strict=True), strict=True
    ):
        k_G = known_G.clip(max=shares_MK.shape[1] - 1)
        p.append(sum(s_K[k_G] * p_G for s_K, p_G in zip(shares_MK, of_order, strict=True)))
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
