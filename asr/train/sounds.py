"""The sounds of Mandarin characters: those that sound alike share output weights in training.

Legend: B utterances, S encoder steps, D d_model, V vocabulary, P sounds of a character, N units.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, linear

from asr.config import Config
from asr.decoding.ctc_prefix import BLANK
from asr.errors import ConfigError
from asr.model.sounds import SoundsHead
from asr.normalization import HAN_LETTER, normalize_text
from asr.pinyin import Units, units_of
from asr.tokenizer import SPECIAL
from asr.train.auxiliary import UnitCtc

_SPACE = "▁"  # as a token


def check_sounds(config: Config) -> None:
    """Raise ConfigError for `training.shared_sounds` with a low-rank CTC head.

    The shared weights are added to the head's weights, and the sum has no such factors.
    """
    if config.training.shared_sounds and "ctc_head" in config.model.ranks:
        raise ConfigError(
            "training.shared_sounds adds to the weights of the CTC head, and model.ranks has "
            "factors for them: set training.shared_sounds=false"
        )


def _sounds() -> Units:
    syllable, initial_final = units_of("syllable"), units_of("initial_final")

    def sounds(character: str) -> list[str]:
        (toned,) = syllable(character)
        # The marks keep a syllable apart from a final of the same letters.
        return [f"-{toned.rstrip('12345')}", f"-{toned}", *initial_final(character)]

    return sounds


class SharedSounds(nn.Module):
    """Adds to the CTC head's weights of each Mandarin character the weights of its sounds.

    The sounds are its most usual syllable with and without the tone, its initial and its final. So
    the sound of a rare character is learned from all characters that share it. Only training has
    these weights: the head that a bundle stores contains `added`.
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
        return embedding_bag(self.sounds_VP, self.table.weight, mode="sum", padding_idx=0)

    def _add(self, head: nn.Module, inputs: tuple[Tensor], logits_BSV: Tensor) -> Tensor:
        return logits_BSV + linear(inputs[0], self.added())


class Readings:
    """The syllables of texts, and the syllable that each character has most often in them.

    Called with a text, it returns the text's syllables. A syllable that is not the most frequent
    one of any character is replaced by the most frequent one of its own character.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._syllables = units_of("syllable")
        counts = defaultdict[str, Counter[str]](Counter)
        for text in texts:
            for character, syllable in self._pairs(text):
                counts[character][syllable] += 1
        self.usual = {c: min(n, key=lambda unit: (-n[unit], unit)) for c, n in counts.items()}
        self.units = frozenset(self.usual.values())

    def _pairs(self, text: str) -> Iterable[tuple[str, str]]:
        """Yield the characters of a text with what they sound like there."""
        return zip(normalize_text(text).replace(" ", ""), self._syllables(text), strict=True)

    def __call__(self, text: str) -> list[str]:
        """Return the syllables of a text."""
        return [u if u in self.units else self.usual.get(c, u) for c, u in self._pairs(text)]

    def alone(self, character: str) -> str | None:
        """Return the syllable of a character alone, None where pypinyin gives no single one."""
        found = self._syllables(character)
        return found[0] if len(found) == 1 else None


def sounds_ctc(
    head: SoundsHead, layer: nn.Module, tokens: Sequence[str], texts: Iterable[str]
) -> UnitCtc:
    """Tie the rows of the head of sounds, one for each syllable, and return the head's loss.

    The special tokens and the space have no sound, and get the blank's row. Tokens that do not
    occur in the texts, as most do not in a fine-tuning, keep their rows.
    """
    readings = Readings(texts)
    characters = [normalize_text(token) for token in tokens]
    units = [readings.usual.get(character) for character in characters]
    tied = _ties(units, [readings.alone(c) for c in characters], head.rows_VD)
    for token, character in enumerate(characters):
        if token < len(SPECIAL) or character == _SPACE:
            tied[token] = BLANK
    rows = sorted(set(tied) - {BLANK})
    head.tie(torch.tensor(tied), torch.tensor([BLANK, *rows]))
    # A row whose sound is in no text is a unit too: training tells the others apart from it.
    names = [units[row] or f"={tokens[row]}" for row in rows]
    return UnitCtc(readings, names, layer, head.of_units)


def _ties(units: Sequence[str | None], alone: Sequence[str | None], rows_VD: Tensor) -> list[int]:
    """Return for each token the index of the token whose row it gets.

    Tokens with the same unit in the texts share a row. A token without a unit (None) keeps the row
    that it has in `rows_VD`, with all tokens of equal rows. `alone` are the syllables of single
    tokens, by which most rows of a bundle are tied.
    """
    first: dict[str, int] = {}
    for is_usual in (True, False):
        for token, unit in enumerate(units):
            if unit and (unit == alone[token]) == is_usual:
                first.setdefault(unit, token)
    group_V = rows_VD.unique(dim=0, return_inverse=True)[1].tolist()
    kept: dict[int, int] = {}
    tied = []
    for token, unit in enumerate(units):
        same = first.get(unit or alone[token] or "")
        if unit is None and (same is None or group_V[same] != group_V[token]):
            same = kept.setdefault(group_V[token], token)
        assert same is not None
        tied.append(same)
    return tied
