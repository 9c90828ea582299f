"""TODO: options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from asr.decoding.hypothesis import Share
from asr.errors import ConfigError
from asr.schema import Node


class SearchConfig(Node):
    """How a text is looked for.

    `method`: `joint` is the beam search over the decoder, with `ctc_weight` λ as the CTC head's
    share; `ctc_greedy` and `ctc_beam` use the head alone, `rescore` lets the decoder judge the n
    best of `ctc_beam`. A beam of 1 is greedy; `n_best` is how many texts a result lists. `lm` is
    an ARPA file or a folder of `asr train-lm`, read where `lm_weight` μ is above 0. Where the CTC
    head gives all tokens together less than `speech_threshold` in every step, nothing was said;
    nor where the confidences of the best text (of `rescore`, of the first pass's) have a geometric
    mean below `confidence_threshold`: noise is spelt with the confidence of a guess.
    Longer recordings are cut into pieces of at most `piece_seconds`: a longer one than the model
    was trained on is strange to it, so `asr train` sets it to what 99 of 100 utterances are within.
    """

    method: Literal["joint", "ctc_greedy", "ctc_beam", "rescore"] = "joint"
    beam_size: PositiveInt = 8
    alpha: Annotated[float, Field(gt=0)] = 1.0
    gamma: Annotated[float, Field(ge=0)] = 0.1
    ctc_weight: Share = 0.0
    lm: Path | None = None
    lm_weight: Annotated[float, Field(ge=0)] = 0.0
    n_best: PositiveInt = 5
    speech_threshold: Share = 0.1
    confidence_threshold: Share = 0.35
    piece_seconds: Annotated[float, Field(ge=1, le=30)] | None = None

    @model_validator(mode="after")
    def _lm_is_named(self) -> Self:
        if self.lm_weight and self.lm is None:
            raise ValueError("lm_weight is set and lm is not: name the language model, or set 0")
        return self

    def changed(self, changes: Mapping[str, Any]) -> "SearchConfig":
        """The search with other values; None leaves what is. Raises ConfigError if they clash."""
        values = self.model_dump() | {k: v for k, v in changes.items() if v is not None}
        if changes.get("lm") and not values["lm_weight"]:
            raise ConfigError(
                "--lm without a weight says nothing: give --lm-weight, see `asr tune`"
            )
        if values["lm_weight"] and not values["lm"]:
            raise ConfigError("--lm-weight without a language model: give --lm")
        if values["lm_weight"] and values["method"] == "ctc_greedy":
            raise ConfigError(
                "--method ctc_greedy has no language model: use ctc_beam, or --lm-weight 0"
            )
        return SearchConfig(**values)

    @property
    def needs_ctc(self) -> bool:
        """Whether it can only be done with a CTC head."""
        return self.method != "joint" or self.ctc_weight > 0

    @property
    def weights(self) -> tuple[float, float, float]:
        """What the log-probabilities of decoder, CTC head and language model are multiplied by."""
        share = self.ctc_weight
        return self.alpha * (1 - share), self.alpha * share, self.lm_weight

    @property
    def first_pass(self) -> "SearchConfig":
        """What finds the texts that `rescore` judges: by CTC alone, all that the beam holds."""
        return self.model_copy(update={"method": "ctc_beam", "n_best": self.beam_size})
