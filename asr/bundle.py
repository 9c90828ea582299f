"""Model bundle: a folder with all that inference needs, which runs no code on loading.

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
from asr.model.projection import SetSparse
from asr.model.transformer import SpeechTransformer
from asr.runtime.files import write_atomically
from asr.tokenizer import Tokenizer

CONFIG = "config.yaml"


TOKENIZER = "tokenizer.model"


WEIGHTS = "model.safetensors"


CARD = "README.md"


EVALUATION = "evaluation.json"


@dataclass
class Bundle:
    """A recogniser's parts, trained or about to be."""

    config: Config
    tokenizer: Tokenizer
    features: FeatureExtractor
    model: SpeechTransformer

    @classmethod
    def create(cls, config: Config, tokenizer: Tokenizer) -> "Bundle":
        """Fresh weights for a recipe; the vocabulary's true size enters the configuration."""
        sized = config.tokenizer.model_copy(update={"vocab_size": tokenizer.vocab_size})
        config = config.model_copy(update={"tokenizer": sized})
        model = config.model.build(config.features.n_freqs, tokenizer.vocab_size)
        return cls(config, tokenizer, config.features.build(), model)

    @property
    def parts(self) -> nn.ModuleDict:
        """Everything that has weights or statistics."""
        return nn.ModuleDict({"features": self.features, "model": self.model})

    def save(self, folder: Path, card: str) -> None:
        """Write the four files, each whole or not at all; weights last.

        The weights remember which tokenizer they were trained with. An evaluation of what stood
        here before goes.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / EVALUATION).unlink(missing_ok=True)
        write_atomically(folder / CONFIG, lambda p: p.write_text(dump_config(self.config), "utf-8"))
        write_atomically(folder / TOKENIZER, lambda p: p.write_bytes(self.tokenizer.model))
        write_atomically(folder / CARD, lambda p: p.write_text(card, "utf-8"))
        state = {key: value.contiguous() for key, value in self.parts.state_dict().items()}
        weights = to_bytes(state, {"tokenizer": self.tokenizer.digest})
        write_atomically(folder / WEIGHTS, lambda p: p.write_bytes(weights))

    @classmethod
    def load(cls, folder: Path) -> "Bundle":
        """Read a bundle. Raises BundleError that names the file, or the tensor, that is wrong."""
        for name in (CONFIG, TOKENIZER, WEIGHTS):
            if not (folder / name).is_file():
                raise BundleError(
                    f"{folder}: no {name} here: give the folder that `asr train` has finished"
                )
        try:
            config = load_config(folder / CONFIG)
        except ConfigError as error:
            raise BundleError(str(error)) from error
        try:
            tokenizer = Tokenizer((folder / TOKENIZER).read_bytes())
        except AsrError as error:
            raise BundleError(f"{folder}: {error}: copy the bundle again") from error
        if tokenizer.vocab_size != config.tokenizer.vocab_size:
            raise BundleError(
                f"{folder}: {TOKENIZER} has {tokenizer.vocab_size} tokens, {CONFIG} says "
                f"{config.tokenizer.vocab_size}: they are of two models"
            )
        bundle = cls.create(config, tokenizer)
        load_weights(bundle.parts, folder / WEIGHTS)
        if tokenizer_of(folder / WEIGHTS) != tokenizer.digest:
            raise BundleError(f"{folder}: {TOKENIZER} and {WEIGHTS} are of two models")
        return bundle


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises BundleError where it is damaged."""
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise BundleError(
            f"{path}: truncated or not a safetensors file ({error}): copy it again"
        ) from error


def tokenizer_of(weights: Path) -> str | None:
    """The digest of the tokenizer that weights were trained with."""
    with safe_open(weights, "pt") as file:
        return (file.metadata() or {}).get("tokenizer")


def load_weights(parts: nn.Module, path: Path) -> None:
    """Read weights into a module. Raises BundleError that names the tensor that is wrong."""
    found, wanted = read_tensors(path), parts.state_dict()
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            raise BundleError(f"{path}: tensor {name} is missing: the file is of another model")
        if name not in wanted:
            raise BundleError(f"{path}: tensor {name} is not of this model: another model's file")
        if found[name].shape != wanted[name].shape:
            raise BundleError(
                f"{path}: tensor {name} is {tuple(found[name].shape)}, {CONFIG} says "
                f"{tuple(wanted[name].shape)}: the two are of different models"
            )
        if not torch.isfinite(found[name]).all():
            raise BundleError(f"{path}: tensor {name} holds NaN or infinity: train it again")
    parts.load_state_dict(found)
    for name, module in parts.named_modules():
        if isinstance(module, SetSparse) and not module.is_sound():
            raise BundleError(f"{path}: tensor {name}.places is damaged: copy the bundle again")
