"""Search one utterance's best text with few passes of the decoder, and find the same text.

A draft is a text that is found without the decoder; one pass of the decoder gives its joint score.
Then a search looks for texts that score at least as much as the draft, and drops each hypothesis
that cannot become one. Where the models are sure, it keeps one or two hypotheses in place of a
whole beam. Most of these are prefixes of the draft, whose log-probabilities are known.

If the text that it finds scores as much as the draft, this is what the whole beam would have found
(see `BeamSearch`). If not, the search is repeated with the score of that text as the floor, or
without a floor where it found none.
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
from asr.decoding.scorers import JointScorer
from asr.model.inference.tree import PrefixTree
from asr.tokenizer import EOS, SOS

# Scores that are summed in another order differ by less.
_TOLERANCE = 0.01
# A pass of so many rows costs little more than one of a few.
_ROWS = 16
# Where the draft scores less per token, so many hypotheses can reach its score that a whole beam is
# as fast (measured with two demo models on 60 dev utterances).
_LEAST_SCORE = -0.35
# Below all scores of texts, but above -inf.
_NO_FLOOR = -1e30


def is_sure(draft: Hypothesis) -> bool:
    """Tell whether the CTC head is so sure of a draft that it is worth a pass of the decoder."""
    return (draft.ctc_log_prob or 0.0) >= _LEAST_SCORE * (len(draft.tokens) + 1)


class TreeState:
    """Decoding steps whose log-probabilities are looked up in a tree, which grows as needed.

    A step maps the last tokens (1, W) to log-probabilities (1, W, V); W may change between steps.
    """

    def __init__(self, tree: PrefixTree, draft: tuple[int, ...]) -> None:
        self._tree, self._draft, self._parents = tree, draft, [-1]
        self._nodes: list[int] = []
        self._depth = 0

    def step(self, tokens_1W: Tensor, _: Any) -> Tensor:
        """Return the log-probabilities of the next token."""
        n_known, tokens = len(self._tree), tokens_1W[0].tolist()
        last = zip(self._parents, tokens, strict=True)
        self._nodes = [self._tree.node(parent, token) for parent, token in last]
        new = [n for n in zip(self._nodes, tokens, strict=True) if n[0] >= n_known]
        for node, token in new:
            self._tree.path(node, self._expected(token, _ROWS // len(new) - 1))
        self._depth += 1
        return self._tree.logp(self._nodes)[None]

    def _expected(self, token: int, n: int) -> list[int]:
        """Return the n tokens with which the draft goes on after a hypothesis that differs from it.

        `token` is the last one of the hypothesis. Where it is the draft's next token, the
        hypothesis left one out. Where it is the draft's token before, the hypothesis put one in.
        Else it stands in place of the draft's token.
        """
        end = self._depth  # of the part of the draft that the hypothesis stands for
        if token in self._draft[end : end + 1]:
            end += 1
        elif end > 1 and token in self._draft[end - 2 : end - 1]:
            end -= 1
        return list(self._draft[end : end + max(n, 0)])

    def reorder(self, parents_1W: Tensor) -> None:
        """Let hypothesis w continue hypothesis `parents_1W[0, w]`."""
        self._parents = [self._nodes[parent] for parent in parents_1W[0].tolist()]

    def select(self, indices: Tensor) -> None:
        """Keep the only utterance."""


def search_one(
    search: BeamSearch,
    tree: PrefixTree,
    draft: Hypothesis,
    new_ctc: Callable[[], CtcPrefixScorer],
    limits_1: Tensor,
    requests: Sequence[Request] | None,
) -> list[list[Hypothesis]] | None:
    """Return the best hypothesis that `search` finds for one utterance; None if it is no faster so.

    `draft` is a text with its log-probability by CTC. `new_ctc` returns a scorer of one empty
    hypothesis.
    """
    floor = _joint_score(search, tree, draft) - _TOLERANCE
    if floor < _LEAST_SCORE * (len(draft.tokens) + 1):
        return None
    while True:
        state = TreeState(tree, draft.tokens)
        scorer = JointScorer(state.step, state, new_ctc(), None)
        found = search(scorer, limits_1, requests, floor)
        best = found[0][0]
        if (best.ended != "no_speech" and best.score >= floor) or floor == _NO_FLOOR:
            return found
        floor = best.score - _TOLERANCE if best.ended != "no_speech" else _NO_FLOOR


def _joint_score(search: BeamSearch, tree: PrefixTree, draft: Hypothesis) -> float:
    """Return the joint score of the draft; the decoder's part takes one pass."""
    options, text = search.options, list(draft.tokens)
    wanted = torch.tensor([*text, EOS], device=search.num_words_V.device)
    logp_UV = tree.logp(tree.path(-1, [SOS, *text]))
    parts = (float(logp_UV.gather(1, wanted[:, None]).sum()), draft.ctc_log_prob or 0.0, 0.0)
    num_words = search.num_words_V[wanted[:-1]].sum()
    length_score = options.gamma * float(num_words.sqrt())
    joint = [weight * part for weight, part in zip(options.weights, parts, strict=True)]
    return float(sum(joint)) + length_score
