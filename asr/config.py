"""The whole configuration: YAML that holds values, never code, into frozen, validated nodes.

Every mistake in a file is told at once, each by its key, with the nearest key that exists.
"""

import difflib
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from asr.audio.augmentation import AugmentConfig
from asr.audio.features import FeaturesConfig, SpectrogramConfig
from asr.decoding.options import DecodingOptions
from asr.errors import ConfigError
from asr.model.transformer import ModelConfig
from asr.schema import FrozenModel
from asr.tokenizer import TokenizerConfig

FORMAT = 1
_SHORTEST_PIECE = 0.4  # seconds; a cut is looked for in windows of 100 ms


class DataConfig(FrozenModel):
    """Where the cuts are, and how they become batches.

    `batch_seconds` is the audio in a batch of one process, before padding; a step has such a batch
    for each process and each turn of `training.accumulate`. `speed_factors` other than
    1 add copies of the training cuts at these speeds; durations are in seconds.
    """

    train: Path
    dev: Path
    batch_seconds: PositiveFloat = 120.0
    speed_factors: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] = (1.0,)
    min_seconds: PositiveFloat = 0.1
    max_seconds: PositiveFloat = 30.0
    num_workers: Annotated[int, Field(ge=0)] = 0


class NoamSchedule(FrozenModel):
    """lr = factor · d_model^-½ · min(step^-½, step · warmup_steps^-3/2)."""

    kind: Literal["noam"] = "noam"
    factor: PositiveFloat = 1.0
    warmup_steps: PositiveInt = 4000


class LinearSchedule(FrozenModel):
    """From 0 up to `lr` over `warmup_steps`, then down to 0 at the last step."""

    kind: Literal["linear"]
    lr: PositiveFloat
    warmup_steps: PositiveInt = 1000


class ConstantSchedule(FrozenModel):
    """Plain Adam: the same `lr` at every step."""

    kind: Literal["constant"]
    lr: PositiveFloat = 1e-4


class CurriculumConfig(FrozenModel):
    """Short utterances first: the first `epochs` hold the shortest, with this share of the audio.

    (Slides, long memory: pre-training on short sequences, then fine-tuning on all.)
    """

    epochs: PositiveInt
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5


class TrainingConfig(FrozenModel):
    """How the weights are found.

    `average` is how many of the best epochs (by validation CER) the bundle's weights are the mean
    of; `checkpoint_steps` how many steps a killed run can lose at most; `accumulate` how many
    batches a process adds up before a step; `patience` after how many epochs without a better
    validation CER the run ends; `precision: auto` is bfloat16 on a GPU, float32 elsewhere; `init`
    is a bundle whose weights and tokens a run begins with, such as one of `asr compress`.
    """

    epochs: PositiveInt = 30
    schedule: Annotated[
        NoamSchedule | LinearSchedule | ConstantSchedule, Field(discriminator="kind")
    ] = NoamSchedule()
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    clip_norm: PositiveFloat = 5.0
    average: PositiveInt = 5
    checkpoint_steps: PositiveInt = 200
    accumulate: PositiveInt = 1
    patience: PositiveInt | None = None
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    init: Path | None = None
    curriculum: CurriculumConfig | None = None

    @model_validator(mode="after")
    def _long_ones_come(self) -> Self:
        if self.curriculum and self.curriculum.epochs >= self.epochs:
            raise ValueError(
                f"curriculum.epochs {self.curriculum.epochs} leaves none of {self.epochs} epochs "
                f"for long utterances: make it {self.epochs - 1} at most"
            )
        return self


class Config(FrozenModel):
    """A recipe: everything that a run depends on, and all that a bundle has to remember."""

    format: int = FORMAT
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    data: DataConfig
    features: FeaturesConfig = SpectrogramConfig()
    augment: AugmentConfig | None = None
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    decoding: DecodingOptions = DecodingOptions()
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.format > FORMAT:
            raise ValueError(
                f"format {self.format} is newer than this program reads, {FORMAT}: update lrt-asr"
            )
        least = 4 * self.features.hop_ms / 1000
        if self.data.min_seconds < least:
            raise ValueError(
                f"data.min_seconds {self.data.min_seconds:g} is less than one encoder step, "
                f"4 frames of features.hop_ms: make it {least:g} at least"
            )
        longest = self.model.encoder.longest
        if longest is not None and longest * least < _SHORTEST_PIECE:
            raise ValueError(
                f"model.encoder.attention.length {longest} is {longest * least:g} s of audio, too "
                f"little to cut recordings to: make it {ceil(_SHORTEST_PIECE / least)} at least"
            )
        if self.features.n_freqs < 4:
            raise ValueError(
                f"features have {self.features.n_freqs} bins, the front end needs 4 at least"
            )
        if self.decoding.needs_ctc and not self.model.ctc_weight:
            raise ValueError(
                "decoding.ctc_weight and any decoding.method but joint need a model with a CTC head: "
                "set model.ctc_weight above 0"
            )
        return self


def load_config(path: Path, overrides: list[str] | None = None) -> Config:
    """Read a recipe and apply `key.key=value` overrides, their values written as YAML.

    Raises ConfigError: no such file, not YAML, or a list of all wrong keys and values.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}): give a recipe's path"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds no keys: a recipe has at least data.train and data.dev")
    for override in overrides or []:
        _override(values, override)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_explain(error)}") from error


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML that `load_config` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *parents, last = key.strip().split(".")
    if not equals or not last:
        raise ConfigError(f"--set {override}: write it as key.key=value")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: {parent} is a value, it has no keys below it")
    try:
        values[last] = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"--set {override}: the value is not YAML") from error


def _explain(error: ValidationError) -> str:
    """All that is wrong, as one sentence of `key: what` clauses."""
    clauses = []
    for item in error.errors():
        loc = [str(part) for part in item["loc"]]
        # Pydantic names the chosen kind of a union among the keys; it is no key of the file.
        keys = [part for i, part in enumerate(loc) if part in _NAMES or part.isdigit() or not i]
        if item["type"] == "extra_forbidden":
            where = ".".join([*(key for key in keys if key != loc[-1]), loc[-1]])
            clauses.append(f"{where}: unknown key{_nearest(where, loc)}")
            continue
        what = item["msg"].removeprefix("Value error, ")
        if item["type"] == "union_tag_not_found":
            what = "has no kind, and there are several: name one"
        elif item["type"] in ("model_type", "model_attributes_type", "dict_type"):
            what = f"holds keys, not a value: write {_example(loc, item['input'])}"
        elif item["type"] != "value_error":
            what += f" (given: {item['input']!r:.60})"
        clauses.append(f"{'.'.join(keys)}: {what}" if keys else what)
    return "; ".join(clauses)


def _nearest(where: str, loc: list[str]) -> str:
    """A key like the last of `loc` that its node knows, or else one of the whole recipe's."""
    *parents, key = loc
    close = difflib.get_close_matches(key, sorted(_known(parents)), n=1)
    if close:
        return f" (did you mean {where.removesuffix(key)}{close[0]}?)"
    close = difflib.get_close_matches(key, sorted(_NAMES), n=1)
    paths = [path for path in sorted(_PATHS - {where}) if close and path.split(".")[-1] == close[0]]
    return f" (did you mean {' or '.join(paths)}?)" if paths else ", remove it"


def _example(loc: list[str], value: object) -> str:
    """How the node at `loc` is written by whoever wrote a value in its place."""
    known = sorted(_known(loc))
    return f"{{kind: {value}}}" if "kind" in known else f"{{{known[0]}: …}}, of {', '.join(known)}"


def _known(loc: list[str]) -> set[str]:
    """The keys of the node at `loc`, in which the chosen kinds stand too."""
    branches = list(_branches(_SCHEMA))
    for part in loc:
        below = [b["properties"][part] for b in branches if part in b.get("properties", {})]
        if below:
            branches = [branch for node in below for branch in _branches(node)]
        else:
            branches = [b for b in branches if _kind(b) == part] or branches
    return {key for branch in branches for key in branch.get("properties", {})}


def _kind(node: dict[str, Any]) -> str | None:
    """What its `kind` says, if it has one."""
    kind: str | None = node.get("properties", {}).get("kind", {}).get("const")
    return kind


def _branches(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A node of the JSON schema, and all that it may be instead."""
    yield node
    for branch in [*node.get("anyOf", []), *node.get("oneOf", []), *node.get("allOf", [])]:
        yield from _branches(branch)
    if "$ref" in node:
        yield from _branches(_SCHEMA["$defs"][node["$ref"].split("/")[-1]])


def _paths(node: dict[str, Any], prefix: str = "") -> set[str]:
    """All keys below a node, dotted, whatever kinds are chosen."""
    found: set[str] = set()
    for branch in _branches(node):
        for key, below in branch.get("properties", {}).items():
            found |= {f"{prefix}{key}"} | _paths(below, f"{prefix}{key}.")
    return found


_SCHEMA = Config.model_json_schema()
_PATHS = _paths(_SCHEMA)
_NAMES = {path.split(".")[-1] for path in _PATHS}
