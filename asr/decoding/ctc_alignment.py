"""Align tokens to encoder steps: the most likely CTC path of a text.

Viterbi over blank, token, blank … token, blank (Graves et al. 2006, sec. 4.1, with the maximum in
place of the sum), all states of a batch at once. Legend: B utterances, S encoder steps, U tokens,
L states (2 U + 1).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from asr.decoding.ctc_prefix import BLANK

_NEVER = np.float32(-1e10)

Array = NDArray[np.float32]


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
    emission_BSL = logp_BSV.gather(2, states_BL[:, None].expand(B, S, -1)).float().cpu().numpy()
    # A blank may be skipped between tokens that differ.
    barred_BL = (states_BL == pad(states_BL, (2, 0), value=BLANK)[:, :-2]) | (states_BL == BLANK)
    penalty_BL = np.where(barred_BL.cpu().numpy(), _NEVER, np.float32(0))
    path_BS = _path(emission_BSL, penalty_BL, steps_B.cpu().numpy(), lengths_B.cpu().numpy())
    return _spans(torch.from_numpy(path_BS).to(device), steps_B, U)


def _path(
    emission_BSL: Array, penalty_BL: Array, steps_B: np.ndarray, lengths_B: np.ndarray
) -> np.ndarray:
    """Return the states (B, S) of the best path.

    A step is little work in many calls, and a call of numpy costs less than one of torch.
    """
    B, S, L = emission_BSL.shape
    scores_BX = np.full((B, L + 2), _NEVER)  # two columns in front: no move begins there
    scores_BX[:, 2:4] = emission_BSL[:, 0, :2]
    moves_SBL = np.zeros((S, B, L), np.int8)
    best_BL = np.empty((B, L), np.float32)
    for s in range(1, S):
        stayed, stepped, move_BL = scores_BX[:, 2:], scores_BX[:, 1:-1], moves_SBL[s]
        skipped_BL = scores_BX[:, :-2] + penalty_BL
        np.greater(stepped, stayed, out=move_BL.view(bool))
        np.maximum(stayed, stepped, out=best_BL)
        np.putmask(move_BL, skipped_BL > best_BL, 2)
        np.maximum(best_BL, skipped_BL, out=best_BL)
        best_BL += emission_BSL[:, s]
        over_B = steps_B <= s
        if over_B.any():
            best_BL[over_B], move_BL[over_B] = stayed[over_B], 0
        scores_BX[:, 2:] = best_BL
    rows_B, path_BS = np.arange(B), np.empty((B, S), np.int64)
    blank_B, token_B = 2 * lengths_B, np.maximum(2 * lengths_B - 1, 0)
    ends_in_token_B = scores_BX[rows_B, 2 + token_B] >= scores_BX[rows_B, 2 + blank_B]
    state_B = np.where(ends_in_token_B, token_B, blank_B)
    for s in range(S - 1, -1, -1):
        path_BS[:, s] = state_B
        state_B = state_B - moves_SBL[s, rows_B, state_B]
    return path_BS


def _spans(path_BS: Tensor, steps_B: Tensor, U: int) -> Tensor:
    """Return the first step and the one after the last (B, U, 2) of each token's state."""
    S, device = path_BS.shape[1], path_BS.device
    is_valid_BS = torch.arange(S, device=device) < steps_B[:, None]
    state_U = 2 * torch.arange(U, device=device) + 1
    is_token_BUS = ((path_BS[:, None] == state_U[:, None]) & is_valid_BS[:, None]).byte()
    return torch.stack((is_token_BUS.argmax(2), S - is_token_BUS.flip(2).argmax(2)), 2)
