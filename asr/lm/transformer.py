"""A small language model of the recognizer's own tokens, with its projections and sizes.

A folder of `asr train-lm` holds config.yaml (sizes) and model.safetensors, whose metadata hold
the digest of the tokenizer. Legend: B texts or utterances, U tokens, W hypotheses, K candidates,
D d_model, V vocabulary.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import yaml
from pydantic import Field
from torch import Tensor, nn

from asr.bundle import CONFIG, WEIGHTS, check_shapes, load_weights, save_weights, tokenizer_of
from asr.errors import BundleError, ConfigError
from asr.model.attention.full import Cache, reorder_caches, select_caches
from asr.model.layers import FeedForward, causal_self_attention
from asr.model.projection import check_density
from asr.model.transformer import ModelConfig, TokenDecoder
from asr.runtime.files import write_text
from asr.runtime.tensors import shapes_alone
from asr.runtime.yaml_values import read_yaml
from asr.schema import FrozenModel
from asr.tokenizer import MOST_TOKENS, SOS, Tokenizer


class LmConfig(FrozenModel):
    """Sizes; `model` gives the widths, projections, order of norms and the decoder's depth."""

    language_model: Literal[1] = 1  # the format
    vocab_size: Annotated[int, Field(gt=0, le=MOST_TOKENS)]
    model: ModelConfig


class LmLayer(nn.Module):
    """Causal self-attention, then feed-forward: a decoder's layer without cross-attention."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        model = model.at("decoder")
        self.self_attention = causal_self_attention(model, model.decoder.attention)
        self.feed_forward = FeedForward(model)

    def forward(self, x_BUD: Tensor) -> Tensor:
        """Compute all positions (B, U, D) at once; being causal, they ignore padding at the end."""
        found: Tensor = self.feed_forward(self.self_attention(x_BUD))
        return found

    def step(self, x_B1D: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Compute one position (B, 1, D) after those in the cache."""
        x_B1D, cache = self.self_attention.step(x_B1D, cache)
        return self.feed_forward(x_B1D), cache


class LanguageTransformer(TokenDecoder):
    """A Transformer decoder (Vaswani 2017) without cross-attention."""

    def __init__(self, config: LmConfig) -> None:
        super().__init__(config.model, config.vocab_size, lambda: LmLayer(config.model))
        self.config = config
        check_density(self)

    def forward(self, tokens_BU: Tensor) -> Tensor:
        """Return logits (B, U, V) of the token after each."""
        x_BUD = self.embed_at(tokens_BU, 0)
        for layer in self.layers:
            x_BUD = layer(x_BUD)
        return self.logits(x_BUD)

    def step(self, tokens_B: Tensor, caches: list[Cache], position: int) -> Tensor:
        """Return log-probabilities (B, V) of the token after each; the caches grow by one."""
        x_B1D = self.embed_at(tokens_B[:, None], position)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, LmLayer)
            x_B1D, caches[i] = layer.step(x_B1D, caches[i])
        return self.logits(x_B1D[:, 0]).log_softmax(-1)

    def start(self, n_utterances: int, n_hypotheses: int, device: torch.device) -> "LmState":
        """Return a scorer of W empty hypotheses of each of B utterances."""
        tokens_BW = torch.full((n_utterances, n_hypotheses), SOS, device=device)
        caches: list[Cache] = [() for _ in self.layers]
        logp_BWV = self.step(tokens_BW.flatten(), caches, 0).unflatten(0, tokens_BW.shape)
        return LmState(self, caches, logp_BWV)

    def token_scorer(self) -> None:
        """Return None, no scorer of single tokens: a step costs as much for one as for many."""

    def save(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Write the two files, each atomically; weights last."""
        text = yaml.safe_dump(self.config.model_dump(mode="json"), sort_keys=False)
        write_text(folder / CONFIG, text)
        save_weights(self, folder / WEIGHTS, tokenizer)

    @classmethod
    def load(cls, folder: Path, tokenizer: Tokenizer) -> "LanguageTransformer":
        """Read a folder of `asr train-lm`. Raises BundleError if damaged, or for other tokens."""
        try:
            config = LmConfig.model_validate(read_yaml(folder / CONFIG))
        except (ConfigError, ValueError) as error:
            raise BundleError(
                f"{folder / CONFIG}: not a language model's: give a folder of `asr train-lm`"
            ) from error
        with shapes_alone():
            check_shapes(cls(config), folder / WEIGHTS)
        model = cls(config)
        load_weights(model, folder / WEIGHTS)
        if tokenizer_of(folder / WEIGHTS) != tokenizer.digest:
            raise BundleError(
                f"{folder}: this language model has another recognizer's tokens: train one for "
                "this recognizer with `asr train-lm`"
            )
        return model.eval()


@dataclass
class LmState:
    """The caches of growing hypotheses (see `asr.decoding.scorers.LmScorer`), of B · W rows."""

    model: LanguageTransformer
    caches: list[Cache]
    logp_BWV: Tensor
    position: int = 1

    def score(self, tokens_BWK: Tensor) -> Tensor:
        """Return the log-probability (B, W, K) of each candidate as the next token."""
        return self.logp_BWV.gather(2, tokens_BWK)

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        """Replace hypothesis w by hypothesis `parents_BW[b, w]` with `tokens_BW[b, w]` appended."""
        self.caches = reorder_caches(self.caches, parents_BW)
        logp = self.model.step(tokens_BW.flatten(), self.caches, self.position)
        self.logp_BWV = logp.unflatten(0, parents_BW.shape)
        self.position += 1

    def select(self, indices: Tensor) -> None:
        """Continue with these utterances only."""
        self.caches = select_caches(self.caches, len(self.logp_BWV), indices)
        self.logp_BWV = self.logp_BWV[indices]
