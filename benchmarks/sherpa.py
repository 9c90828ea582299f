"""Run an exported bundle in sherpa-onnx, and compare texts and log-probabilities with the model's.

    python -m benchmarks.sherpa BUNDLE CUTS [--dev DEV] [--most 200] [--record]

CUTS are recognized in three ways:

- by the model itself, greedily by CTC; a streaming bundle recognizes a stream, with a second of
  silence after each utterance, so that the last chunk is full;
- by `sherpa_onnx` in Python;
- by the npm package `sherpa-onnx` (WebAssembly under Node), if NODE_PATH names its folder.

The last two run in float32 and in 8 bits (calibrated on DEV, default: the recipe's). The difference
is the largest one of a log-probability from the model's, over all utterances. sherpa-onnx takes the
mean out of what an `omnilingual` model gets; for this difference the model gets the same input.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sherpa_onnx
import torch

import asr
from asr.bundle import Bundle
from asr.data.manifest import load_cuts, text_of
from asr.evaluation.cer import ErrorCounts, character_errors
from asr.export import sherpa
from asr.export.calibration import find_cuts, open_graph, utterances
from asr.export.columns import without_special
from asr.export.sherpa_int8 import Feed, as_fed, quantize_folder
from asr.export.waveform_graph import RATE, WaveformGraph, without_offset
from benchmarks import record
from benchmarks.record import Result, Value

GREEDY = asr.DecodingOptions(method="ctc_greedy", confidence_threshold=0, speech_threshold=0)
FOREVER = asr.Endpoint(silence_seconds=60, idle_seconds=60, longest_seconds=60)
SCRIPT = Path(__file__).with_suffix(".js")
FIELDS = {"omnilingual": "omnilingual", "zipformer_ctc": "zipformerCtc"}
ONLINE = "zipformer2_ctc"

Texts = tuple[list[str], float]  # and the processor's seconds


def by_the_model(folder: Path, is_online: bool, waves: list[np.ndarray]) -> Texts:
    """Return the texts of our own recognizer."""
    model = asr.load(folder, "cpu")

    def text(wave: np.ndarray) -> str:
        if not is_online:
            return model.transcribe(asr.Samples(wave, model.sample_rate), GREEDY).text
        results = model.stream([wave], GREEDY, endpoint=FOREVER)
        return "".join(result.text for result in results if result.is_final)

    return timed(text, waves)


def timed(text: Callable[[np.ndarray], str], waves: list[np.ndarray]) -> Texts:
    """Return the texts of waveforms and the processor's time for them."""
    start = time.process_time()
    texts = [text(wave) for wave in waves]
    return texts, time.process_time() - start


def in_python(path: Path, kind: str, bins: int, rate: int, waves: list[np.ndarray]) -> Texts:
    """Return the texts of the PyPI package, an utterance at a time."""
    files = {"model": str(path), "tokens": str(path.with_name(sherpa.TOKENS))}
    sizes = {} if kind == "omnilingual" else {"feature_dim": bins, "sample_rate": rate}
    if kind == ONLINE:
        online = sherpa_onnx.OnlineRecognizer.from_zipformer2_ctc(**files, **sizes, num_threads=1)

        def text(wave: np.ndarray) -> str:
            stream = online.create_stream()
            stream.accept_waveform(rate, wave)
            while online.is_ready(stream):
                online.decode_stream(stream)
            return str(online.get_result(stream))

        return timed(text, waves)
    make = {"omnilingual": "from_omnilingual_asr_ctc"}.get(kind, f"from_{kind}")
    offline = getattr(sherpa_onnx.OfflineRecognizer, make)(**files, **sizes, num_threads=1)

    def whole(wave: np.ndarray) -> str:
        stream = offline.create_stream()
        stream.accept_waveform(rate, wave)
        offline.decode_stream(stream)
        return str(stream.result.text)

    return timed(whole, waves)


def in_node(path: Path, kind: str, bins: int, rate: int, waves: list[np.ndarray]) -> Texts:
    """Return the texts of the npm package."""
    config: dict[str, Any] = {
        "modelConfig": {
            FIELDS.get(kind, "zipformer2Ctc"): {"model": str(path)},
            "tokens": str(path.with_name(sherpa.TOKENS)),
        }
    }
    if kind != "omnilingual":
        config["featConfig"] = {"sampleRate": rate, "featureDim": bins}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{i}.f32" for i in range(len(waves))]
        for file, wave in zip(files, waves, strict=True):
            wave.astype("<f4").tofile(file)
        command = ["node", str(SCRIPT), json.dumps(config), str(rate), str(kind == ONLINE).lower()]
        done = subprocess.run(
            [*command, *map(str, files)], capture_output=True, text=True, check=True
        )
    (line,) = (x for x in done.stdout.splitlines() if x.startswith("found "))
    found = json.loads(line.removeprefix("found "))
    return found["texts"], found["seconds"]


@torch.no_grad()
def largest_difference(bundle: Bundle, path: Path, waves: list[np.ndarray]) -> float:
    """Return how far log-probabilities of a graph are from the model's, at most."""
    feed, run, found = Feed(bundle), open_graph(path), 0.0
    streaming = bundle.config.model.encoder.streaming
    has_16_khz = bundle.config.features.sample_rate == RATE
    for wave in waves:
        given = torch.from_numpy(wave)
        if feed.kind == "omnilingual" and has_16_khz:
            given = without_offset(torch.from_numpy(as_fed(wave)))[0]
        feats = bundle.features(given)
        lengths = torch.tensor([len(feats)])
        chunk = streaming.chunk if streaming else None
        memory, _ = bundle.model.encode(feats[None], lengths, chunk)
        wanted_SV = without_special(bundle.model.ctc_logits(memory))[0].numpy()
        logp_SV = np.concatenate([logp for _, logp in feed(wave, run)])
        if feed.kind == "omnilingual":
            logp_SV = logp_SV[WaveformGraph(bundle).places(len(wanted_SV))]
        # The last steps of a stream see what comes after its end.
        n = len(wanted_SV) - 2 * (chunk or 0)
        found = max(found, float(np.abs(logp_SV[:n] - wanted_SV[:n]).max(initial=0)))
    return found


def main() -> None:
    """Export, recognize, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("cuts", type=Path)
    parser.add_argument("--dev", type=Path)
    parser.add_argument("--most", type=int, default=200)
    parser.add_argument("--title", default="")
    record.add_option(parser)
    args = parser.parse_args()
    bundle = Bundle.load(args.bundle)
    kind, features = sherpa.kind_of(bundle.config), bundle.config.features
    cuts = list(load_cuts(args.cuts))
    cuts = cuts[:: max(1, len(cuts) // args.most)][: args.most]
    some = [(text_of(cut), wave) for cut, wave, _ in utterances(bundle, cuts)]
    texts, waves = [list(column) for column in zip(*some, strict=True)]
    after = features.sample_rate if kind == ONLINE else 0
    fed = [np.pad(wave, (0, after)) for wave in waves]
    ours, spent = by_the_model(args.bundle, kind == ONLINE, fed)
    seconds = sum(map(len, waves)) / features.sample_rate
    rows: list[list[Value]] = []

    def add(name: str, found: list[str], cpu: float, *more: Value) -> None:
        errors = ErrorCounts()
        for text, each in zip(texts, found, strict=True):
            errors += character_errors(text, each, bundle.tokenizer.normalize)
        same = sum(a.strip() == b.strip() for a, b in zip(ours, found, strict=True))
        rows.append([name, *more, same, 100 * errors.rate, 1000 * cpu / seconds])
        record.progress(f"{name}: {same} of {len(found)}")

    add("the model, ctc_greedy", ours, spent, None, None)
    with tempfile.TemporaryDirectory() as scratch:
        folder, dev = Path(scratch) / "out", find_cuts(bundle, args.dev)
        sherpa.export(bundle, folder, lambda path: quantize_folder(bundle, dev, path))
        ways = [("sherpa_onnx (Python)", in_python)]
        if (Path(os.environ.get("NODE_PATH", "")) / "sherpa-onnx").is_dir():
            ways.append(("sherpa-onnx (WebAssembly, Node)", in_node))
        for file in (sherpa.MODEL, sherpa.INT8):
            path = folder / file
            size, difference = path.stat().st_size / 1e6, largest_difference(bundle, path, fed)
            for name, way in ways:
                found, cpu = way(path, kind, features.n_freqs, features.sample_rate, fed)
                add(f"{name}, {file}", found, cpu, size, difference)
    columns = {
        "variant": "", "MB": ".2f", "largest difference": ".1e", "texts as the model's": "d",
        "CER (%)": ".2f", "ms a second of audio": ".2f",
    }  # fmt: skip
    note = (
        f"{len(waves)} utterances, {seconds:.0f} s; the kind in sherpa-onnx is {kind}. Time is the "
        "processor's, one utterance at a time, and of the whole way from samples to text."
    )
    title = f"sherpa-onnx: {args.title or args.bundle.name}"
    record.publish(args, "sherpa", [Result(title=title, note=note, columns=columns, rows=rows)])


if __name__ == "__main__":
    main()
