"""Export a recognizer as two graphs that need no code of this project: ONNX or torch (`.pt2`).

The encoder's graph also computes the keys and values that the decoder attends to. The decoder's
graph is one step; its cache is an input and an output. The caller computes features and runs the
search.
Legend: B utterances, T frames, F frequency bins, S encoder steps,
W hypotheses of an utterance, V vocabulary.
"""

import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from asr.bundle import CARD, CONFIG, TOKENIZER, Bundle
from asr.config import dump_config
from asr.decoding.ctc_prefix import BLANK
from asr.errors import AsrError, ConfigError
from asr.export.feature_text import how_features
from asr.export.graphs import DecoderGraph, EncoderGraph, Ports, describe, open_onnx
from asr.model.attention import AttentionConfig, EncoderAttentionConfig
from asr.model.frontend import FRAMES_PER_STEP
from asr.model.inference.sparse import fastest_form
from asr.model.projection import sparse_maps
from asr.model.transformer import SpeechTransformer
from asr.tokenizer import EOS, PAD, SOS, UNK

VERSION = 1
DESCRIPTION = "export.json"
TOLERANCE = 1e-4
# The free axes and their least sizes. 8 frames of time are two encoder steps, since torch treats a
# batch of one step as a special case.
FREE = {"batch": 1, "time": 8, "steps": 1, "beam": 1, "past": 0}
# Utterances, hypotheses of each and frames of the inputs for tracing and for the comparison.
_TRACED = (2, 3, 50)
_COMPARED = ((1, 1, 8), (3, 8, 161), (5, 2, 87))
_COMPARED_STEPS = 4

_ATTENTIONS: tuple[type[AttentionConfig], ...] = get_args(get_args(EncoderAttentionConfig)[0])
ENCODERS = [get_args(c.model_fields["kind"].annotation)[0] for c in _ATTENTIONS if c.exports]

Graph = Callable[..., Sequence[Tensor]]


def export(
    bundle: Bundle,
    kind: str,
    out: Path,
    finish: Callable[[Path], object] = lambda _: None,
    dense_from: float = 0.5,
) -> float:
    """Write the graphs and the files needed to use them to a new folder.

    `kind` is `onnx` or `torch`. `finish` may change what is in the folder before it has its name.
    Sparse maps (SET) become dense where at least the share `dense_from` of their weights exists.
    Others are stored as positions and values, each as large as a weight. Returns the largest
    difference from the model on random input.
    Raises ConfigError if the kind is unknown, its packages are missing, the model cannot be
    exported or `out` exists; AsrError if the difference is above 1e-4. Nothing is written then.
    """
    if kind not in _KINDS:
        raise ConfigError(
            f"--format {kind}: give onnx, torch, sherpa or html; --int8 makes 8 bits of an onnx"
        )
    if kind == "onnx" and not all(map(find_spec, ("onnxscript", "onnxruntime"))):
        raise ConfigError(
            "--format onnx needs onnxscript and onnxruntime: pip install 'lrt-asr[export]'"
        )
    if out.exists():
        raise ConfigError(f"{out}: already exists: give --out a new folder, or remove it")
    attention = bundle.config.model.encoder.attention
    if not attention.exports:
        raise ConfigError(
            f"model.encoder.attention.kind: {attention.kind} cannot be exported, since its graph "
            f"would be valid for one length only: only {', '.join(ENCODERS)} can"
        )
    model = bundle.model.cpu().eval().requires_grad_(False)
    if not all(layer.attends_to_all_past for layer in model.decoder.each_layer()):
        raise ConfigError("model.decoder.attention: only kind full can be exported")
    for name, sparse in list(sparse_maps(model)):
        if sparse.density >= dense_from:
            model.set_submodule(name, fastest_form(sparse, may_be_sparse=False))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-") as scratch:
            folder = Path(scratch) / out.name
            folder.mkdir()
            difference = _write(bundle, model, kind, folder)
            finish(folder)
            folder.rename(out)
    except OSError as error:
        raise AsrError(f"{out}: cannot be written ({error.strerror or error})") from error
    return difference


def _write(bundle: Bundle, model: SpeechTransformer, kind: str, folder: Path) -> float:
    suffix, write, read = _KINDS[kind]
    n_freqs = bundle.config.features.n_freqs
    ports = describe(model, n_freqs)
    for name, (graph, inputs) in _examples(model, n_freqs).items():
        write(_trace(graph, inputs, ports[name]), ports[name], folder / (name + suffix))
    encoder, decoder = (read(folder / (name + suffix), ports[name]) for name in ports)
    difference = compare(model, n_freqs, encoder, decoder)
    if not difference <= TOLERANCE:
        raise AsrError(
            f"the exported graphs differ from the model by {difference:.1e}, more than "
            f"{TOLERANCE:g}: nothing was written; please report it with the recipe"
        )
    facts = {
        "format_version": VERSION,
        "format": kind,
        "torch": torch.__version__,
        "largest_difference": difference,
        "free_axes_least": FREE,
        "tokens": {"pad": PAD, "sos": SOS, "eos": EOS, "unk": UNK, "ctc_blank": BLANK},
        "feature_statistics": {k: v.tolist() for k, v in bundle.features.state_dict().items()},
        "graphs": {name: {"file": name + suffix, **asdict(p)} for name, p in ports.items()},
    }
    (folder / DESCRIPTION).write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    (folder / CONFIG).write_text(dump_config(bundle.config), "utf-8")
    (folder / TOKENIZER).write_bytes(bundle.tokenizer.model)
    readme = _README.replace(_FEATURES, how_features(bundle.config.features))
    (folder / CARD).write_text(readme, "utf-8")
    return difference


def _examples(
    model: SpeechTransformer, n_freqs: int
) -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return the modules of both graphs, with an example of their inputs."""
    B, W, T = _TRACED
    T = _frames(model, T)
    encoder, decoder = EncoderGraph(model), DecoderGraph(model.decoder)
    feats = (torch.randn(B, T, n_freqs), torch.full((B,), T))
    with torch.no_grad():
        _, mask_BS, *rest = encoder(*feats)
    memory = rest[-2 * len(model.decoder.layers) :]
    past = [t.new_zeros(B, W, t.shape[1], 3, t.shape[3]) for t in memory]
    tokens = torch.full((B, W), SOS)
    return {"encoder": (encoder, feats), "decoder": (decoder, (tokens, mask_BS, *memory, *past))}


def _trace(module: nn.Module, inputs: tuple[Tensor, ...], ports: Ports) -> Any:
    dims = {name: torch.export.Dim(name, min=least) for name, least in FREE.items()}
    free = [
        {i: dims[axis] for i, axis in enumerate(port.axes) if isinstance(axis, str)}
        for port in ports.inputs
    ]
    # To torch, a starred argument of the module is one argument.
    shapes = (*free[:2], *([tuple(free[2:])] if free[2:] else []))
    with torch.no_grad():
        if not isinstance(module, EncoderGraph):
            return torch.export.export(module, inputs, dynamic_shapes=shapes)
        # Where torch cannot prove the shapes of a kind of attention, it adds an assertion. This may
        # be stricter than the kind is, and is removed below: `compare` is the proof.
        program = torch.export.export(
            module, inputs, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=True
        )
    graph = program.graph_module.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        graph.erase_node(node)
    program.graph_module.recompile()
    return program


def _write_onnx(program: Any, ports: Ports, path: Path) -> None:
    with warnings.catch_warnings():
        # Warnings of torch, onnxscript and torchvision about each other.
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            program, (), path, dynamo=True, external_data=False, verbose=False,
            input_names=[port.name for port in ports.inputs],
            output_names=[port.name for port in ports.outputs],
        )  # fmt: skip


def _read_onnx(path: Path, ports: Ports) -> Graph:  # noqa: ARG001
    return open_onnx(path)


def _write_torch(program: Any, ports: Ports, path: Path) -> None:  # noqa: ARG001
    content = BytesIO()  # on a full disk torch's own writer aborts the process
    torch.export.save(program, content)
    path.write_bytes(content.getvalue())


def _read_torch(path: Path, ports: Ports) -> Graph:  # noqa: ARG001
    # The guards demand the traced sizes (no beam of one); `compare` tries others.
    module: Graph = torch.export.load(path).module(check_guards=False)
    return module


_KINDS = {"onnx": (".onnx", _write_onnx, _read_onnx), "torch": (".pt2", _write_torch, _read_torch)}


@torch.no_grad()
def compare(model: SpeechTransformer, n_freqs: int, encoder: Graph, decoder: Graph) -> float:
    """Return the largest difference between graphs and model on several random batches.

    It is NaN if any difference is.
    """
    rng = torch.Generator().manual_seed(0)
    differences = []
    for B, W, most in _COMPARED:
        T = _frames(model, most)
        feats_BTF = torch.randn(B, T, n_freqs, generator=rng)
        lengths_B = torch.randint(4, T + 1, (B,), generator=rng)  # 4 frames make a step
        lengths_B[0] = T
        memory_BSD, mask_BS = model.encode(feats_BTF, lengths_B)
        state = model.decoder.start(memory_BSD, mask_BS)
        found, mask, *rest = encoder(feats_BTF, lengths_B)
        differences += [
            _largest(mask.float(), mask_BS.float()),
            _largest(found, model.decoder.seen(memory_BSD)),
        ]
        if model.ctc_head:
            differences.append(_largest(rest.pop(0), model.ctc_logits(memory_BSD).log_softmax(-1)))
        cache = [t.new_zeros(B, W, t.shape[1], 0, t.shape[3]) for t in rest]
        for _ in range(_COMPARED_STEPS):
            tokens_BW = torch.randint(model.decoder.embed.num_embeddings, (B, W), generator=rng)
            logp_BWV, *cache = decoder(tokens_BW, mask, *rest, *cache)
            differences.append(_largest(logp_BWV, model.decoder.step(tokens_BW, state)))
    return float(torch.stack(differences).max())


def _frames(model: SpeechTransformer, most: int) -> int:
    """Return `most` frames, or fewer if the encoder's attention has weights for fewer only."""
    steps = model.config.encoder.longest
    return most if steps is None else min(most, steps * FRAMES_PER_STEP)


def _largest(found: Tensor, wanted: Tensor) -> Tensor:
    return (found - wanted).abs().max()


_FEATURES = "FEATURES\n"  # a place in the text
_README = f"""# A speech recognizer as two graphs

Written by `asr export` of lrt-asr. `{DESCRIPTION}` names each graph's inputs and outputs in order,
with type and axes: a number is fixed, a name is free (`free_axes_least` is its minimum).

1. Features (see below): `features` (batch, time, freq), with any padding at the end, and `lengths`,
   the number of valid frames of each utterance, at least 4. Pad a batch to at least 8 frames.
2. The encoder returns `memory`, the `mask` of its valid steps, log-probabilities of CTC if the
   model has that head, and `memory_keys_i` and `memory_values_i` for decoder layer i: once an
   utterance, for any number of hypotheses.
3. Call the decoder once a token. `tokens` are the last ones, initially `tokens.sos`; `mask`,
   `memory_keys_i` and `memory_values_i` are the encoder's; `keys_i` and `values_i` are the cache,
   initially of length 0 in their axis `past`, then the last call's `new_keys_i` and `new_values_i`.
   `log_probs` are the next token's. If hypothesis w continues hypothesis p, take row p of the cache
   along the axis `beam`. A text ends at `tokens.eos`, and has at most as many tokens as `mask` has
   valid steps.
4. `{TOKENIZER}` (sentencepiece) turns tokens into text.
5. `asr transcribe` cuts recordings longer than `decoding.chunk_seconds` of `{CONFIG}` at silences:
   a model transcribes badly what is longer than its training utterances. It leaves out a text whose
   confidences have a geometric mean below `decoding.confidence_threshold`.

Where `{DESCRIPTION}` has `weights: int8`, the graphs compute in 8 bits; `cer` and, where texts have
words, `wer` are the error rates by greedy CTC before and after (`cer` is null without that head);
`largest_difference` is of the graphs in 32 bits.

A `.onnx` file is data. Read a `.pt2` with `torch.export.load(file).module(check_guards=False)` (the
guards know the traced sizes only); it unpickles, so load it only if you trust its author.

## Features

Other ways than these cost words, such as a mean for each bin where there is one of all:

```python
{_FEATURES}```
"""
