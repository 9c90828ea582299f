"""Decode greedily by sounds: the CTC head's probabilities of Mandarin homophones are added.

A model may recognize the sound of a word that its training lacks, but hardly knows how the word is
written. Then it spreads the probability of a syllable over all characters with this sound. Another
syllable, which fewer characters share, may seem more likely. So their probabilities are added.

Legend: B utterances, S encoder steps, V vocabulary, G groups of tokens that sound alike.
"""

from dataclasses import replace

import torch
from torch import Tensor

from asr.decoding.ctc_greedy import greedy_texts
from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import DecodingOptions
from asr.errors import ConfigError
from asr.normalization import HAN_LETTER
from asr.pinyin import units_of
from asr.tokenizer import SPECIAL, Tokenizer

_LEAST = 1e-30  # a probability, so that its logarithm is finite


class Homophones:
    """Which characters of a vocabulary sound alike, tones included, and how a sound is written.

    A character counts for its most usual reading alone. Every sound is written as its commonest
    character in the texts that the tokenizer was made of; characters that fine-tuning added come
    last. Each special token, letter and digit is a group of its own. Raises ConfigError where
    tokens are longer than a character, and where pypinyin is not installed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = tokenizer.tokens()
        if any(len(token) > 1 for token in tokens[len(SPECIAL) :]):
            raise ConfigError(
                "decoding.method ctc_sounds is for tokens of one character, and this model has "
                "longer ones: use ctc_greedy"
            )
        syllable, ids = units_of("syllable"), dict[str, int]()
        sounds = ["-".join(syllable(t)) if HAN_LETTER.fullmatch(t) else f"={t}" for t in tokens]
        sounds[: len(SPECIAL)] = map(str, SPECIAL)  # whatever a stranger's model calls them
        groups = [ids.setdefault(sound, len(ids)) for sound in sounds]
        by_score = sorted(range(len(tokens)), key=tokenizer.scores().__getitem__)
        commonest = {groups[token]: token for token in by_score}  # of each group the last
        self.group_V = torch.tensor(groups)
        self.written_G = torch.tensor([commonest[group] for group in range(len(ids))])

    def texts(
        self, logp_BSV: Tensor, steps_B: Tensor, options: DecodingOptions, num_words_V: Tensor
    ) -> list[Hypothesis]:
        """Return the most likely sounds of each utterance, written in characters.

        Two characters of the same sound in a row become one unless a blank is between them. The
        log-probability, and the confidence of each character, are those of the sounds.
        """
        group_V, written_G = self.group_V.to(logp_BSV.device), self.written_G.to(logp_BSV.device)
        p_BSG = logp_BSV.new_zeros(*logp_BSV.shape[:2], len(written_G))
        logp_BSG = p_BSG.index_add_(2, group_V, logp_BSV.exp()).clamp(_LEAST, 1.0).log()
        # The special tokens are the first, so that the groups have the blank where tokens have it.
        found = greedy_texts(logp_BSG, steps_B, options, num_words_V[written_G])
        written = self.written_G.tolist()
        return [replace(h, tokens=tuple(written[group] for group in h.tokens)) for h in found]
