"""A text may not repeat a phrase for ever, whatever the model says.

Legend: B utterances, W hypotheses, L places of the token buffer, P periods.
"""

import torch
from torch import Tensor

from asr.tokenizer import PAD

# The end of a hypothesis may be one phrase again and again (of up to PERIODS tokens) for
# max(_RUN, _REPEATS · phrase) tokens, then the phrase may not start once more.
PERIODS, _RUN, _REPEATS = 8, 8, 4


def grown_runs(tokens_BWL: Tensor, runs_BWP: Tensor, tokens_BW: Tensor, t: int) -> Tensor:
    """How many tokens at the end, now with `tokens_BW`, equal the one p places before them."""
    same = tokens_BW[..., None] == _recent(tokens_BWL, t)
    return torch.where(same, runs_BWP + 1, 0)


def forbidden(tokens_BWL: Tensor, runs_BWP: Tensor, t: int) -> Tensor:
    """(B, W, P): tokens that would start the phrase at the end once too often, and PAD."""
    period = torch.arange(1, PERIODS + 1, device=runs_BWP.device)
    too_often = runs_BWP + period >= torch.clamp(_REPEATS * period, min=_RUN)
    return torch.where(too_often, _recent(tokens_BWL, t), PAD)


def _recent(tokens_BWL: Tensor, t: int) -> Tensor:
    """(B, W, P): the tokens 1, 2 … P places before position `t`; PAD where there is none."""
    recent = tokens_BWL[..., max(0, t - PERIODS) : t].flip(-1)
    return torch.nn.functional.pad(recent, (0, PERIODS - recent.shape[-1]), value=PAD)
