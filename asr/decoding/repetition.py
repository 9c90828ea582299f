"""Keep texts from repeating a phrase endlessly, regardless of the scores.

Legend: B utterances, W hypotheses of each, K candidates, P periods.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from asr.tokenizer import PAD

# A text may end in repetitions of one phrase of up to PERIODS tokens, max(_RUN, _REPEATS · phrase)
# tokens in all; then the phrase may not begin once more.
PERIODS, _RUN, _REPEATS = 8, 8, 4


@dataclass
class Repetition:
    """The repetitions at the ends of hypotheses, for periods of 1, 2, … P tokens.

    `recent_BWP` is the token one period before the next one, PAD where there is none; `runs_BWP`
    is how many tokens at the end equal the token one period before; `longest_P` is their limit.
    """

    recent_BWP: Tensor
    runs_BWP: Tensor
    longest_P: Tensor

    @classmethod
    def start(cls, B: int, W: int, device: torch.device) -> "Repetition":
        """Return the repetitions of empty hypotheses."""
        period_P = torch.arange(1, PERIODS + 1, device=device)
        recent_BWP = torch.full((B, W, PERIODS), PAD, device=device)
        longest_P = (_REPEATS * period_P).clamp(min=_RUN) - period_P
        return cls(recent_BWP, torch.zeros_like(recent_BWP), longest_P)

    def __getitem__(self, utterances: Tensor) -> "Repetition":
        return Repetition(self.recent_BWP[utterances], self.runs_BWP[utterances], self.longest_P)

    def narrowed(self, n: int) -> "Repetition":
        """Return the repetitions of the first n hypotheses of each utterance."""
        return Repetition(self.recent_BWP[:, :n], self.runs_BWP[:, :n], self.longest_P)

    def blocked(self, tokens_BWK: Tensor) -> Tensor | Literal[False]:
        """Tell which candidates would exceed the limit on repetitions; False if none would."""
        too_often_BWP = self.runs_BWP >= self.longest_P
        if not too_often_BWP.any():
            return False
        never_BWP = torch.where(too_often_BWP, self.recent_BWP, PAD)
        return (tokens_BWK[..., None] == never_BWP[:, :, None]).any(-1)

    def extended(self, parents_BW: Tensor, tokens_BW: Tensor) -> "Repetition":
        """Return the state once hypothesis w is `parents_BW[b, w]` plus `tokens_BW[b, w]`."""
        index = parents_BW[..., None].expand(-1, -1, PERIODS)
        recent_BWP, runs_BWP = self.recent_BWP.gather(1, index), self.runs_BWP.gather(1, index)
        tokens_BW1 = tokens_BW[..., None]
        return Repetition(
            torch.cat((tokens_BW1, recent_BWP[..., :-1]), 2),
            (runs_BWP + 1) * (recent_BWP == tokens_BW1),
            self.longest_P,
        )
