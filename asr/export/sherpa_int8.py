"""Quantize a folder for sherpa-onnx with the utterances of a manifest, and count its errors.

Legend: N samples, T frames, F mel bins, S steps, V vocabulary.
"""

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import soxr
import torch
from lhotse import CutSet

from asr.audio.features import KALDI_SCALE
from asr.audio.kaldi import FLOOR
from asr.bundle import Bundle
from asr.data.manifest import text_of
from asr.errors import DataError
from asr.export.calibration import Quantized, Run, open_graph, recognized, sample, utterances
from asr.export.filterbank_graphs import ChunkGraph
from asr.export.int8 import quantize
from asr.export.ranges import Batch
from asr.export.sherpa import INT8, MODEL, kind_of
from asr.export.sherpa_card import longest_seconds
from asr.export.waveform_graph import RATE
from asr.model.frontend import FRAMES_PER_STEP
from asr.tokenizer import SPECIAL

_LEVEL = 2 * math.log(KALDI_SCALE)
_SILENCE = math.log(FLOOR)  # what sherpa-onnx computes of zeros
_CHUNKS = 4  # one of so many chunks of a stream calibrates, since each has the whole state as input


def quantize_folder(bundle: Bundle, cuts: CutSet, folder: Path) -> Quantized:
    """Write `model.int8.onnx` beside `model.onnx`, calibrated on some of the cuts.

    The maps that compute a waveform's spectrum stay in float32. Raises DataError where no cut can
    be read.
    """
    normalize = bundle.tokenizer.normalize
    most = longest_seconds(bundle.config)
    todo = [cut for cut in cuts if normalize(text_of(cut)) and cut.duration < most]
    feed, run = Feed(bundle), open_graph(folder / MODEL)
    batches = [
        batch
        for i, (_, wave_N, _) in enumerate(utterances(bundle, sample(todo)))
        for batch, _ in islice(feed(wave_N, run), i % feed.every, None, feed.every)
    ]
    if not batches:
        raise DataError("no utterance with a transcript could be read: check the manifest")
    quantize(folder / MODEL, folder / INT8, batches, keep=["spectrum"])
    sizes = [(folder / name).stat().st_size for name in (MODEL, INT8)]
    small = open_graph(folder / INT8)
    ways = lambda wave, _: feed.text(wave, run), lambda wave, _: feed.text(wave, small)
    before, after = recognized(bundle, todo, ways)
    return Quantized.of((sizes[0], sizes[1]), before, after, normalize)


class Feed:
    """Feeds a graph as sherpa-onnx does."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.kind = bundle, kind_of(bundle.config)
        self.every = _CHUNKS if self.kind == "zipformer2_ctc" else 1

    def __call__(self, wave_N: np.ndarray, run: Run) -> Iterator[tuple[Batch, np.ndarray]]:
        """Yield inputs and log-probabilities (S, V') of the utterance, or of each of its chunks."""
        if self.kind == "omnilingual":
            rate = self.bundle.config.features.sample_rate
            yield _run({"x": as_fed(soxr.resample(wave_N, rate, RATE))}, run)
            return
        feats = self.bundle.features.log_power(torch.from_numpy(wave_N)).numpy() - _LEVEL
        if self.kind == "zipformer_ctc":
            yield _run({"x": feats[None], "x_lens": np.array([len(feats)])}, run)
        else:
            yield from self._chunks(feats, run)

    def _chunks(self, feats_TF: np.ndarray, run: Run) -> Iterator[tuple[Batch, np.ndarray]]:
        graph = ChunkGraph(self.bundle)
        shift = FRAMES_PER_STEP * graph.chunk
        after = -(-len(feats_TF) // shift) * shift + graph.frames - len(feats_TF)
        fed_TF = np.pad(feats_TF, ((0, after), (0, 0)), constant_values=_SILENCE)
        states = dict(zip(graph.names(), (s.numpy() for s in graph.start(1)), strict=True))
        for start in range(0, len(feats_TF), shift):
            batch = {"x": fed_TF[None, start : start + graph.frames], **states}
            found = run(batch)
            states = {name: found[f"new_{name}"] for name in states}
            yield batch, found["log_probs"][0]

    def text(self, wave_N: np.ndarray, run: Run) -> str:
        """Return the text that sherpa-onnx makes of an utterance."""
        logp_SV = np.concatenate([logp for _, logp in self(wave_N, run)])
        best_S = logp_SV.argmax(1)
        is_new_S = np.diff(best_S, prepend=0) != 0
        tokens = [int(t) + len(SPECIAL) - 1 for t in best_S[is_new_S & (best_S > 0)]]
        return self.bundle.tokenizer.decode(tokens)


def as_fed(wave_N: np.ndarray) -> np.ndarray:
    """Return samples (1, N) with mean 0 and variance 1, as `omnilingual` models get them."""
    scaled_N = (wave_N - wave_N.mean()) / np.sqrt(wave_N.var() + 1e-5)
    return np.asarray(scaled_N, np.float32)[None]


def _run(batch: Batch, run: Run) -> tuple[Batch, np.ndarray]:
    found = run(batch)
    n = found["log_probs_len"][0] if "log_probs_len" in found else None
    return batch, found["log_probs"][0, :n]
