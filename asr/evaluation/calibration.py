"""The confidence below which a text is left out, chosen on dev, and the CER with it."""

from dataclasses import astuple

import torch
from torch import Tensor

from asr.decoding.hypothesis import Hypothesis
from asr.evaluation.cer import ErrorCounts, character_errors

# The threshold is the largest, of steps of 0.01 up to this, that so small a share of dev
# utterances with a text is below.
_MOST, _SHARE = 0.35, 0.01
_STEPS = 100


class Calibration:
    """Dev utterances by the confidence of their texts, with the edits of each.

    `counts_CN` has a row for each hundredth: utterances with a reference text, the edits with the
    recognized texts (4), and without (4). Those of several processes can be summed.
    """

    def __init__(self) -> None:
        self.counts_CN = torch.zeros(_STEPS + 1, 9, dtype=torch.long)

    def add(self, reference: str, hypothesis: Hypothesis) -> None:
        """Count an utterance, decoded without a threshold."""
        kept = astuple(character_errors(reference, hypothesis.text))
        lost = astuple(character_errors(reference, ""))
        row = torch.tensor([int(lost[-1] > 0), *kept, *lost])
        self.counts_CN[int(hypothesis.confidence * _STEPS)] += row

    @property
    def threshold(self) -> float:
        """Return the `decoding.confidence_threshold` to use."""
        below_C: Tensor = self.counts_CN[:, 0].cumsum(0)
        allowed = _SHARE * float(below_C[-1])
        steps = int((below_C <= allowed).sum())
        return min(steps / _STEPS, _MOST)

    def errors(self, threshold: float) -> ErrorCounts:
        """Return the edits where texts below the threshold are left out."""
        first = round(threshold * _STEPS)
        lost, kept = self.counts_CN[:first, 5:].sum(0), self.counts_CN[first:, 1:5].sum(0)
        return ErrorCounts(*(lost + kept).tolist())
