"""Model bundle: a folder with all that inference needs; loading it runs no code.

config.yaml (the resolved recipe, with the format's version), tokenizer.model (sentencepiece),
model.safetensors (weights and feature statistics) and README.md (the model card).
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from asr.audio.features import FeatureExtractor
from asr.config import Config, dump_config, load_config
from asr.errors import AsrError, BundleError, ConfigError
from asr.model.projection import sparse_maps
from asr.model.transformer import SpeechTransformer
from asr.runtime.files import write_atomically, write_text
from asr.tokenizer import Tokenizer

CONFIG = "config.yaml"
TOKENIZER = "tokenizer.model"
WEIGHTS = "model.safetensors"
CARD = "README.md"
EVALUATION = "evaluation.json"


@dataclass
class Bundle:
    """The parts of a recognizer, trained or to be trained."""

    config: Config
    tokenizer: Tokenizer
    features: FeatureExtractor
    model: SpeechTransformer

    @classmethod
    def create(cls, config: Config, tokenizer: Tokenizer) -> "Bundle":
        """Return fresh weights for a recipe, with the tokenizer's vocabulary size in it."""
        sized = config.tokenizer.model_copy(update={"vocab_size": tokenizer.vocab_size})
        config = config.model_copy(update={"tokenizer": sized})
        model = config.model.build(config.features.n_freqs, tokenizer.vocab_size)
        return cls(config, tokenizer, config.features.build(), model)

    @property
    def parts(self) -> nn.ModuleDict:
        """Return the modules with weights or statistics."""
        return nn.ModuleDict({"features": self.features, "model": self.model})

    def save(self, folder: Path, card: str) -> None:
        """Write the four files atomically, the weights last; remove an older evaluation.

        The weights name the tokenizer that they were trained with.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / EVALUATION).unlink(missing_ok=True)
        write_text(folder / CONFIG, dump_config(self.config))
        write_atomically(folder / TOKENIZER, lambda p: p.write_bytes(self.tokenizer.model))
        write_text(folder / CARD, card)
        save_weights(self.parts, folder / WEIGHTS, self.tokenizer)

    @classmethod
    def load(cls, folder: Path) -> "Bundle":
        """Read a bundle. Raises BundleError that names the file, or the tensor, that is wrong."""
        config = load_bundle_config(folder)
        for name in (TOKENIZER, WEIGHTS):
            _check_exists(folder, name)
        try:
            tokenizer = Tokenizer((folder / TOKENIZER).read_bytes())
        except AsrError as error:
            raise BundleError(f"{folder}: {error}: copy the bundle again") from error
        if tokenizer.vocab_size != config.tokenizer.vocab_size:
            raise BundleError(
                f"{folder}: {TOKENIZER} has {tokenizer.vocab_size} tokens, {CONFIG} says "
                f"{config.tokenizer.vocab_size}: they belong to two models"
            )
        bundle = cls.create(config, tokenizer)
        load_weights(bundle.parts, folder / WEIGHTS)
        if tokenizer_of(folder / WEIGHTS) != tokenizer.digest:
            raise BundleError(f"{folder}: {TOKENIZER} and {WEIGHTS} belong to two models")
        return bundle


def load_bundle_config(folder: Path, overrides: list[str] | None = None) -> Config:
    """Read the configuration of a bundle. Raises BundleError if it is missing or wrong."""
    _check_exists(folder, CONFIG)
    try:
        return load_config(folder / CONFIG, overrides)
    except ConfigError as error:
        raise BundleError(str(error)) from error


def _check_exists(folder: Path, name: str) -> None:
    if not (folder / name).is_file():
        raise BundleError(f"{folder}: has no {name}: give a folder that `asr train` has finished")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file. Raises BundleError where it is damaged."""
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise BundleError(
            f"{path}: truncated or not a safetensors file ({error}): copy it again"
        ) from error


def tokenizer_of(weights: Path) -> str | None:
    """Return the digest of the tokenizer that weights were trained with."""
    with safe_open(weights, "pt") as file:
        return (file.metadata() or {}).get("tokenizer")


def save_weights(parts: nn.Module, path: Path, tokenizer: Tokenizer) -> None:
    """Write a module's weights atomically, with the digest of their tokenizer."""
    state = {key: value.contiguous() for key, value in parts.state_dict().items()}
    weights = to_bytes(state, {"tokenizer": tokenizer.digest})
    write_atomically(path, lambda temporary: temporary.write_bytes(weights))


def load_weights(parts: nn.Module, path: Path) -> None:
    """Read weights into a module. Raises BundleError that names the tensor that is wrong."""
    found, wanted = read_tensors(path), parts.state_dict()
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            raise BundleError(f"{path}: tensor {name} is missing: the file is of another model")
        if name not in wanted:
            raise BundleError(f"{path}: tensor {name} is not of this model: the file is another's")
        if found[name].shape != wanted[name].shape:
            raise BundleError(
                f"{path}: tensor {name} is {tuple(found[name].shape)}, {CONFIG} says "
                f"{tuple(wanted[name].shape)}: they belong to two models"
            )
        if not torch.isfinite(found[name]).all():
            raise BundleError(f"{path}: tensor {name} holds NaN or infinity: train it again")
    parts.load_state_dict(found)
    for name, module in sparse_maps(parts):
        if not module.is_sound():
            raise BundleError(f"{path}: tensor {name}.places is damaged: copy the bundle again")
