"""Score prefixes of texts by the CTC head (Watanabe et al. 2017, algorithm 2).

The recursion over frames of the prefix score is linear, x_s = y_s (x_{s-1} + phi_{s-1}), where y_s
is the probability of the token in frame s, and phi that of the paths to which it can be appended.
So its solution is a cumulative sum: with P = cumsum(log y),
log x_s = P_s + logcumsumexp(log phi_{s-1} - P_{s-1}). No loop over frames is left. The sum is in
float64 because P falls by hundreds.
Legend: B utterances, W hypotheses, K candidate tokens, S frames, V vocabulary.
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
        logp_BSV = logp_BSV.to(torch.promote_types(logp_BSV.dtype, torch.float32))
        beyond_BS = torch.arange(S, device=lengths_B.device) >= lengths_B[:, None]
        if beyond_BS.any():
            logp_BSV = logp_BSV.masked_fill(beyond_BS[..., None], _NEVER / 100)
            logp_BSV[..., BLANK] = logp_BSV[..., BLANK].masked_fill(beyond_BS, 0.0)
        self.logp_BVS = logp_BSV.transpose(1, 2).contiguous()
        self.p_BSV = logp_BSV.exp().float()
        self.blank_B1S = self.logp_BVS[:, None, BLANK].double().cumsum(-1)
        # The log-probability that the first s frames are the prefix and end in its last token
        # (`token`) or in a blank (`blank`).
        self.token_BWS = torch.full_like(self.blank_B1S, _NEVER).repeat(1, n_hypotheses, 1)
        self.blank_BWS = self.blank_B1S.repeat(1, n_hypotheses, 1)
        self.last_BW = torch.full((B, n_hypotheses), BLANK, device=logp_BSV.device)
        self._find_ways(0.0)

    def _find_ways(self, first: float) -> None:
        """Store log phi_{s-1} of each hypothesis and frame s, (B, W, 2, S).

        The first of the two is for any token. The second is for a token that repeats the last one,
        which needs a blank between. `first` is log phi before the first frame. `ways` is phi
        divided by its largest value over the frames, so that sums over frames are products of
        matrices.
        """
        both_BWS = torch.logaddexp(self.token_BWS, self.blank_BWS)
        self.total_BW = both_BWS[..., -1]
        self.phi_BW2S = _shift(torch.stack((both_BWS, self.blank_BWS), 2), first)
        self.most_BW21 = self.phi_BW2S.amax(-1, keepdim=True)
        self.ways_BW2S = (self.phi_BW2S - self.most_BW21).exp_()

    def score(self, tokens_BWK: Tensor) -> Tensor:
        """Return prefix scores (B, W, K) with each candidate appended; for EOS, the text's own."""
        p_BWKS = self._emission(tokens_BWK).exp_()
        sums_BW2K = self.ways_BW2S @ p_BWKS.transpose(2, 3)
        any_BWK, again_BWK = sums_BW2K.log_().add_(self.most_BW21).unbind(2)
        prefix_BWK = torch.where(tokens_BWK == self.last_BW[..., None], again_BWK, any_BWK)
        return torch.where(tokens_BWK == EOS, self.total_BW[..., None], prefix_BWK)

    def preselection_scores(self) -> Tensor:
        """Return approximate prefix scores (B, W, V) of all tokens, by one product in float32.

        They lack a summand that all tokens of a hypothesis share. Scores far below the best
        underflow to -inf, and a repetition of the last token scores too high.
        """
        return (self.ways_BW2S[:, :, 0].float() @ self.p_BSV).log_()

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        """Let hypothesis w be hypothesis `parents_BW[b, w]` with `tokens_BW[b, w]` appended."""
        is_again_BW = tokens_BW == self.last_BW.gather(1, parents_BW)
        index_BW = 2 * parents_BW + is_again_BW
        index_BWS = index_BW[..., None].expand(-1, -1, self.phi_BW2S.shape[3])
        before_BWS = self.phi_BW2S.flatten(1, 2).gather(1, index_BWS)
        path_BWS = self._emission(tokens_BW).cumsum(-1)
        self.token_BWS = _solve(path_BWS, before_BWS)
        self.blank_BWS = _solve(self.blank_B1S, _shift(self.token_BWS, _NEVER))
        self.last_BW = tokens_BW
        self._find_ways(_NEVER)

    def select(self, indices: Tensor) -> None:
        """Keep these utterances only."""
        for name, value in vars(self).items():
            setattr(self, name, value[indices])

    def _emission(self, tokens: Tensor) -> Tensor:
        """Return the log-probabilities in double (B, W, …, S) of tokens (B, W, …)."""
        V = self.logp_BVS.shape[1]
        rows_B = torch.arange(0, V * tokens.shape[0], V, device=tokens.device)
        rows = tokens + rows_B.view(-1, *[1] * (tokens.dim() - 1))
        return self.logp_BVS.flatten(0, 1)[rows].double()


def steps_needed(labels_BU: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the fewest encoder steps (B,) for labels: one each, and a blank in each equal pair."""
    pair_BU = torch.arange(1, max(1, labels_BU.shape[1]), device=labels_BU.device)
    pair_BU = pair_BU < lengths_B[:, None]
    return lengths_B + ((labels_BU[:, 1:] == labels_BU[:, :-1]) & pair_BU).sum(1)


def _shift(x: Tensor, first: float) -> Tensor:
    """Return x delayed by one frame along the last axis, with `first` in front."""
    return torch.cat((torch.full_like(x[..., :1], first), x[..., :-1]), dim=-1)


def _solve(path: Tensor, before: Tensor) -> Tensor:
    """Return log x of x_s = y_s (x_{s-1} + before_s), with path = cumsum(log y)."""
    return path + torch.logcumsumexp(before - _shift(path, 0.0), dim=-1)
