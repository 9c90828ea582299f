"""Self-conditioned CTC: the guesses of an encoder layer go to the layers above it.

Legend: B batch, S encoder steps, D d_model, N units and a blank.
"""

import string

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from asr.schema import FrozenModel

_INITIALS = "b c ch d f g h j k l m n p q r s sh t w x y z zh"
_FINALS = (
    "a ai an ang ao e ei en eng er i ia ian iang iao ie in ing iong iu o ong ou u ua uai uan uang "
    "ue ui un uo v ve"
)
# All units: the initials of Mandarin syllables, their finals in five tones, letters and digits.
SOUNDS = tuple(
    dict.fromkeys(
        (
            *_INITIALS.split(),
            *(f"{final}{tone}" for final in _FINALS.split() for tone in range(1, 6)),
            *string.ascii_letters,
            *string.digits,
        )
    )
)


class ConditioningConfig(FrozenModel):
    """A CTC head of Mandarin initials and finals, and of letters, on an encoder layer.

    `layer` counts from 1. Its guesses go to the layers above (Nozaki and Komatsu 2021). `weight` is
    that of its loss in training, relative to the CTC loss of tokens.
    """

    layer: PositiveInt
    weight: PositiveFloat = 0.7


class Conditioning(nn.Module):
    """Adds to each step a map of the unit probabilities that a CTC head gives it."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, len(SOUNDS) + 1)
        self.back = nn.Linear(len(SOUNDS) + 1, d_model)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Map (B, S, D) to (B, S, D)."""
        logits_BSN = self.head(self.norm(x_BSD))
        y_BSD: Tensor = x_BSD + self.back(logits_BSN.softmax(-1))
        return y_BSD
