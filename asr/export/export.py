"""The recogniser as two graphs that need no code of ours: ONNX, or torch's own (`.pt2`).

The encoder's graph also computes what the decoder holds of an utterance; the decoder's is one step,
whose cache goes in and comes out. Features before them, search and text after them are the
caller's. Legend: B utterances, T frames, F frequency bins, S encoder steps, W hypotheses of an
utterance, V vocabulary.
"""

import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asr.bundle import CARD, CONFIG, TOKENIZER, Bundle
from asr.config import dump_config
from asr.decoding.ctc_prefix import BLANK
from asr.errors import AsrError, ConfigError
from asr.export.graphs import DecoderGraph, EncoderGraph, Ports, describe
from asr.model.attention import FullAttention
from asr.model.layers import DecoderLayer
from asr.model.transformer import SpeechTransformer
from asr.tokenizer import EOS, PAD, SOS, UNK

VERSION = 1


DESCRIPTION = "export.json"


TOLERANCE = 1e-4


# The free axes and their least sizes: to torch a batch of one encoder step is a special case.
FREE = {"batch": 1, "time": 8, "steps": 1, "beam": 1, "past": 0}


# Utterances, hypotheses of each and frames: what graphs are traced with, and then tried on.
_TRACED = (2, 3, 50)


_TRIED = ((1, 1, 8), (3, 8, 161), (5, 2, 87))


_TRIED_STEPS = 4


# Encoder attentions that torch can trace for every length; the others' sums depend on it.
ENCODERS = ("full", "linear", "performer", "nystrom")


Graph = Callable[..., Sequence[Tensor]]


def export(bundle: Bundle, kind: str, out: Path) -> float:
    """Write the graphs and what is needed to use them to a new folder.

    `kind` is `onnx` or `torch`. Returns the largest difference from the model itself that was seen
    on random input. Raises ConfigError where the kind is none, its packages are missing, the model
    has no such form or `out` exists; AsrError where the difference is above 1e-4. Nothing is left
    behind then.
    """
    if kind not in _KINDS:
        raise ConfigError(
            f"--format {kind}: only onnx and torch can be exported, both in float32: onnxruntime's "
            "quantize_dynamic makes 8 bits of an .onnx"
        )
    if kind == "onnx" and not all(map(find_spec, ("onnxscript", "onnxruntime"))):
        raise ConfigError(
            "--format onnx needs onnxscript and onnxruntime: pip install 'lrt-asr[export]'"
        )
    if out.exists():
        raise ConfigError(f"{out}: is there already: give --out a new folder, or remove it")
    kind_of_encoder = bundle.config.model.encoder.attention.kind
    if kind_of_encoder not in ENCODERS:
        raise ConfigError(
            f"model.encoder.attention.kind: {kind_of_encoder} cannot be exported, since its graph "
            f"would be of one length: only {', '.join(ENCODERS)} can"
        )
    model = bundle.model.cpu().eval().requires_grad_(False)
    for layer in model.decoder.layers:
        assert isinstance(layer, DecoderLayer)
        if type(layer.self_attention.kernel) is not FullAttention:
            raise ConfigError("model.decoder.attention: only kind full can be exported")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        folder = Path(scratch) / out.name
        folder.mkdir()
        difference = _write(bundle, model, kind, folder)
        folder.rename(out)
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
    (folder / CARD).write_text(_README, "utf-8")
    return difference


def _examples(
    model: SpeechTransformer, n_freqs: int
) -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Both graphs' modules, with an example of their inputs."""
    B, W, T = _TRACED
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
    # A module's own starred argument is one argument to torch.
    shapes = (*free[:2], *([tuple(free[2:])] if free[2:] else []))
    with torch.no_grad():
        return torch.export.export(module, inputs, dynamic_shapes=shapes)


def _write_onnx(program: Any, ports: Ports, path: Path) -> None:
    with warnings.catch_warnings():
        # Of torch, onnxscript and torchvision about each other: nothing that a user could mend.
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            program, (), path, dynamo=True, external_data=False, verbose=False,
            input_names=[port.name for port in ports.inputs],
            output_names=[port.name for port in ports.outputs],
        )  # fmt: skip


def _read_onnx(path: Path, ports: Ports) -> Graph:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [port.name for port in ports.inputs]

    def run(*inputs: Tensor) -> list[Tensor]:
        fed = {name: t.numpy() for name, t in zip(names, inputs, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, fed)]

    return run


def _write_torch(program: Any, ports: Ports, path: Path) -> None:  # noqa: ARG001
    torch.export.save(program, path)


def _read_torch(path: Path, ports: Ports) -> Graph:  # noqa: ARG001
    # The guards are of the traced sizes (no beam of one); that the graph holds for all is compared.
    module: Graph = torch.export.load(path).module(check_guards=False)
    return module


_KINDS = {"onnx": (".onnx", _write_onnx, _read_onnx), "torch": (".pt2", _write_torch, _read_torch)}


@torch.no_grad()
def compare(model: SpeechTransformer, n_freqs: int, encoder: Graph, decoder: Graph) -> float:
    """The largest difference between graphs and model in a few steps of several random batches."""
    rng = torch.Generator().manual_seed(0)
    differences = []
    for B, W, T in _TRIED:
        feats_BTF = torch.randn(B, T, n_freqs, generator=rng)
        lengths_B = torch.randint(4, T + 1, (B,), generator=rng)  # 4 are a step
        lengths_B[0] = T
        memory_BSD, mask_BS = model.encode(feats_BTF, lengths_B)
        state = model.decoder.start(memory_BSD, mask_BS)
        found, keep, *rest = encoder(feats_BTF, lengths_B)
        differences += [_largest(keep.float(), mask_BS.float()), _largest(found, memory_BSD)]
        if model.ctc_head:
            differences.append(_largest(rest.pop(0), model.ctc_head(memory_BSD).log_softmax(-1)))
        cache = [t.new_zeros(B, W, t.shape[1], 0, t.shape[3]) for t in rest]
        for _ in range(_TRIED_STEPS):
            tokens_BW = torch.randint(model.decoder.output.out_features, (B, W), generator=rng)
            logp_BWV, *cache = decoder(tokens_BW, keep, *rest, *cache)
            differences.append(_largest(logp_BWV, model.decoder.step(tokens_BW, state)))
    return float(torch.stack(differences).max())  # NaN, if there is one


def _largest(found: Tensor, wanted: Tensor) -> Tensor:
    return (found - wanted).abs().max()


_README = f"""# A speech recogniser as two graphs

Written by `asr export` of lrt-asr. `{DESCRIPTION}` names each graph's inputs and outputs in order,
with type and axes: a number is fixed, a name is free (`free_axes_least` is its least size).

1. Features as `{CONFIG}` describes them under `features` (with `normalize: corpus`, less
   `mean_F` and by `std_F` in `feature_statistics`): `features` (batch, time, freq), padded with
   anything at the end, and `lengths`, how many frames of each are real. An utterance has 4 frames
   or more, a batch is padded to 8.
2. The encoder gives `memory`, the mask `keep`, log-probabilities of CTC where the model has that
   head, and `memory_keys_i` and `memory_values_i` for decoder layer i: computed once an utterance,
   whatever the number of hypotheses.
3. The decoder is called once a token. `tokens` are the last ones, at first `tokens.sos`; `keep`,
   `memory_keys_i` and `memory_values_i` are the encoder's; `keys_i` and `values_i` are the cache,
   at first of length 0 in their axis `past`, then the last call's `new_keys_i` and `new_values_i`.
   `log_probs` are the next token's. Where hypothesis w goes on as parent p, take row p of the cache
   along the axis `beam`. A text ends at `tokens.eos`, and has no more tokens than `keep` has steps.
4. `{TOKENIZER}` (sentencepiece) makes text of the tokens.

A `.onnx` file is data. `torch.export.load(file).module(check_guards=False)` reads a `.pt2` (guards
know only the sizes that were traced), and unpickles: as any program, load it only if you trust who
made it.
"""
