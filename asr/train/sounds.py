"""Share output weights between Mandarin characters that sound alike.

Legend: B utterances, S encoder steps, D d_model, V vocabulary, P sounds of a character.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from asr.pinyin import Units, units_of
from asr.tokenizer import HAN_LETTER


def _sounds() -> Units:
    syllable, initial_final = units_of("syllable"), units_of("initial_final")

    def sounds(character: str) -> list[str]:
        (toned,) = syllable(character)
        # The marks keep a syllable apart from a final of the same letters.
        return [f"-{toned.rstrip('12345')}", f"-{toned}", *initial_final(character)]

    return sounds


class SharedSounds(nn.Module):
    """Adds to the CTC head's weights of each Mandarin character those of its sounds.

    These are its most usual syllable with and without the tone, its initial and its final. So
    what a rare character sounds like is learned from all that share a sound with it. Training
    alone has these weights: `added` is a part of the head that it leaves behind.
    """

    def __init__(self, tokens: Sequence[str], head: nn.Linear) -> None:
        super().__init__()
        found = _sounds()
        sounds = [found(token) if HAN_LETTER.fullmatch(token) else [] for token in tokens]
        self.units = sorted({sound for each in sounds for sound in each})
        ids = {unit: i for i, unit in enumerate(self.units, 1)}
        sounds_VP = torch.zeros(len(tokens), 4, dtype=torch.long)
        for row, each in zip(sounds_VP, sounds, strict=True):
            row[: len(each)] = torch.tensor([ids[sound] for sound in each], dtype=torch.long)
        self.sounds_VP: Tensor
        self.register_buffer("sounds_VP", sounds_VP, persistent=False)
        self.table = nn.Embedding(len(self.units) + 1, head.in_features, padding_idx=0)
        nn.init.zeros_(self.table.weight)
        head.register_forward_hook(self._add)

    def added(self) -> Tensor:
        """Return what the sounds add to the head's weights (V, D)."""
        added_VD: Tensor = self.table(self.sounds_VP).sum(1)
        return added_VD

    def _add(self, head: nn.Module, inputs: tuple[Tensor], logits_BSV: Tensor) -> Tensor:
        return logits_BSV + linear(inputs[0], self.added())
