"""The confidence below which a text is left out, chosen on dev, and the error rates with it."""

from bisect import bisect_right
from dataclasses import astuple
from itertools import chain

import torch
from torch import Tensor

from asr.decoding.hypothesis import Hypothesis
from asr.evaluation.cer import ErrorCounts, Normalize, character_errors, word_errors
from asr.normalization import normalize_text

# The threshold is the largest multiple of 0.01, up to _MOST, that at most the share _SHARE of the
# dev utterances with a text is below.
_MOST, _SHARE = 0.35, 0.01
_STEPS = 100
_THRESHOLDS = [step / _STEPS for step in range(_STEPS + 1)]
# Columns of the counts: an utterance with a text, then edits of characters and of words.
_CHARACTERS, _WORDS, _COLUMNS = 1, 9, 17


class Calibration:
    """Dev utterances by the confidence of their texts, with the edits of each.

    `counts_CN` has a row for each hundredth of confidence. The columns are: utterances with a
    reference text (1); the edits of characters with the recognized texts (4), and with empty texts
    (4); the same of words (8). The counts of several processes can be summed.
    """

    def __init__(self, normalize: Normalize = normalize_text) -> None:
        self.normalize = normalize
        self.counts_CN = torch.zeros(_STEPS + 1, _COLUMNS, dtype=torch.long)

    def add(self, reference: str, hypothesis: Hypothesis) -> None:
        """Count an utterance, decoded without a threshold."""
        edits = [
            astuple(count(reference, text, self.normalize))
            for count in (character_errors, word_errors)
            for text in (hypothesis.text, "")
        ]
        row = torch.tensor([int(edits[1][-1] > 0), *chain(*edits)])
        self.counts_CN[bisect_right(_THRESHOLDS, hypothesis.confidence) - 1] += row

    @property
    def threshold(self) -> float:
        """Return the `decoding.confidence_threshold` to use."""
        below_C: Tensor = self.counts_CN[:, 0].cumsum(0)
        allowed = _SHARE * float(below_C[-1])
        steps = int((below_C <= allowed).sum())
        # A new utterance is below the least confidence of n others with probability 1 / (n + 1): so
        # fewer dev utterances allow only a lower threshold.
        return min(steps, int(_STEPS * _MOST * min(1.0, allowed))) / _STEPS

    def errors(self, threshold: float) -> ErrorCounts:
        """Return the edits of characters where texts below the threshold are left out."""
        return self._errors(threshold, _CHARACTERS)

    def word_errors(self, threshold: float) -> ErrorCounts:
        """Return the edits of words where texts below the threshold are left out."""
        return self._errors(threshold, _WORDS)

    def _errors(self, threshold: float, column: int) -> ErrorCounts:
        first = round(threshold * _STEPS)
        kept = self.counts_CN[first:, column : column + 4].sum(0)
        lost = self.counts_CN[:first, column + 4 : column + 8].sum(0)
        return ErrorCounts(*(lost + kept).tolist())
