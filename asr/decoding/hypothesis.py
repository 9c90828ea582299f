"""Store a hypothesis: the text of an utterance with its score. No torch, so services can use it.

score(Y) = α · log P(Y|X) + μ · (log P_lm(Y) + β · |Y|) + γ · √wc(Y) (Cahyawijaya 2021, eq. 4.1,
with shallow fusion of a language model) + hotwords, where log P(Y|X) = (1 - λ) · decoder + λ · CTC
head, wc(Y) is the number of words (see `Tokenizer.word_counts`) and |Y| the number of tokens. β has
an effect only with an n-gram, in `ctc_beam` and `rescore`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Ended = Literal["eos", "length", "no_speech", "uncertain"]


@dataclass(frozen=True)
class Hypothesis:
    """Token ids without SOS and EOS, their text, and the score.

    `score` is the weighted sum of its components. They are the log P of decoder (EOS included), CTC
    head and language model, each None where it was not used; `length_score`, which is
    γ · √wc + μ · β · |Y|; and `hotword_score`, what the hotwords in the text are worth.

    `confidences` has the probability of each token among its alternatives. It is computed by the
    weighted models in use and the hotwords, without the length score. With `ctc_sounds` it is the
    probability of the token's sound.

    `ended` is "eos"; "length" where the utterance's limit on tokens ended the text; "no_speech"; or
    "uncertain", which stands in front of hypotheses whose confidence is too low.
    """

    tokens: tuple[int, ...]
    score: float
    log_prob: float | None
    ctc_log_prob: float | None
    ended: Ended
    lm_log_prob: float | None = None
    length_score: float = 0.0
    confidences: tuple[float, ...] = ()
    text: str = ""
    hotword_score: float = 0.0

    @property
    def confidence(self) -> float:
        """Return the geometric mean of the tokens' confidences, 1 without tokens."""
        return geometric_mean(self.confidences)


def geometric_mean(confidences: Sequence[float]) -> float:
    """Return the geometric mean of confidences, 1 where there are none."""
    logs = [math.log(max(value, 1e-30)) for value in confidences]
    return math.exp(sum(logs) / max(1, len(logs)))


NO_SPEECH = Hypothesis((), 0.0, None, None, "no_speech")
UNCERTAIN = Hypothesis((), 0.0, None, None, "uncertain")
