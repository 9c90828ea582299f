"""A text may not repeat a phrase for ever, whatever the model says.

Legend: B utterances, W hypotheses, K candidates, P periods.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from asr.tokenizer import PAD

# The end of a hypothesis may be one phrase again and again (of up to PERIODS tokens) for
# max(_RUN, _REPEATS · phrase) tokens, then the phrase may not start once more.
PERIODS, _RUN, _REPEATS = 8, 8, 4


@dataclass
class Repetition:
    """How the ends of hypotheses repeat themselves.

    `recent_BWP` is the token 1, 2 … P places back, PAD where there is none; `runs_BWP` how many
    tokens at the end equal the one so many places before them; `longest_P` how many may.
    """

    recent_BWP: Tensor
    runs_BWP: Tensor
    longest_P: Tensor

    @classmethod
    def start(cls, B: int, W: int, device: torch.device) -> "Repetition":
        """Of empty hypotheses."""
        period_P = torch.arange(1, PERIODS + 1, device=device)
        recent_BWP = torch.full((B, W, PERIODS), PAD, device=device)
        longest_P = (_REPEATS * period_P).clamp(min=_RUN) - period_P
        return cls(recent_BWP, torch.zeros_like(recent_BWP), longest_P)

    def __getitem__(self, utterances: Tensor) -> "Repetition":
        """Of these utterances."""
        return Repetition(self.recent_BWP[utterances], self.runs_BWP[utterances], self.longest_P)

    def blocked(self, tokens_BWK: Tensor) -> Tensor | Literal[False]:
        """(B, W, K): whether a token starts the phrase at the end once too often; False: none."""
        too_often_BWP = self.runs_BWP >= self.longest_P
        if not too_often_BWP.any():
            return False
        never_BWP = torch.where(too_often_BWP, self.recent_BWP, PAD)
        return (tokens_BWK[..., None] == never_BWP[:, :, None]).any(-1)

    def extended(self, parents_BW: Tensor, tokens_BW: Tensor) -> "Repetition":
        """Hypothesis w is now what `parents_BW[b, w]` was, and `tokens_BW[b, w]`."""
        index = parents_BW[..., None].expand_as(self.recent_BWP)
        recent_BWP, runs_BWP = self.recent_BWP.gather(1, index), self.runs_BWP.gather(1, index)
        tokens_BW1 = tokens_BW[..., None]
        return Repetition(
            torch.cat((tokens_BW1, recent_BWP[..., :-1]), 2),
            (runs_BWP + 1) * (recent_BWP == tokens_BW1),
            self.longest_P,
        )
