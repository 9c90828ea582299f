"""Measure sizes, speed and CER of a bundle in float32 and in 8 bits, by torch and by onnxruntime.

    python -m benchmarks.int8 BUNDLE CUTS [--dev DEV] [--utterances N] [--energy 0.9] [--record]

Speed is from features to the log-probabilities of the CTC head, one utterance at a time. The
variants take turns with each utterance, and processor time is counted. CER is that of greedy CTC.
Graphs are calibrated on utterances of DEV (default: the recipe's). onnxruntime's static
quantization gets the same utterances, and finds ranges by the least and the largest value. The last
rows are the bundle after SVD.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from asr.bundle import Bundle
from asr.compression.compress import compress
from asr.data.manifest import load_cuts, text_of
from asr.evaluation.cer import ErrorCounts, character_errors
from asr.export.calibration import (
    encoder_inputs,
    find_cuts,
    greedy_text,
    open_graph,
    quantize_folder,
    sample,
    utterances,
)
from asr.export.export import export
from asr.export.ranges import Batch
from asr.transcription.recognizer import Recognizer
from benchmarks import record
from benchmarks.record import Result, Value

Run = Callable[[np.ndarray], np.ndarray]  # features (T, F) to log-probabilities (1, S, V)


def by_torch(folder: Path, int8: bool) -> Run:
    """Return a run of our own inference."""
    model = Recognizer(Bundle.load(folder), "cpu", int8).model

    @torch.inference_mode()
    def run(feats: np.ndarray) -> np.ndarray:
        memory, _ = model.encode(torch.from_numpy(feats[None]), torch.tensor([len(feats)]))
        return np.asarray(model.ctc_logits(memory).log_softmax(-1))

    return run


def by_graph(path: Path) -> Run:
    """Return a run of an ONNX encoder."""
    graph = open_graph(path)
    return lambda feats: graph(encoder_inputs(feats))["ctc_log_probs"]


def variants(
    source: Path, dev: Path | None, energy: float, out: Path
) -> dict[str, tuple[int, Run]]:
    """Return the size in bytes and a run of each variant, by its name."""
    found: dict[str, tuple[int, Run]] = {}

    def add(name: str, path: Path, run: Run) -> None:
        found[name] = path.stat().st_size, run
        record.progress(f"{name} is ready")

    bundle = Bundle.load(source)
    add("torch, float32", source / "model.safetensors", by_torch(source, False))
    bundle.save(out / "small", "", int8=True)
    add("torch --int8", out / "small/model.safetensors", by_torch(out / "small", True))
    svd, _ = compress(bundle, "svd", energy=energy)
    cuts = find_cuts(bundle, dev)
    for name, each in (("", bundle), ("SVD, ", svd)):
        floats, bytes_ = (out / f"{name}{kind}" for kind in ("float32", "int8"))
        export(replace(each), "onnx", floats)
        add(f"{name}onnx, float32", floats / "encoder.onnx", by_graph(floats / "encoder.onnx"))
        bytes_.mkdir()
        for path in floats.iterdir():
            (bytes_ / path.name).write_bytes(path.read_bytes())
        quantize_folder(each, cuts, bytes_)
        add(f"{name}onnx --int8", bytes_ / "encoder.onnx", by_graph(bytes_ / "encoder.onnx"))
        if not name:
            path = dynamic(floats / "encoder.onnx", out / "dynamic.onnx")
            add("onnx, onnxruntime's quantize_dynamic", path, by_graph(path))
            inputs = [encoder_inputs(feats) for *_, feats in utterances(each, sample(list(cuts)))]
            path = static(floats / "encoder.onnx", inputs, out / "static.onnx")
            add("onnx, onnxruntime's quantize_static", path, by_graph(path))
    return found


def dynamic(source: Path, out: Path) -> Path:
    """Quantize a graph by onnxruntime without calibration, and write it to `out`."""
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, out, per_channel=True)
    return out


def static(source: Path, inputs: Sequence[Batch], out: Path) -> Path:
    """Quantize a graph by onnxruntime with calibration on `inputs`, and write it to `out`."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(inputs)

        def get_next(self) -> Batch | None:
            return next(self._left, None)

    quantize_static(
        source, out, Reader(), per_channel=True, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )  # fmt: skip
    return out


def main() -> None:
    """Make the variants, and let them take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("cuts", type=Path)
    parser.add_argument("--dev", type=Path)
    parser.add_argument("--utterances", type=int, help="default: all")
    parser.add_argument("--energy", type=float, default=0.9)
    parser.add_argument("--title", default="")
    record.add_option(parser)
    args = parser.parse_args()
    bundle = Bundle.load(args.bundle)
    with tempfile.TemporaryDirectory() as folder:
        runs = variants(args.bundle, args.dev, args.energy, Path(folder))
        spent = dict.fromkeys(runs, 0.0)
        errors = dict.fromkeys(runs, ErrorCounts())
        seconds, chosen = 0.0, list(load_cuts(args.cuts))
        most = args.utterances or len(chosen)
        chosen = chosen[:: max(1, len(chosen) // most)][:most]
        for cut, _, feats in utterances(bundle, chosen):
            seconds += cut.duration
            for name, (_, run) in runs.items():
                start = time.process_time()
                logp = run(feats)
                spent[name] += time.process_time() - start
                text = greedy_text(bundle, logp)
                errors[name] += character_errors(text_of(cut), text, bundle.tokenizer.normalize)
    first = next(iter(spent.values()))
    rows: list[list[Value]] = [
        [name, size / 1e6, 1000 * spent[name] / seconds, first / spent[name],
         100 * errors[name].rate, errors[name].errors]
        for name, (size, _) in runs.items()
    ]  # fmt: skip
    columns = {
        "variant": "", "MB": ".2f", "ms a second of audio": ".2f", "times float32 torch": ".2f",
        "CER (%)": ".2f", "errors": "d",
    }  # fmt: skip
    note = (
        f"{len(chosen)} utterances, {seconds:.0f} s. MB are of all weights for torch, of the "
        f"encoder's graph with the CTC head for onnx. SVD keeps {args.energy:.0%} of the energy of "
        "every map and is not tuned after it."
    )
    title = f"8 bits: {args.title or args.bundle.name}"
    record.publish(args, "int8", [Result(title=title, note=note, columns=columns, rows=rows)])


if __name__ == "__main__":
    main()
