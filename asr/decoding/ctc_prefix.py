"""Score prefixes of texts by the CTC head (Watanabe et al. 2017, algorithm 2).

The recursion over frames of the prefix score is linear, x_s = y_s (x_{s-1} + phi_{s-1}), so its
solution is a cumulative sum: with P = cumsum(log y),
log x_s = P_s + logcumsumexp(log phi_{s-1} - P_{s-1}). No loop over frames is left. It is in float64
because P falls by hundreds. Legend: B utterances, W hypotheses, K candidate tokens, S frames.
"""

import torch
from torch import Tensor

from asr.tokenizer import EOS, PAD

BLANK = PAD
_NEVER = -1e10


class CtcPrefixScorer:
    """CTC prefix scores of W hypotheses of each of B utterances as they grow token by token.

    All start empty; frames beyond `lengths_B` count as blank with probability 1.
    """

    def __init__(self, logp_BSV: Tensor, lengths_B: Tensor, n_hypotheses: int) -> None:
        B, S, _ = logp_BSV.shape
        beyond_BS = torch.arange(S, device=lengths_B.device) >= lengths_B[:, None]
        logp_BSV = logp_BSV.double().masked_fill(beyond_BS[..., None], _NEVER / 100)
        logp_BSV[..., BLANK] = logp_BSV[..., BLANK].masked_fill(beyond_BS, 0.0)
        self.logp_BVS = logp_BSV.transpose(1, 2).contiguous()
        self.p_BSV: Tensor | None = None
        self.blank_B1S = self.logp_BVS[:, BLANK].cumsum(-1)[:, None]
        # The log-probability that the first s frames are the prefix and end in its last token
        # (`token`) or in a blank (`blank`).
        self.token_BWS = logp_BSV.new_full((B, n_hypotheses, S), _NEVER)
        self.blank_BWS = self.blank_B1S.expand(B, n_hypotheses, S).clone()
        self.last_BW = torch.full((B, n_hypotheses), BLANK, device=logp_BSV.device)
        self.is_empty = True

    def total(self) -> Tensor:
        """Return the log-probability (B, W) that the hypothesis is the whole text."""
        return torch.logaddexp(self.token_BWS[..., -1], self.blank_BWS[..., -1])

    def score(self, tokens_BWK: Tensor) -> Tensor:
        """Return the prefix scores with each candidate appended; for EOS, the whole text's."""
        y_BWKS = self._emission(tokens_BWK)
        before = self._before(self.token_BWS, self.blank_BWS, tokens_BWK)
        prefix_BWK = torch.logsumexp(before + y_BWKS, dim=-1)
        return torch.where(tokens_BWK == EOS, self.total()[..., None], prefix_BWK)

    def preselection_scores(self) -> Tensor:
        """Return approximate prefix scores (B, W, V) of all tokens, by one product in float32.

        Scores far below the best underflow to -inf, and a repetition of the last token scores too
        high.
        """
        both_BWS = torch.logaddexp(self.token_BWS, self.blank_BWS)
        phi_BWS = _shift(both_BWS, 0.0 if self.is_empty else _NEVER)
        ways_BWS = (phi_BWS - phi_BWS.amax(-1, keepdim=True)).exp().float()
        if self.p_BSV is None:
            self.p_BSV = self.logp_BVS.transpose(1, 2).exp().float()
        return (ways_BWS @ self.p_BSV).log()

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        """Let hypothesis w be hypothesis `parents_BW[b, w]` with `tokens_BW[b, w]` appended."""
        index = parents_BW[..., None].expand(-1, -1, self.token_BWS.shape[2])
        token_BWS, blank_BWS = self.token_BWS.gather(1, index), self.blank_BWS.gather(1, index)
        self.last_BW = self.last_BW.gather(1, parents_BW)
        before_BWS = self._before(token_BWS, blank_BWS, tokens_BW[..., None]).squeeze(2)
        path_BWS = self._emission(tokens_BW[..., None]).squeeze(2).cumsum(-1)
        self.token_BWS = _solve(path_BWS, before_BWS)
        self.blank_BWS = _solve(self.blank_B1S, _shift(self.token_BWS, _NEVER))
        self.last_BW = tokens_BW
        self.is_empty = False

    def select(self, indices: Tensor) -> None:
        """Keep these utterances only."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[indices])

    def _emission(self, tokens_BWK: Tensor) -> Tensor:
        batch = torch.arange(len(tokens_BWK), device=tokens_BWK.device)[:, None, None]
        return self.logp_BVS[batch, tokens_BWK]

    def _before(self, token_BWS: Tensor, blank_BWS: Tensor, tokens_BWK: Tensor) -> Tensor:
        """Return log phi_{s-1} (B, W, K, S): the paths that can emit the candidate at frame s.

        A token that repeats the last one needs a blank between.
        """
        both_BWS = torch.logaddexp(token_BWS, blank_BWS)
        repeats = (tokens_BWK == self.last_BW[..., None])[..., None]
        phi = torch.where(repeats, blank_BWS[:, :, None], both_BWS[:, :, None])
        return _shift(phi, 0.0 if self.is_empty else _NEVER)


def steps_needed(labels_BU: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the fewest encoder steps (B,) for labels: one each, and a blank in each equal pair."""
    pair_BU = torch.arange(1, max(1, labels_BU.shape[1]), device=labels_BU.device)
    pair_BU = pair_BU < lengths_B[:, None]
    return lengths_B + ((labels_BU[:, 1:] == labels_BU[:, :-1]) & pair_BU).sum(1)


def _shift(x: Tensor, first: float) -> Tensor:
    """Delay by one frame along the last axis."""
    return torch.cat((torch.full_like(x[..., :1], first), x[..., :-1]), dim=-1)


def _solve(path: Tensor, before: Tensor) -> Tensor:
    """Return log x of x_s = y_s (x_{s-1} + before_s), with path = cumsum(log y)."""
    return path + torch.logcumsumexp(before - _shift(path, 0.0), dim=-1)
