"""The whole network: front end, encoder, decoder (Winata 2020; Cahyawijaya 2021, sec. 4.1).

Legend: B batch, T frames, F frequency bins, S encoder steps, U output tokens, W hypotheses of an
utterance, R rows (B · W), D d_model, E memory (see `Encoder.forward`), V vocabulary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from asr.model.attention import Cache, DecoderAttentionConfig, FullAttentionConfig
from asr.model.attention.full import reorder_caches, select_caches
from asr.model.dropout import Dropout
from asr.model.encoder import Encoder, EncoderConfig, sinusoids
from asr.model.factorization import apply_ranks
from asr.model.frontend import Frontend, FrontendConfig, VggConfig, padding_mask
from asr.model.layers import DecoderLayer
from asr.model.places import paths_of
from asr.model.projection import check_density
from asr.model.sounds import SoundsHead
from asr.model.streaming import EncoderState
from asr.model.unit import LayerConfig
from asr.schema import FrozenModel, Layers, Size


class DecoderConfig(FrozenModel):
    """Options of the decoder."""

    n_layers: Layers = 4
    attention: DecoderAttentionConfig = FullAttentionConfig()


class ModelConfig(LayerConfig):
    """Options of the network; the defaults are LRT (r = 100) of Cahyawijaya 2021, sec. 4.2.2.

    `ctc_weight` is the share of the CTC loss in training; above 0 the encoder has a CTC head.
    `ranks` are the ranks of the modules that `asr compress` factorized, by name.
    """

    frontend: FrontendConfig = VggConfig()
    encoder: EncoderConfig = EncoderConfig()
    decoder: DecoderConfig = DecoderConfig()
    ctc_weight: Annotated[float, Field(ge=0, lt=1)] = 0.0
    ranks: dict[str, Size] = Field(default={})

    @property
    def is_dense(self) -> bool:
        """Tell whether all linear maps are dense."""
        return not self.ranks and all(each.kind == "dense" for each in self.kinds.values())

    @model_validator(mode="after")
    def _places_exist(self) -> Self:
        for place in self.projections:
            problems = [self._problem_at(path) for path in paths_of(place)]
            if all(problems):
                raise ValueError(f"projections names {place}, but {problems[0]}, or remove it")
        return self

    def _problem_at(self, path: tuple[str, ...]) -> str | None:
        """Return why a path of `PATHS` has no linear map and what helps, None if it has one."""
        if "convolution" in path and self.encoder.convolution is None:
            return "no layer has a convolution: set encoder.convolution"
        part = self.encoder if path[0] == "encoder" else self.decoder
        if "self_attention" not in path or path[-1] in part.attention.maps:
            return None
        others = f" but {', '.join(maps)}" if (maps := part.attention.maps) else ""
        return (
            f"{path[0]}.attention of kind {part.attention.kind} has no linear map{others}: "
            "choose another kind of attention"
        )

    def build(self, n_freqs: int, vocab_size: int) -> "SpeechTransformer":
        """Return the network for features of `n_freqs` bins and `vocab_size` tokens.

        Raises ConfigError if `ranks` names a module that the network lacks.
        """
        network = SpeechTransformer(self, n_freqs, vocab_size)
        apply_ranks(network, self.ranks)
        check_density(network)
        return network


@dataclass
class DecoderState:
    """The state of the decoder between steps: B utterances, W hypotheses of each.

    Each layer has a cache (B · W rows), which follows the hypotheses, and a memory (B rows): the
    keys and values of the encoder's output, whose mask is `mask_BS`.
    """

    caches: list[Cache]
    memories: list[Cache]
    mask_BS: Tensor
    position: int = 0

    def reorder(self, parents_BW: Tensor) -> None:
        """Let hypothesis w of utterance b continue hypothesis `parents_BW[b, w]` of it."""
        self.caches = reorder_caches(self.caches, parents_BW)

    def select(self, indices: Tensor) -> None:
        """Keep these utterances only."""
        self.caches = select_caches(self.caches, len(self.mask_BS), indices)
        self.memories = [tuple(t[indices] for t in memory) for memory in self.memories]
        self.mask_BS = self.mask_BS[indices]


class TokenDecoder(nn.Module):
    """Layers over the embedded text so far, which score the next token."""

    def __init__(
        self, config: ModelConfig, vocab_size: int, new_layer: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.embed = nn.Embedding(vocab_size, config.d_model)
        nn.init.normal_(self.embed.weight, std=config.d_model**-0.5)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(new_layer() for _ in range(config.decoder.n_layers))
        self.norm = config.last_norm()
        self.output = nn.Linear(config.d_model, vocab_size)

    def embed_at(self, tokens_BU: Tensor, start: int) -> Tensor:
        """Embed tokens (B, U) at positions from `start`: (B, U, D)."""
        positions = sinusoids(start, tokens_BU.shape[1], self.d_model, tokens_BU.device)
        x_BUD: Tensor = self.dropout(self.embed(tokens_BU) * self.d_model**0.5 + positions)
        return x_BUD

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (..., V) of the layers' output (..., D)."""
        y: Tensor = self.output(self.norm(x))
        return y


class Decoder(TokenDecoder):
    """Layers over the text so far and the encoder's output, which score the next token."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        attention = config.decoder.attention
        super().__init__(config, vocab_size, lambda: DecoderLayer(config.at("decoder"), attention))

    def forward(self, tokens_BU: Tensor, memory_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Return the logits (B, U, V) of the token after each, all positions at once."""
        return self.logits(self._hidden(tokens_BU, memory_BSD, mask_BS))

    def log_probs(self, tokens_BWU: Tensor, memory_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Return the log-probability (B, W, U - 1) of each token of known texts but the first.

        One pass of the layers computes all positions of all texts.
        """
        inputs_RU, wanted_RU = tokens_BWU[..., :-1].flatten(0, 1), tokens_BWU[..., 1:].flatten(0, 1)
        hidden_RUD = self._hidden(inputs_RU, memory_BSD, mask_BS)
        found = []
        # Logits, the largest tensors of decoding, are computed for one text at a time.
        for hidden_UD, wanted_U in zip(hidden_RUD, wanted_RU, strict=True):
            logits_UV = self.logits(hidden_UD)
            chosen_U = logits_UV.gather(1, wanted_U[:, None]).squeeze(1)
            found.append(chosen_U - logits_UV.logsumexp(1))
        return torch.stack(found).view_as(tokens_BWU[..., 1:])

    def _hidden(self, tokens_RU: Tensor, memory_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Return the output of the layers (R, U, D); R is a multiple of B (see `DecoderLayer`)."""
        x_RUD, memory_BSD = self.embed_at(tokens_RU, 0), self.seen(memory_BSD)
        for layer in self.layers:
            x_RUD = layer(x_RUD, memory_BSD, mask_BS)
        return x_RUD

    def start(self, memory_BSD: Tensor, mask_BS: Tensor) -> DecoderState:
        """Return the state before the first token."""
        layers, memory_BSD = self.each_layer(), self.seen(memory_BSD)
        memories: list[Cache] = [layer.cross_attention.keys_values(memory_BSD) for layer in layers]
        return DecoderState([() for _ in memories], memories, mask_BS)

    def seen(self, memory_BSE: Tensor) -> Tensor:
        """Return what the decoder sees of the encoder's output: (B, S, D), without the sounds."""
        has_sounds = memory_BSE.shape[-1] > self.d_model
        return memory_BSE[..., : self.d_model] if has_sounds else memory_BSE

    def step(self, tokens_BW: Tensor, state: DecoderState) -> Tensor:
        """Return log-probabilities (B, W, V) of the next token; `state` advances by one."""
        x_B1D = self.embed_at(tokens_BW.flatten()[:, None], state.position)
        x_BWD = x_B1D.view(*tokens_BW.shape, -1)
        for i, layer in enumerate(self.each_layer()):
            x_BWD, state.caches[i] = layer.step(
                x_BWD, state.caches[i], state.memories[i], state.mask_BS
            )
        state.position += 1
        return self.logits(x_BWD).log_softmax(-1)

    def each_layer(self) -> Iterator[DecoderLayer]:
        """Yield the layers."""
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            yield layer


class SpeechTransformer(nn.Module):
    """Front end, encoder, decoder, and a CTC head if `ctc_weight` is above 0.

    The encoder may have a head of sounds too (see `SoundsConfig`).
    """

    def __init__(self, config: ModelConfig, n_freqs: int, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        projection, pads = config.at("frontend").projection, config.encoder.streaming is None
        self.frontend: Frontend = config.frontend.build(n_freqs, config.d_model, projection, pads)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config, vocab_size)
        self.ctc_head = nn.Linear(config.d_model, vocab_size) if config.ctc_weight > 0 else None
        self.sounds_head = SoundsHead(config.d_model, vocab_size) if config.encoder.sounds else None

    def encode(
        self, feats_BTF: Tensor, lengths_B: Tensor, chunk: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Map (B, T, F) and frame counts to memory (B, S, E) and its mask (B, S).

        `chunk` is the encoder's (see `Encoder.forward`).
        """
        x_BSD, steps_B = self.frontend(feats_BTF, lengths_B)
        mask_BS = padding_mask(steps_B, x_BSD.shape[1])
        return self.encoder(x_BSD, mask_BS, chunk), mask_BS

    def encode_chunk(
        self, feats_BTF: Tensor, steps_B: Tensor, state: EncoderState
    ) -> tuple[Tensor, Tensor]:
        """Map the frames of a chunk to the encoder's input (B, S, D) and memory (B, S, E).

        The state advances. The frames are those of S steps, with the front end's `before` and
        `after` frames around them. These belong to other chunks too, and are zeros beyond the ends
        of a stream. A session has `steps_B` valid steps.
        """
        x_BSD = self.frontend.convolve(feats_BTF)
        return x_BSD, self.encoder.step(x_BSD, padding_mask(steps_B, x_BSD.shape[1]), state)

    def ctc_logits(self, memory_BSE: Tensor) -> Tensor:
        """Return the logits (B, S, V) of CTC; those of sounds are added, except in training.

        The sum makes a product of two distributions (Hinton 2002), each of which is trained alone.
        """
        assert self.ctc_head is not None, "the model has no CTC head"
        logits_BSV: Tensor = self.ctc_head(self.decoder.seen(memory_BSE))
        if self.sounds_head is None or self.training:
            return logits_BSV
        sounds_BSV: Tensor = self.sounds_head(memory_BSE[..., self.config.d_model :])
        return logits_BSV + sounds_BSV

    def forward(
        self, feats_BTF: Tensor, lengths_B: Tensor, tokens_BU: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return logits of the decoder (B, U, V), of CTC (B, S, V) or None, and the mask (B, S)."""
        memory_BSD, mask_BS = self.encode(feats_BTF, lengths_B)
        logits_BUV = self.decoder(tokens_BU, memory_BSD, mask_BS)
        return logits_BUV, self.ctc_logits(memory_BSD) if self.ctc_head else None, mask_BS
