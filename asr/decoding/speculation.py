"""Search one utterance's best text with few passes of the decoder, and find the same text.

A draft, which costs no pass, is a text whose joint score the decoder computes in one pass. A search
for texts that score at least as much as the draft drops each hypothesis that cannot become one:
where the models are sure, it keeps one or two in place of a whole beam, and most of these are
prefixes of the draft, whose log-probabilities are known. If what it finds does score as much, it is
what the whole beam would have found (see `BeamSearch`); if not, the search is repeated without.
Legend: W hypotheses, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_prefix import CtcPrefixScorer
from asr.decoding.hypothesis import Hypothesis
from asr.decoding.request import Request
from asr.decoding.scorers import JointScorer, LmScorer
from asr.model.inference.tree import PrefixTree
from asr.tokenizer import EOS, SOS

# Sums in another order differ by less.
_TOLERANCE = 0.01
# Below all scores of texts, but above -inf.
_NO_FLOOR = -1e30


class TreeState:
    """Decoding steps whose log-probabilities are looked up in a tree, which grows as needed.

    A step maps the last tokens (1, W) to log-probabilities (1, W, V); W may change between steps.
    """

    def __init__(self, tree: PrefixTree) -> None:
        self._tree, self._parents = tree, [-1]
        self._nodes: list[int] = []

    def step(self, tokens_1W: Tensor, _: Any) -> Tensor:
        """Return the log-probabilities of the next token."""
        last = zip(self._parents, tokens_1W[0].tolist(), strict=True)
        self._nodes = [self._tree.node(parent, token) for parent, token in last]
        return self._tree.logp(self._nodes)[None]

    def reorder(self, parents_1W: Tensor) -> None:
        """Let hypothesis w continue hypothesis `parents_1W[0, w]`."""
        self._parents = [self._nodes[parent] for parent in parents_1W[0].tolist()]

    def select(self, indices: Tensor) -> None:
        """Keep the only utterance."""


def search_one(
    search: BeamSearch,
    tree: PrefixTree,
    draft: Hypothesis,
    start: Callable[[], tuple[CtcPrefixScorer | None, LmScorer | None]],
    limits_1: Tensor,
    requests: Sequence[Request] | None,
) -> list[list[Hypothesis]]:
    """Return what `search` finds for one utterance: its best hypothesis.

    `draft` is a text with its log-probability by CTC. `start` returns scorers of one empty
    hypothesis.
    """
    floor = _joint_score(search, tree, draft, start()[1]) - _TOLERANCE
    while True:
        state = TreeState(tree)
        scorer = JointScorer(state.step, state, *start())
        found = search(scorer, limits_1, requests, floor)
        best = found[0][0]
        if best.ended != "no_speech" and best.score >= floor or floor == _NO_FLOOR:
            return found
        floor = best.score - _TOLERANCE if best.ended != "no_speech" else _NO_FLOOR


def _joint_score(
    search: BeamSearch, tree: PrefixTree, draft: Hypothesis, lm: LmScorer | None
) -> float:
    """Return the joint score of a text: the decoder's part is one pass."""
    options, text = search.options, list(draft.tokens)
    wanted = torch.tensor([*text, EOS], device=search.num_words_V.device)
    logp_UV = tree.logp(tree.path(-1, [SOS, *text]))
    parts = [float(logp_UV.gather(1, wanted[:, None]).sum()), draft.ctc_log_prob or 0.0]
    parts.append(_lm_score(lm, wanted) if lm else 0.0)
    length_score = options.gamma * float(search.num_words_V[wanted[:-1]].sum()) ** 0.5
    return sum(w * part for w, part in zip(options.weights, parts, strict=True)) + length_score


def _lm_score(lm: LmScorer, wanted_U: Tensor) -> float:
    """Return a language model's log-probability of a text that ends in EOS."""
    total, parent_11 = 0.0, torch.zeros(1, 1, dtype=torch.long, device=wanted_U.device)
    for i, token_1 in enumerate(wanted_U.split(1)):
        total += float(lm.score(token_1[None, None]))
        if i < len(wanted_U) - 1:
            lm.advance(parent_11, token_1[None])
    return total
