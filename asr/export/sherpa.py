"""Export a recognizer for sherpa-onnx: phones, boards, browsers, many languages.

sherpa-onnx (k2-fsa) decodes greedily by CTC. The bundle decides which of its kinds it loads:
`zipformer2_ctc` for a streaming encoder, `zipformer_ctc` for features that sherpa-onnx computes
itself, and `omnilingual`, whose graph takes the waveform, for others.
Legend: B utterances or sessions, N samples, T frames, F mel bins, V vocabulary.
"""

import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from asr.audio.features import KALDI_SCALE, FbankConfig
from asr.bundle import CARD, Bundle
from asr.config import Config
from asr.errors import AsrError, ConfigError
from asr.export.columns import symbol_table, without_special
from asr.export.filterbank_graphs import ChunkGraph, UtteranceGraph
from asr.export.graphs import open_onnx
from asr.export.sherpa_card import card, longest_seconds
from asr.export.waveform_graph import (
    RATE,
    STEPS_PER_SECOND,
    WaveformGraph,
    can_resample,
    fits,
)
from asr.model.frontend import FRAMES_PER_STEP

MODEL, INT8, TOKENS = "model.onnx", "model.int8.onnx", "tokens.txt"
TOLERANCE = 1e-3
_WINDOW_MS, _HOP_MS = 25, 10
# Lengths in the comparison: seconds of the waveforms, chunks of the streams.
_COMPARED_SECONDS, _COMPARED_CHUNKS = (0.31, 1.0, 4.7), 7

Run = Callable[..., list[Tensor]]


@dataclass
class Target:
    """What sherpa-onnx loads: the kind, and a graph with its inputs, outputs and metadata.

    `free` lists the free axes of each input.
    """

    kind: str
    graph: nn.Module
    inputs: dict[str, Tensor]
    free: list[tuple[int, ...]]
    outputs: list[str]
    metadata: dict[str, str]


def export(bundle: Bundle, out: Path, finish: Callable[[Path], object] = lambda _: None) -> float:
    """Write `model.onnx`, `tokens.txt` and `README.md` to a new folder, at once.

    `finish` may change what is in the folder before it has its name. Returns the largest
    difference of log-probabilities from the model on random input. Raises ConfigError where
    sherpa-onnx cannot load the model or would feed it wrongly, or where `out` exists; AsrError if
    the difference is above 1e-3.
    """
    if not all(map(find_spec, ("onnxscript", "onnxruntime"))):
        raise ConfigError(
            "--format sherpa needs onnxscript and onnxruntime: pip install 'lrt-asr[export]'"
        )
    if out.exists():
        raise ConfigError(f"{out}: already exists: give --out a new folder, or remove it")
    kind = kind_of(bundle.config)
    bundle.parts.cpu().eval().requires_grad_(False)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-") as scratch:
            folder = Path(scratch) / out.name
            folder.mkdir()
            target = write_graph(bundle, folder / MODEL)
            difference = compare(bundle, target, open_onnx(folder / MODEL))
            if not difference <= TOLERANCE:
                raise AsrError(
                    f"the exported graph differs from the model by {difference:.1e}, more than "
                    f"{TOLERANCE:g}: nothing was written; please report it with the recipe"
                )
            (folder / TOKENS).write_text(symbol_table(bundle.tokenizer), "utf-8")
            finish(folder)
            has_int8 = (folder / INT8).exists()
            (folder / CARD).write_text(card(kind, bundle.config, has_int8), "utf-8")
            folder.rename(out)
    except OSError as error:
        raise AsrError(f"{out}: cannot be written ({error.strerror or error})") from error
    return difference


def kind_of(config: Config) -> str:
    """Return the kind of model as which sherpa-onnx can load a bundle.

    Raises ConfigError, with the reason, if there is none.
    """
    if config.model.ctc_weight == 0:
        raise ConfigError(
            "model.ctc_weight: sherpa-onnx decodes by a CTC head, and this model has none: train "
            "one with model.ctc_weight above 0"
        )
    features, attention = config.features, config.model.encoder.attention
    is_sherpas = (
        isinstance(features, FbankConfig)
        and features.sherpa_onnx
        and (features.window_ms, features.hop_ms) == (_WINDOW_MS, _HOP_MS)
    )
    if is_sherpas and features.n_fft != int(_WINDOW_MS / 1000 * features.sample_rate):
        raise ConfigError(
            f"features.sample_rate: at {features.sample_rate} Hz sherpa-onnx has windows of an odd "
            "number of samples, and these features do not: train with 8000, 16000 or 44100"
        )
    if config.model.encoder.streaming:
        if not is_sherpas:
            raise ConfigError(
                "features: sherpa-onnx computes those of a stream itself, in its own way: train "
                "with features.sherpa_onnx: true, window_ms: 25 and hop_ms: 10"
            )
        return "zipformer2_ctc"
    if not attention.exports:
        raise ConfigError(
            f"model.encoder.attention.kind: {attention.kind} cannot be exported, since its graph "
            "would be valid for one length only"
        )
    if is_sherpas:
        return "zipformer_ctc"
    _check_waveform(config)
    return "omnilingual"


def _check_waveform(config: Config) -> None:
    features = config.features
    if isinstance(features, FbankConfig) and features.sherpa_onnx:
        raise ConfigError(
            "features.sherpa_onnx: is of the true level, which sherpa-onnx keeps for window_ms: 25 "
            "and hop_ms: 10 alone: train with these, or with sherpa_onnx: false"
        )
    if isinstance(features, FbankConfig) and features.normalize == "corpus":
        raise ConfigError(
            "features: the level of fbank features with normalize: corpus is lost in sherpa-onnx: "
            "train with normalize: utterance, or with sherpa_onnx: true, window_ms: 25, hop_ms: 10"
        )
    if not fits(features.n_fft):
        raise ConfigError(
            f"features.window_ms: {features.window_ms:g} makes the Fourier transform in the graph "
            "too large: train with 100 or less"
        )
    if not can_resample(features.sample_rate):
        raise ConfigError(
            f"features.sample_rate: {features.sample_rate} cannot be made of the {RATE} Hz of "
            "sherpa-onnx: only lower rates with a simple ratio can, such as 8000 or 11025"
        )
    if STEPS_PER_SECOND * FRAMES_PER_STEP * features.hop_length < features.sample_rate:
        raise ConfigError(
            f"features.hop_ms: {features.hop_ms:g} makes more than the {STEPS_PER_SECOND} encoder "
            "steps a second that sherpa-onnx takes: train with 5 or more"
        )


def target_of(bundle: Bundle) -> Target:
    """Return the graph for sherpa-onnx, with examples of its inputs."""
    kind, n_freqs = kind_of(bundle.config), bundle.config.features.n_freqs
    if kind == "omnilingual":
        wave = torch.randn(1, RATE)
        return Target(
            kind, WaveformGraph(bundle), {"x": wave}, [(1,)], ["log_probs"], {}
        )  # fmt: skip
    if kind == "zipformer_ctc":
        inputs = {"x": torch.randn(2, 50, n_freqs), "x_lens": torch.tensor([50, 41])}
        free = [(0, 1), (0,)]
        outputs = ["log_probs", "log_probs_len"]
        return Target(
            kind, UtteranceGraph(bundle), inputs, free, outputs, {"model_type": "zipformer2_ctc"}
        )
    graph = ChunkGraph(bundle)
    states = dict(zip(graph.names(), graph.start(2), strict=True))
    inputs = {"x": torch.randn(2, graph.frames, n_freqs), **states}
    free = [(0,), *((axis,) for axis in graph.batch_axes())]
    outputs = ["log_probs", *(f"new_{name}" for name in states)]
    return Target(kind, graph, inputs, free, outputs, graph.metadata())


def write_graph(bundle: Bundle, path: Path) -> Target:
    """Write the graph for sherpa-onnx in float32, and return its description."""
    target = target_of(bundle)
    # DYNAMIC: torch cannot prove its guards for all lengths; `compare` and the tests try them.
    free = [dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in target.free]
    # To torch, a starred argument of the module is one argument.
    shapes = (free[0], tuple(free[1:])) if target.kind == "zipformer2_ctc" else tuple(free)
    with torch.no_grad():
        program = torch.export.export(
            target.graph, tuple(target.inputs.values()), dynamic_shapes=shapes
        )
    with warnings.catch_warnings():
        # Warnings of torch, onnxscript and torchvision about each other.
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        written = torch.onnx.export(
            program, (), dynamo=True, external_data=False, verbose=False,
            input_names=list(target.inputs), output_names=target.outputs,
        )  # fmt: skip
    assert written is not None
    written.model.metadata_props.update(target.metadata)
    written.save(path, external_data=False)
    return target


@torch.no_grad()
def compare(bundle: Bundle, target: Target, run: Run) -> float:
    """Return the largest difference of log-probabilities between a graph and the model.

    The input is noise: utterances of several lengths, or streams. The result is NaN if any
    difference is, or if shapes differ.
    """
    rng = torch.Generator().manual_seed(0)
    pairs = {"omnilingual": _waves, "zipformer_ctc": _batch, "zipformer2_ctc": _stream}
    differences = [
        (found - wanted).abs().max() if found.shape == wanted.shape else torch.tensor(math.nan)
        for found, wanted in pairs[target.kind](bundle, run, rng)
    ]
    return float(torch.stack(differences).max())


Pairs = Sequence[tuple[Tensor, Tensor]]


def _compared_seconds(config: Config) -> list[float]:
    return [min(seconds, longest_seconds(config) - 0.001) for seconds in _COMPARED_SECONDS]


def _waves(bundle: Bundle, run: Run, rng: torch.Generator) -> Pairs:
    """Return the graph's and the model's log-probabilities where each encoder step begins."""
    graph, pairs = WaveformGraph(bundle), []
    for seconds in _compared_seconds(bundle.config):
        wave_1N = torch.randn(1, int(RATE * seconds), generator=rng)
        wave_1N *= torch.linspace(0.01, 1, wave_1N.shape[1])
        feats_TF = bundle.features(graph.resample(wave_1N)[0])
        (logp_1SV,) = _model_log_probs(bundle, [feats_TF])
        pairs.append((run(wave_1N)[0][0][graph.places(len(logp_1SV))], logp_1SV))
    return pairs


def _batch(bundle: Bundle, run: Run, rng: torch.Generator) -> Pairs:
    features = bundle.config.features
    waves = [
        torch.randn(int(features.sample_rate * seconds), generator=rng) / 9
        for seconds in _compared_seconds(bundle.config)
    ]
    level = 2 * math.log(KALDI_SCALE)
    given = [bundle.features.log_power(wave) - level for wave in waves]
    lengths_B = torch.tensor([len(feats) for feats in given])
    padded = nn.utils.rnn.pad_sequence(given, batch_first=True, padding_value=-23.0)
    found_BSV, steps_B = run(padded, lengths_B)
    wanted = _model_log_probs(bundle, [bundle.features(wave) for wave in waves])
    return [(f[:n], w) for f, n, w in zip(found_BSV, steps_B.tolist(), wanted, strict=True)]


def _model_log_probs(bundle: Bundle, feats: Sequence[Tensor]) -> list[Tensor]:
    """Return the log-probabilities (S, V') of the model for each utterance's features (T, F)."""
    found = []
    for feats_TF in feats:
        memory_1SD, _ = bundle.model.encode(feats_TF[None], torch.tensor([len(feats_TF)]))
        found.append(without_special(bundle.model.ctc_logits(memory_1SD))[0])
    return found


def _stream(bundle: Bundle, run: Run, rng: torch.Generator) -> Pairs:
    """Return log-probabilities of streams chunk by chunk, and of the whole in the same chunks."""
    graph, model = ChunkGraph(bundle), bundle.model
    shift = FRAMES_PER_STEP * graph.chunk
    frames = _COMPARED_CHUNKS * shift + graph.frames - shift
    feats_BTF = torch.randn(2, frames, graph.n_freqs, generator=rng) * 3 + 10
    normalized = bundle.features.normalized(feats_BTF)
    memory_BSD, _ = model.encode(normalized, torch.full((2,), frames), graph.chunk)
    wanted_BSV = without_special(model.ctc_logits(memory_BSD))
    found, states = [], graph.start(2)
    for chunk in range(_COMPARED_CHUNKS):
        part = feats_BTF[:, chunk * shift :][:, : graph.frames] - 2 * math.log(KALDI_SCALE)
        logp_BCV, *states = run(part, *states)
        found.append(logp_BCV)
    found_BSV = torch.cat(found, 1)
    return [(found_BSV, wanted_BSV[:, : found_BSV.shape[1]])]
