"""Align tokens to encoder steps: the most likely CTC path of a text.

Viterbi over blank, token, blank … token, blank (Graves et al. 2006, sec. 4.1, with the maximum in
place of the sum), all states of a batch at once. Legend: B utterances, S encoder steps, U tokens,
L states (2 U + 1).
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from asr.decoding.ctc_prefix import BLANK

_NEVER = -1e10


def align(logp_BSV: Tensor, steps_B: Tensor, labels_BU: Tensor, lengths_B: Tensor) -> Tensor:
    """Return (B, U, 2): the step at which each token starts, and the one after its last.

    `logp_BSV` are the CTC head's log-probabilities, of `steps_B` valid steps; `labels_BU` are the
    texts, of `lengths_B` tokens. Padding is ignored. The result is undefined for a text that needs
    more steps than there are (`ctc_prefix.steps_needed`).
    """
    B, U = labels_BU.shape
    S, device = logp_BSV.shape[1], logp_BSV.device
    states_BL = torch.full((B, 2 * U + 1), BLANK, device=device)
    states_BL[:, 1::2] = labels_BU
    emission_BSL = logp_BSV.gather(2, states_BL[:, None].expand(B, S, -1))
    # A blank may be skipped between tokens that differ.
    barred_BL = (states_BL == pad(states_BL, (2, 0), value=BLANK)[:, :-2]) | (states_BL == BLANK)
    score_BL = torch.full_like(emission_BSL[:, 0], _NEVER)
    score_BL[:, :2] = emission_BSL[:, 0, :2]
    moves: list[Tensor] = []
    for s in range(1, S):
        skipped = pad(score_BL, (2, 0), value=_NEVER)[:, :-2].masked_fill(barred_BL, _NEVER)
        stepped = pad(score_BL, (1, 0), value=_NEVER)[:, :-1]
        best_BL, move_BL = torch.stack((score_BL, stepped, skipped)).max(0)
        over_B1 = (steps_B <= s)[:, None]
        score_BL = torch.where(over_B1, score_BL, best_BL + emission_BSL[:, s])
        moves.append(move_BL.masked_fill(over_B1, 0))
    return _spans(_path(score_BL, moves, lengths_B), steps_B, U)


def _path(score_BL: Tensor, moves: list[Tensor], lengths_B: Tensor) -> Tensor:
    """Trace the states (B, S) of the best path back from its end."""
    last_B1 = 2 * lengths_B[:, None]
    ends_B2 = torch.cat(((last_B1 - 1).clamp(min=0), last_B1), 1)
    state_B1 = ends_B2.gather(1, score_BL.gather(1, ends_B2).argmax(1, keepdim=True))
    path = [state_B1]
    for move_BL in reversed(moves):
        state_B1 = state_B1 - move_BL.gather(1, state_B1)
        path.append(state_B1)
    return torch.cat(path[::-1], 1)


def _spans(path_BS: Tensor, steps_B: Tensor, U: int) -> Tensor:
    """Return the first step and the one after the last (B, U, 2) of each token's state."""
    S, device = path_BS.shape[1], path_BS.device
    is_valid_BS = torch.arange(S, device=device) < steps_B[:, None]
    state_U = 2 * torch.arange(U, device=device) + 1
    is_token_BUS = ((path_BS[:, None] == state_U[:, None]) & is_valid_BS[:, None]).byte()
    return torch.stack((is_token_BUS.argmax(2), S - is_token_BUS.flip(2).argmax(2)), 2)
