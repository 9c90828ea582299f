"""What a text is worth: the weights of the search, and a result with its parts.

score(Y) = α · log P(Y|X) + μ · log P_lm(Y) + γ · √wc(Y) (thesis eq. 4.1; α 1, γ 0.1, beam 8; with
a language model, shallow fusion), where log P(Y|X) = (1 - λ) · decoder + λ · CTC head.
"""


from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Hypothesis:
    """A text as tokens without SOS and EOS, and what it is worth.

    `score` is the weighted sum of its parts: the log P of decoder (EOS included), CTC head and
    language model, each None where it had no say, and `length_score` = γ · √wc. `confidences` has
    for each token its probability among all that could have stood there, under the models that
    the search used, by their weights, the length left out. `ended` is "eos", "length" where the
    audio's limit on tokens ended it, or "no_speech".
    """

    tokens: tuple[int, ...]
    score: float
    log_prob: float | None
    ctc_log_prob: float | None
    ended: Literal["eos", "length", "no_speech"]
    lm_log_prob: float | None = None
    length_score: float = 0.0
    confidences: tuple[float, ...] = ()


NO_SPEECH = Hypothesis((), 0.0, None, None, "no_speech")
