"""Compute a decoder's log-probabilities after many prefixes of one utterance's texts in one pass.

Legend: S encoder steps, D d_model, P nodes that there is room for, N nodes, V vocabulary.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from asr.model.inference.decoder import FastDecoder


class PrefixTree:
    """The prefixes of one utterance's texts: a node is its parent with a token appended.

    A node attends to itself and to its ancestors, by a mask, so that nodes of any depth share a
    pass (Miao et al. 2024, SpecInfer, sec. 4.2). Keys and values are stored for later nodes.
    """

    def __init__(self, decoder: FastDecoder, memory_1SD: Tensor, mask_1S: Tensor) -> None:
        self._decoder, self._state = decoder, decoder.start(memory_1SD, mask_1S)
        self._mask_PP = memory_1SD.new_empty(0, 0)
        self._logp_PV = memory_1SD.new_empty(0, decoder.embed.num_embeddings)
        self._nodes: dict[tuple[int, int], int] = {}
        self._new: list[tuple[int, int]] = []
        self._depths: list[int] = []
        self.n_passes = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, parent: int, token: int) -> int:
        """Return the number of a node, which may be new; -1 is the parent of the first tokens."""
        number = self._nodes.get((parent, token))
        if number is None:
            number = self._nodes[parent, token] = len(self)
            self._new.append((parent, token))
        return number

    def path(self, parent: int, tokens: list[int]) -> list[int]:
        """Return the nodes of a node's continuation by these tokens, one after the other."""
        nodes = []
        for token in tokens:
            parent = self.node(parent, token)
            nodes.append(parent)
        return nodes

    def logp(self, nodes: list[int]) -> Tensor:
        """Return the log-probabilities (N, V) of the token after each of these nodes.

        The first call after nodes were added computes all of them.
        """
        if self._new:
            self._compute(len(self) - len(self._new), len(self))
            self._new = []
        return self._logp_PV[nodes]

    def _compute(self, first: int, end: int) -> None:
        self._reserve(end)
        for number, (parent, _) in enumerate(self._new, first):
            if parent >= 0:
                self._mask_PP[number] = self._mask_PP[parent]
            self._mask_PP[number, number] = 0
            self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
        self._state.mask_BWP = self._mask_PP[None, first:end, :end]
        tokens = [token for _, token in self._new]
        logits_NV = self._decoder.expand(tokens, self._depths[first:], self._state)
        torch.log_softmax(logits_NV, -1, out=self._logp_PV[first:end])
        self.n_passes += 1

    def _reserve(self, n_nodes: int) -> None:
        if n_nodes > len(self._logp_PV):
            n_free = 2 * n_nodes - len(self._logp_PV)
            self._mask_PP = pad(self._mask_PP, (0, n_free, 0, n_free), value=-math.inf)
            self._logp_PV = pad(self._logp_PV, (0, 0, 0, n_free))
            self._state.past = [pad(past, (0, 0, 0, n_free)) for past in self._state.past]
