"""Define the graphs of encoder and decoder, and the ports through which they are called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asr.model.attention import Cache
from asr.model.transformer import Decoder, DecoderState, SpeechTransformer


def open_session(path: Path) -> Any:
    """Return an ONNX Runtime session on the CPU whose threads do not wait busily."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def open_onnx(path: Path) -> Callable[..., list[Tensor]]:
    """Return a function that runs the graph of an ONNX file on inputs in order."""
    session = open_session(path)
    names = [port.name for port in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        fed = {name: t.numpy() for name, t in zip(names, inputs, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, fed)]

    return run


@dataclass
class Port:
    """An input or output; each of its axes is a size, or the name of a free axis."""

    name: str
    dtype: str
    axes: tuple[int | str, ...]


@dataclass
class Ports:
    """The inputs and outputs of a graph, in order."""

    inputs: list[Port]
    outputs: list[Port]


class EncoderGraph(nn.Module):
    """Map features to memory, mask, CTC log P, and keys and values for each decoder layer."""

    def __init__(self, model: SpeechTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, feats_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs in the order of `describe`."""
        memory_BSD, mask_BS = self.model.encode(feats_BTF, lengths_B)
        has_ctc = self.model.ctc_head is not None
        ctc = (self.model.ctc_logits(memory_BSD).log_softmax(-1),) if has_ctc else ()
        memories = self.model.decoder.start(memory_BSD, mask_BS).memories
        memory_BSD = self.model.decoder.seen(memory_BSD)
        return memory_BSD, mask_BS, *ctc, *(t for memory in memories for t in memory)


class DecoderGraph(nn.Module):
    """Map the last tokens, mask, memory and cache to log P of the next token and the new cache."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens_BW: Tensor, mask_BS: Tensor, *stored: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs in the order of `describe`; the cache's length is the position."""
        n = len(stored) // 2
        rows = [t.flatten(0, 1) for t in stored[n:]]
        state = DecoderState(_pairs(rows), _pairs(stored[:n]), mask_BS, rows[0].shape[2])
        logp_BWV = self.decoder.step(tokens_BW, state)
        cache = (t.unflatten(0, tokens_BW.shape) for layer in state.caches for t in layer)
        return logp_BWV, *cache


def _pairs(tensors: Sequence[Tensor]) -> list[Cache]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def describe(model: SpeechTransformer, n_freqs: int) -> dict[str, Ports]:
    """Return the ports of both graphs by name."""
    config, V = model.config, model.decoder.embed.num_embeddings
    H, K = config.n_heads, config.d_model // config.n_heads
    names = [f"{what}_{i}" for i in range(len(model.decoder.layers)) for what in ("keys", "values")]
    memory = [Port(f"memory_{name}", "float32", ("batch", H, "steps", K)) for name in names]
    mask = Port("mask", "bool", ("batch", "steps"))

    def cache(prefix: str, length: str) -> list[Port]:
        return [Port(prefix + n, "float32", ("batch", "beam", H, length, K)) for n in names]

    ctc = [Port("ctc_log_probs", "float32", ("batch", "steps", V))] if model.ctc_head else []
    return {
        "encoder": Ports(
            [
                Port("features", "float32", ("batch", "time", n_freqs)),
                Port("lengths", "int64", ("batch",)),
            ],
            [Port("memory", "float32", ("batch", "steps", config.d_model)), mask, *ctc, *memory],
        ),
        "decoder": Ports(
            [Port("tokens", "int64", ("batch", "beam")), mask, *memory, *cache("", "past")],
            [Port("log_probs", "float32", ("batch", "beam", V)), *cache("new_", "past + 1")],
        ),
    }
