"""The whole configuration: YAML that holds values, never code, as frozen, validated models.

The mistakes of a file are reported in one message, each with its key and the nearest known key.
"""

import difflib
import itertools
from collections.abc import Iterator
from math import floor, inf
from pathlib import Path
from typing import Annotated, Any, Self, get_args

import yaml
from pydantic import Field, ValidationError, model_validator

from asr.audio.augmentation import AugmentConfig
from asr.audio.features import FeaturesConfig, SpectrogramConfig
from asr.decoding.options import SHORTEST_CHUNK, DecodingOptions
from asr.errors import ConfigError
from asr.model.frontend import FRAMES_PER_STEP
from asr.model.transformer import ModelConfig
from asr.runtime.yaml_values import parse_yaml, read_yaml
from asr.schema import FrozenModel
from asr.tokenizer import TokenizerConfig
from asr.training_config import DataConfig, TrainingConfig

FORMAT = 1
_RENAMED = {"search": "decoding", "piece_seconds": "chunk_seconds"}
_MOST_FAULTS = 20  # explained in a message; the search for the nearest key takes time


class Config(FrozenModel):
    """A recipe: everything that a run depends on. A bundle stores it with all defaults."""

    format: int = FORMAT
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    data: DataConfig
    features: FeaturesConfig = SpectrogramConfig()
    augment: AugmentConfig | None = None
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    decoding: DecodingOptions = DecodingOptions()
    training: TrainingConfig = TrainingConfig()

    @property
    def step_seconds(self) -> float:
        """Return the seconds of audio that an encoder step covers."""
        return FRAMES_PER_STEP * self.features.hop_length / self.features.sample_rate

    @model_validator(mode="after")
    def _decode_as_trained(self) -> Self:
        """Decode with the CTC weight of training, unless the recipe sets one for decoding."""
        if "ctc_weight" not in self.decoding.model_fields_set:
            decoding = self.decoding.model_copy(update={"ctc_weight": self.model.ctc_weight})
            object.__setattr__(self, "decoding", decoding)
        return self

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.format > FORMAT:
            raise ValueError(
                f"format {self.format} is newer than this program reads, {FORMAT}: update lrt-asr"
            )
        pauses, epochs = self.augment and self.augment.pauses, self.training.epochs
        if pauses and pauses.from_epoch > epochs:
            raise ValueError(
                f"augment.pauses.from_epoch {pauses.from_epoch} is after the last of {epochs} "
                f"epochs: make it {epochs} at most, or training.epochs {pauses.from_epoch} at least"
            )
        step_seconds = self.step_seconds
        if self.data.min_seconds < step_seconds:
            raise ValueError(
                f"data.min_seconds {self.data.min_seconds:g} is less than one encoder step, "
                f"4 frames of features.hop_ms: make it {step_seconds:g} at least"
            )
        longest = self.model.encoder.longest
        if longest is not None and longest * step_seconds <= SHORTEST_CHUNK:
            raise ValueError(
                f"model.encoder.attention.length {longest} is {longest * step_seconds:g} s of "
                "audio, too little to cut recordings to: make it "
                f"{floor(SHORTEST_CHUNK / step_seconds) + 1} at least"
            )
        if self.features.n_freqs < 4:
            raise ValueError(
                f"features have {self.features.n_freqs} bins, the front end needs 4 at least"
            )
        return self

    @model_validator(mode="after")
    def _check_ctc(self) -> Self:
        training, has_ctc = self.training, self.model.ctc_weight > 0
        deepest = max((each.layer for each in training.intermediate), default=0)
        if deepest > self.model.encoder.n_layers:
            raise ValueError(
                f"training.intermediate names layer {deepest} of {self.model.encoder.n_layers}: "
                "give one that the encoder has"
            )
        is_of_ctc = (
            deepest or training.consistency or training.shared_sounds
            or self.model.encoder.conditioning or self.model.encoder.sounds
        )  # fmt: skip
        if is_of_ctc and not has_ctc:
            raise ValueError(
                "training.consistency, training.intermediate, training.shared_sounds, "
                "model.encoder.conditioning and model.encoder.sounds go with a CTC head: set "
                "model.ctc_weight above 0"
            )
        if self.model.encoder.sounds and self.tokenizer.kind != "char":
            raise ValueError(
                "model.encoder.sounds are those of characters, and tokenizer.kind is "
                f"{self.tokenizer.kind}: use char"
            )
        if self.model.encoder.streaming and not has_ctc:
            raise ValueError(
                "model.encoder.streaming needs a CTC head, which decodes while audio arrives: set "
                "model.ctc_weight above 0"
            )
        if self.model.encoder.streaming and (problem := self.features.streaming_problem):
            raise ValueError(f"model.encoder.streaming: {problem}")
        if training.consistency and not self.augment:
            raise ValueError(
                "training.consistency compares views of other masks: set augment, such as {}"
            )
        if self.decoding.needs_ctc and not has_ctc:
            raise ValueError(
                "decoding.ctc_weight and any decoding.method but joint need a model with a CTC "
                "head: set model.ctc_weight above 0"
            )
        return self


def load_config(path: Path, overrides: list[str] | None = None) -> Config:
    """Read a recipe and apply `key.key=value` overrides, whose values are written as YAML.

    Raises ConfigError for a missing file, for text that is not YAML, and for wrong keys and values.
    """
    values = read_yaml(path)
    for override in overrides or []:
        apply_override(values, override)
    return check_config(values, path)


def check_config(values: dict[Any, Any], path: Path) -> Config:
    """Return the values of a recipe as a Config. Raises ConfigError, which names the path."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_explain(error)}") from error


def dump_config(config: Config) -> str:
    """Return the resolved configuration as YAML that `load_config` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def positive_number(values: Any, *keys: str) -> int | float | None:
    """Return the number under nested keys if it is finite and above 0, else None."""
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    is_number = isinstance(values, int | float) and not isinstance(values, bool)
    return values if is_number and 0 < values < inf else None


def apply_override(values: dict[str, Any], override: str) -> str:
    """Apply a `key.key=value` override to the values of a recipe in place, and return its key.

    Raises ConfigError if it has another form, is no YAML, or one of its parent keys holds a value.
    """
    key, equals, text = override.partition("=")
    *parents, last = key.strip().split(".")
    if not equals or not last:
        raise ConfigError(f"--set {override}: write it as key.key=value")
    for parent in parents:
        if values.get(parent) is None:  # a part that is switched off is written as null
            values[parent] = {}
        values = values[parent]
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: {parent} is a value, it has no keys below it")
    try:
        values[last] = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"--set {override}: the value is not YAML") from error
    return ".".join((*parents, last))


def _explain(error: ValidationError) -> str:
    """Return the first faults as one sentence of `key: what` clauses, and count the others."""
    clauses, n_more = [], max(0, error.error_count() - _MOST_FAULTS)
    for item in error.errors()[:_MOST_FAULTS]:
        *parents, last = [str(part) for part in item["loc"]] or [""]
        is_unknown, value = item["type"] == "extra_forbidden", item["input"]
        # Pydantic puts the chosen kind of a union into the location, but it is no key of the file.
        parts = [part for part in parents if part in _NAMES or part.isdigit()]
        parts += [last] if is_unknown or last in _NAMES or last.isdigit() else []
        key, what = ".".join(parts), item["msg"].removeprefix("Value error, ")
        if is_unknown and key in _RENAMED and isinstance(value, dict) and value:
            names = itertools.islice(value, _MOST_FAULTS)
            clauses += [f"{key}.{below}: {_unknown(f'{key}.{below}', '')}" for below in names]
            n_more += max(0, len(value) - _MOST_FAULTS)
            continue
        if is_unknown:
            what = _unknown(key, (parents or [""])[-1])
        elif item["type"] == "union_tag_not_found":
            what = "has no kind, and there are several: name one"
        elif item["type"] in ("model_type", "model_attributes_type", "dict_type"):
            what = f"holds keys, not a value: write {_example(key, value)}"
        elif item["type"] != "value_error":
            what += f" (given: {value!r:.60})"
        clauses.append(f"{key}: {what}" if key else what)
    return "; ".join([*clauses, *([f"and {n_more} more"] if n_more else [])])


def _unknown(key: str, kind: str) -> str:
    """Say what to write in place of a key that is unknown, or unknown to the chosen kind."""
    renamed = ".".join(_RENAMED.get(part, part) for part in key.split("."))
    if key in _KEYS:
        return f"unknown key of kind {kind}, remove it"
    if renamed in _KEYS:
        return f"is now {renamed}"
    nearest = _nearest(renamed)
    return f"unknown key (did you mean {nearest}?)" if nearest else "unknown key, remove it"


def _nearest(key: str) -> str | None:
    """Return the most similar known key, under the same parent first, then anywhere."""
    parent, _, name = key.rpartition(".")
    for keys in ([k for k in _KEYS if k.rpartition(".")[0] == parent], _KEYS):
        close = difflib.get_close_matches(name, [k.rpartition(".")[2] for k in keys], n=1)
        if close:
            named_so = [k for k in keys if k.rpartition(".")[2] == close[0]]
            return difflib.get_close_matches(key, named_so, n=1, cutoff=0)[0]
    return None


def _example(key: str, value: object) -> str:
    """Return how the keys below `key` are written, for someone who wrote a value there."""
    below = [k.rpartition(".")[2] for k in _KEYS if k.rpartition(".")[0] == key]
    if not below:
        return "{name: value}"
    return f"{{kind: {value}}}" if "kind" in below else f"{{{below[0]}: …}}, of {', '.join(below)}"


def _dotted_keys(annotation: object, prefix: str = "") -> Iterator[str]:
    """Yield all dotted keys of the models in a type, whatever kinds are chosen."""
    if isinstance(annotation, type) and issubclass(annotation, FrozenModel):
        for name, field in annotation.model_fields.items():
            yield f"{prefix}{name}"
            yield from _dotted_keys(field.annotation, f"{prefix}{name}.")
    for argument in get_args(annotation):
        yield from _dotted_keys(argument, prefix)


_KEYS = list(dict.fromkeys(_dotted_keys(Config)))
_NAMES = {key.split(".")[-1] for key in _KEYS}
