"""Validate the options of decoding: `decoding.*` of a recipe."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from asr.decoding.hotwords import MOST_WEIGHT, Hotword, as_hotwords
from asr.errors import ConfigError
from asr.schema import FrozenModel, LocalPath, OmitNone

# A number of hypotheses; it is limited because each takes memory at every step.
Width = Annotated[int, Field(gt=0, le=1024)]
Share = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(gt=0, le=MOST_WEIGHT)]
Method = Literal["joint", "ctc_greedy", "ctc_sounds", "ctc_beam", "rescore"]
SHORTEST_CHUNK = 0.4  # seconds; recordings are cut at windows of 100 ms
_GREEDY = ("ctc_greedy", "ctc_sounds")
# What computes a method's confidences; for other methods it is the CTC head, for each token.
_CONFIDENCES = {"joint": "decoder", "ctc_sounds": "sounds", "rescore": "both"}


class DecodingOptions(FrozenModel):
    """Options of decoding; the weights follow Cahyawijaya 2021, eq. 4.1 (α 1, γ 0.1, beam 8).

    The values of `method`:

    - `joint`: beam search over the decoder, with `ctc_weight` λ as the CTC head's share.
    - `ctc_greedy`, `ctc_beam`: the CTC head alone.
    - `ctc_sounds`: the CTC head alone finds the most likely sounds of Mandarin; each is written as
      its commonest character.
    - `rescore`: the decoder rescores the n best of `ctc_beam`.

    A beam of 1 is greedy. `n_best` is how many hypotheses a result lists.

    `lm` is an ARPA file or a folder of `asr train-lm`. It is read where `lm_weight` μ is above 0.
    Each token lowers the language model's log P, so with a large μ short texts win where the CTC
    head is unsure. Therefore `ctc_beam` and `rescore` add `lm_bonus` β to an n-gram's log P for
    each token.

    There is no speech where the CTC head gives all tokens together less than `speech_threshold` in
    every step. Noise is transcribed with low confidence. So a text is left out as uncertain, with a
    warning that names it, if the geometric mean of its confidences is below `confidence_threshold`.
    Only the best hypothesis counts; with `rescore` its confidences are of decoder and CTC head.
    Without a value no text is left out. `asr train` and `asr tune` set a value that hardly any dev
    utterance is below.

    A model transcribes badly what is longer than its training utterances. So longer recordings are
    cut into chunks of at most `chunk_seconds`; `asr train` sets it to their 99th percentile.

    Each token but the first of a phrase of `hotwords` adds `hotword_weight`, or the phrase's own
    weight, to the score of a text that holds the phrase. With hotwords the greedy methods search as
    `ctc_beam` does.
    """

    method: Method = "joint"
    beam_size: Width = 8
    alpha: Annotated[float, Field(gt=0)] = 1.0
    gamma: Annotated[float, Field(ge=0)] = 0.1
    ctc_weight: Share = 0.0
    lm: LocalPath | None = None
    lm_weight: Annotated[float, Field(ge=0)] = 0.0
    lm_bonus: Annotated[float, Field(ge=0, le=20)] = 0.0
    n_best: Width = 5
    speech_threshold: Share = 0.1
    confidence_threshold: Share | None = None
    chunk_seconds: Annotated[float, Field(ge=SHORTEST_CHUNK, le=30)] | None = None
    hotwords: OmitNone[tuple[Hotword, ...]] = None
    hotword_weight: Weight = 2.0

    @field_validator("hotwords", mode="before")
    @classmethod
    def _are_phrases(cls, value: Any) -> Any:
        try:
            return as_hotwords(value) if isinstance(value, list | tuple | dict) else value
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @field_validator("hotwords")
    @classmethod
    def _have_weights(cls, value: tuple[Hotword, ...] | None) -> tuple[Hotword, ...] | None:
        for phrase, weight in value or ():
            if weight is not None and not 0 < weight <= MOST_WEIGHT:
                raise ValueError(f"{phrase}: give a weight above 0 and up to {MOST_WEIGHT:g}")
        return value

    @model_validator(mode="after")
    def _lm_is_named(self) -> Self:
        if self.lm_weight and self.lm is None:
            raise ValueError("lm_weight is set and lm is not: name the language model, or set 0")
        if self.lm_weight and self.is_greedy:
            raise ValueError(f"{self.method} has no language model: use ctc_beam, or lm_weight 0")
        return self

    def changed(self, changes: Mapping[str, Any]) -> "DecodingOptions":
        """Return the options with other values; None keeps the present one.

        A confidence threshold was chosen for one kind of confidences: the decoder's, the CTC head's
        of tokens, both, or those of sounds. So a method of another kind has none, unless the
        changes set it. Raises ConfigError where the values contradict each other.
        """
        given = {k: v for k, v in changes.items() if v is not None}
        values = self.model_dump() | given
        if _CONFIDENCES.get(self.method) != _CONFIDENCES.get(values["method"]):
            values["confidence_threshold"] = given.get("confidence_threshold")
        if changes.get("lm") and not values["lm_weight"]:
            raise ConfigError(
                "--lm has no effect without a weight: give --lm-weight, see `asr tune`"
            )
        if values["lm_weight"] and not values["lm"]:
            raise ConfigError("--lm-weight without a language model: give --lm")
        if values["lm_weight"] and values["method"] in _GREEDY:
            raise ConfigError(
                f"--method {values['method']} has no language model: use ctc_beam, or --lm-weight 0"
            )
        if changes.get("lm_bonus") and (values["method"] == "joint" or not values["lm_weight"]):
            raise ConfigError(
                "--lm-bonus is for an n-gram: give --lm, --lm-weight, and --method ctc_beam or "
                "rescore"
            )
        if values["method"] == "joint":
            values["lm_bonus"] = 0.0  # of a bundle that was tuned for ctc_beam
        is_of_sounds = values["method"] == "ctc_sounds" and given.get("confidence_threshold")
        if is_of_sounds and values.get("hotwords"):
            raise ConfigError(
                "--confidence with --method ctc_sounds is of sounds, and --hotwords looks for "
                "characters: leave one of them out"
            )
        try:
            return DecodingOptions(**values)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise ConfigError(f"{wrong['loc'][-1]} {wrong['input']}: {wrong['msg']}") from error

    @property
    def is_greedy(self) -> bool:
        """Tell whether the method has no language model and, without hotwords, no search."""
        return self.method in _GREEDY

    @property
    def needs_ctc(self) -> bool:
        """Tell whether a CTC head is required."""
        return self.method != "joint" or self.ctc_weight > 0

    @property
    def weights(self) -> tuple[float, float, float]:
        """Return the weights of the log-probabilities of decoder, CTC head and language model."""
        share = self.ctc_weight
        return self.alpha * (1 - share), self.alpha * share, self.lm_weight

    @property
    def first_pass(self) -> "DecodingOptions":
        """Return the options of the first pass of `rescore`: CTC alone, the whole beam."""
        return self.model_copy(update={"method": "ctc_beam", "n_best": self.beam_size})
