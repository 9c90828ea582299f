"""Graphs from Kaldi's filterbank to CTC log-probabilities: of utterances, and of a stream's chunks.

sherpa-onnx computes the filterbank of samples from -1 to 1, Kaldi and this project that of 16-bit
samples.
Legend: B utterances or sessions, T frames, F mel bins, S encoder steps, C steps of a chunk, L steps
before it, D d_model, H heads, K head dimension, X steps before a convolution, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from asr.audio.features import KALDI_SCALE, MIN_STD
from asr.bundle import Bundle
from asr.export.columns import first, without_special
from asr.model.frontend import FRAMES_PER_STEP, padding_mask
from asr.model.streaming import EncoderState

_LEVEL = 2 * math.log(KALDI_SCALE)
# The state of a Zipformer's front end, which here holds the frames before a chunk.
_EMBED = (128, 3, 19)
_STATES_OF_LAYER = 6


class UtteranceGraph(nn.Module):
    """Map features and lengths to log-probabilities and their lengths (`zipformer_ctc`)."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        self.features, self.model = bundle.features, bundle.model
        self.by_corpus = bundle.config.features.normalize == "corpus"
        self.steps = bundle.config.model.frontend.steps

    def forward(self, feats_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, T, F) and (B,) to (B, S, V') and (B,)."""
        feats_BTF = feats_BTF + _LEVEL
        if self.by_corpus:
            feats_BTF = self.features.normalized(feats_BTF)
        else:
            feats_BTF = _normalized(feats_BTF, padding_mask(lengths_B, feats_BTF.shape[1]))
        steps = self.steps(feats_BTF.shape[1])
        # One more step of padding, so that the encoder has at least one step.
        feats_BTF = pad(feats_BTF, (0, 0, 0, FRAMES_PER_STEP))
        memory_BSD, mask_BS = self.model.encode(feats_BTF, lengths_B)
        return without_special(self.model.ctc_logits(first(memory_BSD, steps))), mask_BS.sum(1)


def _normalized(feats_BTF: Tensor, mask_BT: Tensor) -> Tensor:
    """Return each utterance's valid features with mean 0 and standard deviation 1 over all bins."""
    mask_BT1 = mask_BT[..., None]
    count_B11 = mask_BT1.sum((1, 2), keepdim=True).clamp(min=1) * feats_BTF.shape[2]
    mean_B11 = (feats_BTF * mask_BT1).sum((1, 2), keepdim=True) / count_B11
    centered_BTF = (feats_BTF - mean_B11) * mask_BT1
    variance_B11 = centered_BTF.square().sum((1, 2), keepdim=True) / count_B11
    return centered_BTF / variance_B11.sqrt().clamp(min=MIN_STD)


class ChunkGraph(nn.Module):
    """Map the frames of a chunk and a state to log-probabilities and the next state.

    The states are those of a Zipformer (`zipformer2_ctc`), six for each layer: keys (L, B, D), one
    unused, values (L, B, D), one unused, the past that the convolution sees (B, D, X), one unused.
    After the layers come the frames before the chunk (B, 128, 3, 19), most of it unused, and the
    number of steps so far (B,). All states begin as zeros.
    """

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        self.features, self.model = bundle.features, bundle.model
        config, streaming = bundle.config.model, bundle.config.model.encoder.streaming
        assert streaming is not None
        self.chunk, self.left = streaming.chunk, streaming.left
        self.n_layers, self.n_heads, self.d_model = (
            config.encoder.n_layers, config.n_heads, config.d_model,
        )  # fmt: skip
        # sherpa-onnx needs a state for half a convolution; without one its single step is unused.
        width = config.encoder.convolution
        self.past = None if width is None else width // 2
        self.reach = max(1, self.past or 0)
        self.before = bundle.model.frontend.before
        self.n_freqs = bundle.config.features.n_freqs
        self.frames = FRAMES_PER_STEP * self.chunk + bundle.model.frontend.after

    def metadata(self) -> dict[str, str]:
        """Return the metadata that sherpa-onnx reads beside the graph."""
        sizes = {
            "encoder_dims": self.d_model,
            "query_head_dims": self.d_model // self.n_heads,
            "value_head_dims": self.d_model // self.n_heads,
            "num_heads": self.n_heads,
            "num_encoder_layers": self.n_layers,
            "cnn_module_kernels": 2 * self.reach + 1,
            "left_context_len": self.left,
            "T": self.frames,
            "decode_chunk_len": FRAMES_PER_STEP * self.chunk,
        }
        return {"model_type": "zipformer2"} | {name: str(size) for name, size in sizes.items()}

    def start(self, n_sessions: int) -> list[Tensor]:
        """Return the states before the first chunk."""
        L, B, D = self.left, n_sessions, self.d_model
        layer = [(L, B, D), (1, B, L, 3 * D // 4), (L, B, D), (L, B, D), *2 * [(B, D, self.reach)]]
        states = [torch.zeros(shape) for _ in range(self.n_layers) for shape in layer]
        return [*states, torch.zeros(B, *_EMBED), torch.zeros(B, dtype=torch.long)]

    def batch_axes(self) -> list[int]:
        """Return the axis of the sessions in each state."""
        return [*self.n_layers * [1, 1, 1, 1, 0, 0], 0, 0]

    def names(self) -> list[str]:
        """Return the names of the states, in order."""
        kinds = ("cached_key", "unused_1", "cached_value", "unused_2", "cached_conv", "unused_3")
        names = [f"{kind}_{i}" for i in range(self.n_layers) for kind in kinds]
        return [*names, "embed_states", "processed_lens"]

    def forward(self, feats_BTF: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Map (B, T, F) and the states to (B, C, V') and the next states."""
        *layers, embed, n_steps_B = states
        feats_BTF = self.features.normalized(feats_BTF + _LEVEL)
        size = self.before * self.n_freqs
        held = embed.flatten(1)
        before_BTF = held[:, :size].unflatten(1, (self.before, self.n_freqs))
        feats_BTF = torch.cat((before_BTF, feats_BTF), 1)
        following = feats_BTF[:, FRAMES_PER_STEP * self.chunk :][:, : self.before].flatten(1)
        # The step that is `place` steps before the chunk exists once so many steps are done.
        place_L = torch.arange(self.left, 0, -1, device=n_steps_B.device)
        state = EncoderState(self._caches(layers), place_L <= n_steps_B[:, None])
        x_BCD = self.model.frontend.convolve(feats_BTF)
        mask_BC = torch.ones_like(x_BCD[..., 0]).bool()
        logits_BCV = self.model.ctc_logits(self.model.encoder.step(x_BCD, mask_BC, state))
        embed = torch.cat((following, held[:, size:]), 1).view_as(embed)
        stored = self._states(state, layers)
        return without_special(logits_BCV), *stored, embed, n_steps_B + self.chunk

    def _caches(self, layers: list[Tensor]) -> list[tuple[Tensor, ...]]:
        """Return each layer's cache: keys and values (B, H, L, K), and a convolution's past."""
        caches = []
        for i in range(self.n_layers):
            key, _, value, _, conv, _ = layers[_STATES_OF_LAYER * i : _STATES_OF_LAYER * (i + 1)]
            heads = (x.unflatten(2, (self.n_heads, -1)).permute(1, 2, 0, 3) for x in (key, value))
            has_past = self.past is not None
            caches.append((*heads, *([conv[..., : self.past]] if has_past else [])))
        return caches

    def _states(self, state: EncoderState, layers: list[Tensor]) -> list[Tensor]:
        """Return the caches of the encoder in the shapes of the states."""
        stored = list(layers)
        for i, (key, value, *conv) in enumerate(state.caches):
            at = _STATES_OF_LAYER * i
            stored[at], stored[at + 2] = (x.permute(2, 0, 1, 3).flatten(2) for x in (key, value))
            if conv and conv[0].shape[2]:
                stored[at + 4] = conv[0]
        return stored
