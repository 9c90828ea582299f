"""The part of the configuration that only training reads: data, and how weights are trained."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from asr.schema import FrozenModel, LocalPath, check_local

Speed = Annotated[float, Field(ge=0.1, le=10)]
_STORAGE = ("s3://", "s3a://", "gs://", "gcs://", "hdfs://", "file://", "memory://")


def _check_url(value: object) -> str:
    """Return the URL of a place in storage. Raises ValueError for anything else."""
    if not isinstance(value, str) or not value.startswith(_STORAGE) or ".." in value.split("/"):
        raise ValueError(
            f"not a place in storage: give one such as s3://bucket/folder ({value!r:.60})"
        )
    return value


def _check_place(value: object) -> Path | str:
    if isinstance(value, str) and value.startswith("file:///"):
        value = value.removeprefix("file://")
    if isinstance(value, str) and value.startswith(_STORAGE):
        return _check_url(value)
    if not isinstance(value, str | Path):
        raise ValueError(f"Input is not a valid path (given: {value!r:.60})")
    return check_local(Path(value))


def _check_places(value: object) -> object:
    """Return one place, or a list of them, as a tuple; pydantic refuses any other value."""
    if isinstance(value, str | Path):
        return (_check_place(value),)
    return tuple(map(_check_place, value)) if isinstance(value, list | tuple) else value


Url = Annotated[str, PlainValidator(_check_url)]
# A Path is a local path, a string is a URL.
PathOrUrl = Annotated[Path | str, PlainValidator(_check_place), PlainSerializer(str)]
# One manifest is written as a path, several as a list of paths.
Manifests = Annotated[
    tuple[Path | str, ...],
    Field(min_length=1, max_length=100),
    BeforeValidator(_check_places),
    PlainSerializer(lambda paths: paths[0] if len(paths) == 1 else paths),
]


class ReplayConfig(FrozenModel):
    """Another corpus: `share` of an epoch's audio comes from it, other utterances in each epoch.

    It is an older corpus, whose model is fine-tuned, or synthetic speech (`asr prepare speech`).
    For fine-tuning, the canary set is utterances of `dev` or, if it is not given, utterances held
    out of `train`. They are in no training, so their errors show what the model forgets.
    """

    train: LocalPath
    dev: LocalPath | None = None
    share: Annotated[float, Field(ge=0, lt=1)] = 0.3


class DataConfig(FrozenModel):
    """Where the cuts are, and how they become batches; durations are in seconds.

    `train` is a manifest, or a list of several that share no utterance. `train` and `dev` may be
    URLs. `allow` lists URLs of further folders whose recordings the manifests may name.

    `batch_seconds` is the most audio in a batch of one process, with each utterance padded to the
    longest; an optimizer step uses `training.accumulate` such batches of each process. Training has
    each cut once at each of `speed_factors`; 1 is the original speed. `num_workers` processes read
    recordings and compute `augment.voices`. Without a number, one process does so if there are
    voices and a free processor.
    """

    train: Manifests
    dev: PathOrUrl
    allow: Annotated[tuple[Url, ...], Field(max_length=100, exclude_if=lambda urls: not urls)] = ()
    batch_seconds: PositiveFloat = 120.0
    speed_factors: Annotated[tuple[Speed, ...], Field(min_length=1, max_length=100)] = (1.0,)
    min_seconds: PositiveFloat = 0.1
    max_seconds: PositiveFloat = 30.0
    num_workers: Annotated[int | None, Field(ge=0, le=1024, exclude_if=lambda n: n is None)] = None
    replay: ReplayConfig | None = None

    @property
    def train_names(self) -> str:
        """Return the training manifests for a message."""
        return ", ".join(map(str, self.train))


class NoamSchedule(FrozenModel):
    """lr = factor · d_model^-½ · min(step^-½, step · warmup_steps^-3/2) (Vaswani 2017, eq. 3)."""

    kind: Literal["noam"] = "noam"
    factor: PositiveFloat = 1.0
    warmup_steps: PositiveInt = 4000


class LinearSchedule(FrozenModel):
    """A rate that rises from 0 to `lr` over `warmup_steps`, then falls to 0 after the last step."""

    kind: Literal["linear"]
    lr: PositiveFloat
    warmup_steps: PositiveInt = 1000


class ConstantSchedule(FrozenModel):
    """The same `lr` at every step of Adam."""

    kind: Literal["constant"]
    lr: PositiveFloat = 1e-4


class AdamConfig(FrozenModel):
    """Adam (Kingma and Ba 2015) for all weights, as in Cahyawijaya 2021, section 4.2.4."""

    kind: Literal["adam"] = "adam"


class MuonConfig(FrozenModel):
    """Muon (Jordan 2024) for the matrices of layers, Adam for all other weights.

    The momentum of a matrix is made orthogonal, so that all its directions learn equally fast. Then
    it is scaled to the size of Adam's updates (Liu 2025, eq. 4) times `rate`. The two factors of an
    LED get half of that, because both move their product. Adam trains convolutions, sparse values,
    embeddings and the maps to tokens. It also trains an attention's own weights, except the
    feed-forward map of `isab`. The time of Muon does not depend on the batch. It computes in
    bfloat16 where the device is faster in it.
    """

    kind: Literal["muon"]
    rate: PositiveFloat = 1.0


class CurriculumConfig(FrozenModel):
    """Train on short utterances first (curriculum learning, Bengio 2009).

    The first `epochs` use only the shortest utterances, which hold this `share` of the audio.
    """

    epochs: PositiveInt
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5


class IntermediateConfig(FrozenModel):
    """A CTC loss of Mandarin sounds on the output of an encoder layer, counted from 1.

    `unit` is the syllable with its tone, or its parts (`initial_final`: zh, ong1). `weight` is
    relative to the CTC loss of tokens. Only training has this loss and its head.
    """

    layer: PositiveInt
    unit: Literal["initial_final", "syllable"] = "syllable"
    weight: PositiveFloat = 0.5


class TrainingConfig(FrozenModel):
    """How the weights are trained.

    - `average`: the number of best epochs (by validation CER) whose weights are averaged, without
      epochs that are far worse than the best.
    - `checkpoint_steps`: the most steps that a killed run loses.
    - `accumulate`: the number of batches per process whose gradients are added before a step.
    - `patience`: the run ends after so many epochs without a better validation CER.
    - `precision`: `auto` is bfloat16 on a GPU that computes in it, and float32 elsewhere.
      `bfloat16` is for processors too; a device that does not compute in it uses float32, with a
      warning.
    - `weight_decay` λ: after each step λ · lr · W is subtracted from linear maps, convolutions,
      embeddings and sparse weights (AdamW).
    - `init`: a bundle whose weights and tokens a run starts with, such as one of `asr compress`.
    - `freeze`: parts of the network that stay as they are.
    - `consistency`: above 0, each utterance has two views with different masks, and the CTC head
      learns to predict the same for both (CR-CTC; Yao 2025: 0.2). A step then takes twice the time
      and memory.
    - `shared_sounds`: the CTC head's weights of a Mandarin character are its own plus those of its
      syllable, initial and final, so that rare characters learn from others.
    """

    epochs: Annotated[int, Field(gt=0, le=100_000)] = 30
    optimizer: Annotated[AdamConfig | MuonConfig, Field(discriminator="kind")] = AdamConfig()
    schedule: Annotated[
        NoamSchedule | LinearSchedule | ConstantSchedule, Field(discriminator="kind")
    ] = NoamSchedule()
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    clip_norm: PositiveFloat = 5.0
    average: PositiveInt = 5
    checkpoint_steps: PositiveInt = 200
    accumulate: PositiveInt = 1
    patience: PositiveInt | None = None
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    init: LocalPath | None = None
    freeze: tuple[Literal["frontend", "encoder"], ...] = ()
    curriculum: CurriculumConfig | None = None
    consistency: Annotated[float, Field(ge=0)] = 0.0
    intermediate: tuple[IntermediateConfig, ...] = ()
    shared_sounds: bool = False

    @model_validator(mode="after")
    def _check_curriculum(self) -> Self:
        if self.curriculum and self.curriculum.epochs >= self.epochs:
            raise ValueError(
                f"curriculum.epochs {self.curriculum.epochs} leaves none of {self.epochs} epochs "
                f"for long utterances: make it {self.epochs - 1} at most, or epochs "
                f"{self.curriculum.epochs + 1} at least"
            )
        return self
