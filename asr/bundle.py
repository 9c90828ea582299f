"""Model bundle: a folder with all that inference needs; loading it runs no code.

config.yaml (the resolved recipe, with the format's version), tokenizer.model (sentencepiece),
model.safetensors (weights and feature statistics) and README.md (the model card). Loading opens no
file outside the folder, and allocates no weights before their shapes fit the configuration.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from asr.audio.features import FeatureExtractor
from asr.config import Config, dump_config, load_config
from asr.errors import AsrError, BundleError, ConfigError
from asr.model.growth import copy_with_more_tokens
from asr.model.projection import sparse_maps
from asr.model.start import weights_follow
from asr.model.transformer import SpeechTransformer
from asr.runtime.files import read_bytes, write_atomically, write_text
from asr.runtime.int8 import from_int8, to_int8, without_scales
from asr.runtime.tensors import (
    read_metadata,
    read_shapes,
    read_tensors,
    shapes_alone,
    write_tensors,
)
from asr.tokenizer import Tokenizer

log = logging.getLogger(__name__)

CONFIG = "config.yaml"
TOKENIZER = "tokenizer.model"
WEIGHTS = "model.safetensors"
CARD = "README.md"
EVALUATION = "evaluation.json"

_TOKENIZER_BYTES = 1 << 24


@dataclass
class Bundle:
    """The parts of a recognizer, trained or to be trained."""

    config: Config
    tokenizer: Tokenizer
    features: FeatureExtractor
    model: SpeechTransformer

    @classmethod
    def create(cls, config: Config, tokenizer: Tokenizer) -> "Bundle":
        """Return an untrained bundle for a recipe, which gets the tokenizer's vocabulary size."""
        sized = config.tokenizer.model_copy(update={"vocab_size": tokenizer.vocab_size})
        config = config.model_copy(update={"tokenizer": sized})
        model = config.model.build(config.features.n_freqs, tokenizer.vocab_size)
        return cls(config, tokenizer, config.features.build(), model)

    def grown(self, characters: Iterable[str]) -> "Bundle":
        """Return a copy with one more token, untrained, for each of these characters."""
        new = Bundle.create(self.config, self.tokenizer.grown(characters))
        copy_with_more_tokens(self.parts, new.parts)
        return new

    @property
    def parts(self) -> nn.ModuleDict:
        """Return the modules with weights or statistics."""
        return nn.ModuleDict({"features": self.features, "model": self.model})

    def save(self, folder: Path, card: str, int8: bool = False) -> None:
        """Write the four files atomically, the weights last; remove an older evaluation.

        With `int8` the larger weights are stored in 8 bits. If the disk has no room for the
        weights, an older bundle stays as it is. The file of weights holds the digest of the
        tokenizer that they were trained with.
        """

        def write_others() -> None:
            (folder / EVALUATION).unlink(missing_ok=True)
            write_bundle_config(folder, self.config)
            write_atomically(folder / TOKENIZER, lambda p: p.write_bytes(self.tokenizer.model))
            write_text(folder / CARD, card)

        folder.mkdir(parents=True, exist_ok=True)
        save_weights(self.parts, folder / WEIGHTS, self.tokenizer, write_others, int8)

    @classmethod
    def load(cls, folder: Path) -> "Bundle":
        """Read a bundle. Raises BundleError, which names the file or the tensor that is wrong."""
        config = load_bundle_config(folder)
        for name in (TOKENIZER, WEIGHTS):
            _check_exists(folder, name)
        try:
            tokenizer = Tokenizer(
                read_bytes(folder / TOKENIZER, _TOKENIZER_BYTES), config.tokenizer.normalize
            )
        except (AsrError, OSError) as error:
            raise BundleError(f"{folder}: {error}: copy the bundle again") from error
        if tokenizer.vocab_size != config.tokenizer.vocab_size:
            raise BundleError(
                f"{folder}: {TOKENIZER} has {tokenizer.vocab_size} tokens, {CONFIG} says "
                f"{config.tokenizer.vocab_size}: they belong to two models"
            )
        with weights_follow():
            with shapes_alone():
                try:
                    parts = cls.create(config, tokenizer).parts
                except ConfigError as error:
                    raise BundleError(f"{folder}: {CONFIG}: {error}") from error
                check_shapes(parts, folder / WEIGHTS)
            bundle = cls.create(config, tokenizer)
        load_weights(bundle.parts, folder / WEIGHTS)
        if tokenizer_of(folder / WEIGHTS) != tokenizer.digest:
            raise BundleError(f"{folder}: {TOKENIZER} and {WEIGHTS} belong to two models")
        return bundle


def load_bundle_config(folder: Path, overrides: list[str] | None = None) -> Config:
    """Read the configuration of a bundle, and make the path of its language model absolute.

    A language model outside the bundle's folder is left out, with a warning if it has a weight: a
    path elsewhere would let a stranger's bundle open any file. Raises BundleError if the
    configuration is missing or wrong.
    """
    _check_exists(folder, CONFIG)
    try:
        config = load_config(folder / CONFIG, overrides)
    except ConfigError as error:
        raise BundleError(str(error)) from error
    decoding = config.decoding
    if decoding.lm is None:
        return config
    changes: dict[str, Path | float | None] = {"lm": folder.absolute() / decoding.lm}
    if not is_within(folder, folder / decoding.lm):
        if decoding.lm_weight:
            log.warning(
                "%s: its language model %s is not used, for it is not in this folder: give it by "
                "--lm and --lm-weight",
                folder,
                decoding.lm,
            )
        changes = {"lm": None, "lm_weight": 0.0}
    return config.model_copy(update={"decoding": decoding.model_copy(update=changes)})


def is_within(folder: Path, path: Path) -> bool:
    """Tell whether a path is below a folder; symbolic links are followed."""
    return path.resolve().is_relative_to(folder.resolve())


def write_bundle_config(folder: Path, config: Config) -> None:
    """Write a bundle's configuration; a language model in the folder gets a relative path."""
    lm = config.decoding.lm
    if lm and is_within(folder, lm):
        within = lm.resolve().relative_to(folder.resolve())
        decoding = config.decoding.model_copy(update={"lm": within})
        config = config.model_copy(update={"decoding": decoding})
    write_text(folder / CONFIG, dump_config(config))


def _check_exists(folder: Path, name: str) -> None:
    if not (folder / name).is_file():
        raise BundleError(f"{folder}: has no {name}: give a folder that `asr train` has finished")


def save_weights(
    parts: nn.Module,
    path: Path,
    tokenizer: Tokenizer,
    write_others: Callable[[], object] = lambda: None,
    int8: bool = False,
) -> None:
    """Write weights (see `write_tensors`), in 8 bits if `int8`, with their tokenizer's digest."""
    weights = parts.state_dict()
    tensors = to_int8(weights) if int8 else weights
    write_tensors(path, tensors, {"tokenizer": tokenizer.digest}, write_others)


def tokenizer_of(weights: Path) -> str | None:
    """Return the digest of the tokenizer that weights were trained with, None if not stored."""
    return read_metadata(weights).get("tokenizer")


def check_shapes(parts: nn.Module, path: Path) -> None:
    """Compare the shapes of a module, which may be on `meta`, with those of a file of weights.

    Raises BundleError, which names the first tensor that differs.
    """
    found = without_scales(read_shapes(path))
    wanted = {name: tuple(tensor.shape) for name, tensor in parts.state_dict().items()}
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            raise BundleError(f"{path}: tensor {name} is missing: the file is of another model")
        if name not in wanted:
            raise BundleError(f"{path}: tensor {name} is not of this model: the file is another's")
        if found[name] != wanted[name]:
            raise BundleError(
                f"{path}: tensor {name} is {found[name]}, {CONFIG} says {wanted[name]}: they "
                "belong to two models"
            )


def load_weights(parts: nn.Module, path: Path) -> None:
    """Read weights into a module. Raises BundleError, which names the tensor that is wrong."""
    check_shapes(parts, path)
    found, wanted = from_int8(read_tensors(path), path), parts.state_dict()
    for name, tensor in sorted(found.items()):
        if tensor.is_floating_point() != wanted[name].is_floating_point():
            raise BundleError(
                f"{path}: tensor {name} is {tensor.dtype}, {wanted[name].dtype} is expected: the "
                "file is of another model"
            )
        if not torch.isfinite(tensor).all():
            raise BundleError(f"{path}: tensor {name} holds NaN or infinity: train it again")
    parts.load_state_dict(found)
    for name, module in sparse_maps(parts):
        if not module.is_sound():
            raise BundleError(f"{path}: tensor {name}.places is damaged: copy the bundle again")
