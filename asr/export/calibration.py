"""Quantize an exported folder with the utterances of a manifest, and count its errors.

Legend: N samples, T frames, F frequency bins.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from lhotse import CutSet
from lhotse.cut import Cut

from asr.bundle import Bundle
from asr.data.manifest import load_cuts, read_wave, text_of
from asr.decoding.ctc_greedy import greedy_texts
from asr.decoding.decode import is_constant
from asr.errors import AudioError, ConfigError, DataError
from asr.evaluation.cer import Normalize, corpus_errors
from asr.export.export import DESCRIPTION, FREE
from asr.export.graphs import open_session
from asr.export.int8 import quantize
from asr.export.ranges import Batch
from asr.tokenizer import SOS

log = logging.getLogger(__name__)

_CALIBRATED = 64  # at most so many utterances
_DECODED = 8  # at most so many of them go through the decoder too, token by token
_NAMES = ("encoder", "decoder")

Run = Callable[[Batch], dict[str, np.ndarray]]
Text = Callable[[np.ndarray, np.ndarray], str]  # of an utterance, from its samples and features
Pairs = list[tuple[str, str]]


@dataclass
class Quantized:
    """Bytes and error rates by greedy CTC, before and after quantization.

    Without a CTC head both rates are None. `wer` is None too where the texts have no words.
    """

    bytes: tuple[int, int]
    cer: tuple[float, float] | None = None
    wer: tuple[float, float] | None = None

    def __str__(self) -> str:
        """Return sizes and error rates as a sentence."""
        before, after = self.bytes
        sizes = f"{before / 1e6:.2f} -> {after / 1e6:.2f} MB"
        if self.cer is None:
            return f"{sizes}; the model has no CTC head, by which errors are counted here"
        named = (("CER by greedy CTC", self.cer), ("WER", self.wer))
        rates = (f"{name} {r[0]:.2%} -> {r[1]:.2%}" for name, r in named if r is not None)
        return ", ".join((sizes, *rates))

    def rates(self) -> dict[str, tuple[float, float] | None]:
        """Return the error rates for JSON; `wer` is absent where there is none."""
        return {"cer": self.cer} | ({} if self.wer is None else {"wer": self.wer})

    @classmethod
    def of(cls, bytes: tuple[int, int], before: Pairs, after: Pairs, normalize: Normalize) -> Self:
        """Return sizes with the rates of (known, recognized) texts before and after."""
        (old, old_words), (new, new_words) = (
            corpus_errors(pairs, normalize) for pairs in (before, after)
        )
        wer = (old_words.rate, new_words.rate) if old_words and new_words else None
        return cls(bytes, (old.rate, new.rate), wer)


def find_cuts(bundle: Bundle, path: Path | None) -> CutSet:
    """Return the cuts to calibrate on: of the manifest that is given, or the recipe's dev set.

    Raises ConfigError where there is neither.
    """
    dev = bundle.config.data.dev
    if path is None and (isinstance(dev, str) or not dev.exists()):
        raise ConfigError(
            f"--int8 finds the ranges of activations on recordings, and {dev}, the recipe's dev "
            "set, is not here: give --cuts a manifest"
        )
    return load_cuts(path or dev)


def quantize_folder(bundle: Bundle, cuts: CutSet, folder: Path) -> Quantized:
    """Replace the ONNX graphs of an exported folder by 8-bit ones, calibrated on some of the cuts.

    Raises DataError where no cut can be read.
    """
    normalize = bundle.tokenizer.normalize
    todo = [cut for cut in cuts if normalize(text_of(cut))]
    some = list(utterances(bundle, sample(todo)))
    if not some:
        raise DataError("no utterance with a transcript could be read: check the manifest")
    inputs = [encoder_inputs(feats) for *_, feats in some]
    old, new = ([folder / f"{n}{end}" for n in _NAMES] for end in (".onnx", ".int8.onnx"))
    few = range(0, len(some), -(-len(some) // _DECODED))
    tokens = [bundle.tokenizer.encode(normalize(text_of(some[i][0]))) for i in few]
    ports = json.loads((folder / DESCRIPTION).read_text("utf-8"))["graphs"]["decoder"]["inputs"]
    encoder, decoder = map(open_graph, old)
    steps = list(decoder_inputs(encoder, decoder, [inputs[i] for i in few], tokens, ports))
    for source, out, batches in zip(old, new, (inputs, steps), strict=True):
        quantize(source, out, batches)
    before, after = (sum(path.stat().st_size for path in paths) for paths in (old, new))
    done = Quantized((before, after))
    if bundle.model.ctc_head is not None:
        ways = by_greedy_ctc(bundle, encoder), by_greedy_ctc(bundle, open_graph(new[0]))
        texts = recognized(bundle, todo, ways)
        done = Quantized.of(done.bytes, *texts, normalize)
    for source, out in zip(old, new, strict=True):
        out.replace(source)
    facts = json.loads((folder / DESCRIPTION).read_text("utf-8"))
    facts |= {"weights": "int8", **done.rates()}
    (folder / DESCRIPTION).write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    return done


def open_graph(path: Path) -> Run:
    """Return a function from a graph's inputs to its outputs, both by name."""
    session = open_session(path)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def sample(cuts: Sequence[Cut]) -> Sequence[Cut]:
    """Return at most 64 cuts to calibrate on, spread over all of these."""
    return cuts[:: max(1, -(-len(cuts) // _CALIBRATED))]


def utterances(bundle: Bundle, cuts: Sequence[Cut]) -> Iterator[tuple[Cut, np.ndarray, np.ndarray]]:
    """Yield cuts with their samples (N,) and features (T, F).

    Cuts that cannot be read, are silent, too short or too long are left out.
    """
    longest, steps = bundle.config.model.encoder.longest, bundle.config.model.frontend.steps
    for cut in cuts:
        try:
            wave = read_wave(cut, bundle.config.features.sample_rate)
        except AudioError as error:
            log.warning("skipped: %s", error)
            continue
        feats = bundle.features(wave)
        fits = longest is None or steps(len(feats)) <= longest
        if fits and len(feats) >= FREE["time"] and not is_constant(wave):
            yield cut, wave.numpy(), feats.numpy()


def encoder_inputs(feats_TF: np.ndarray) -> Batch:
    """Return the encoder's inputs for one utterance."""
    return {"features": feats_TF[None], "lengths": np.array([len(feats_TF)])}


def decoder_inputs(
    encoder: Run,
    decoder: Run,
    inputs: Sequence[Batch],
    tokens: Sequence[list[int]],
    ports: Sequence[dict[str, Any]],
) -> Iterator[Batch]:
    """Yield the decoder's inputs of each step, for SOS and then each token of the texts.

    `inputs` are the encoder's, `tokens` the texts of the same utterances. `ports` describe the
    decoder's inputs.
    """
    sizes = {"batch": 1, "beam": 1, "past": 0}
    for batch, text in zip(inputs, tokens, strict=True):
        held = encoder(batch)
        for port in ports:
            if "past" in port["axes"]:
                shape = [sizes.get(axis, axis) for axis in port["axes"]]
                held[port["name"]] = np.zeros(shape, np.float32)
        for token in (SOS, *text):
            held["tokens"] = np.array([[token]])
            yield (step := {port["name"]: held[port["name"]] for port in ports})
            held |= {n.removeprefix("new_"): array for n, array in decoder(step).items()}


def recognized(bundle: Bundle, cuts: Sequence[Cut], ways: tuple[Text, Text]) -> tuple[Pairs, Pairs]:
    """Return the (known, recognized) texts of the cuts, for each of two ways to recognize."""
    pairs: tuple[Pairs, Pairs] = [], []
    for cut, wave_N, feats_TF in utterances(bundle, cuts):
        for found, text in zip(pairs, ways, strict=True):
            found.append((text_of(cut), text(wave_N, feats_TF)))
    return pairs


def by_greedy_ctc(bundle: Bundle, encoder: Run) -> Text:
    """Return a function that recognizes an utterance by an encoder's graph and greedy CTC."""

    def text(_: np.ndarray, feats_TF: np.ndarray) -> str:
        return greedy_text(bundle, encoder(encoder_inputs(feats_TF))["ctc_log_probs"])

    return text


def greedy_text(bundle: Bundle, logp: np.ndarray) -> str:
    """Return the text of log-probabilities (1, steps, tokens) of an utterance."""
    steps, no_words = torch.tensor([logp.shape[1]]), torch.zeros(logp.shape[2])
    options = bundle.config.decoding
    (best,) = greedy_texts(torch.from_numpy(logp), steps, options, no_words)
    return bundle.tokenizer.decode(best.tokens)
