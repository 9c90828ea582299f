"""Measure the processor time of each decoding method for one utterance at a time.

    python -m benchmarks.method_cost BUNDLE CUTS [--every 8] [--rounds 5] [--record]

One thread. The methods take turns on every 8th utterance, all rounds in the same process. A number
is the median of all rounds but the first, per utterance, with and without encoding, for the n best
texts of the bundle's configuration and for the best text alone.
"""

import argparse
import time
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import asr
from asr.data.manifest import load_cuts, read_wave
from asr.decoding.options import DecodingOptions
from asr.transcription.recognizer import Recognizer
from benchmarks import record
from benchmarks.record import Result, Value

METHODS = ("joint", "rescore", "ctc_beam", "ctc_greedy")


def milliseconds(
    recognizer: Recognizer, waves: list[Tensor], options: DecodingOptions | None
) -> float:
    """Return the processor time of an utterance in ms; without options, of its encoding alone."""
    begin = time.process_time()
    for wave in waves:
        ((_, encoded),) = recognizer.encode([wave])
        if options:
            recognizer.decode(encoded, options)
    return 1000 * (time.process_time() - begin) / len(waves)


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("cuts", type=Path)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    record.add_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    recognizer = asr.load(args.bundle, "cpu")
    cuts = list(load_cuts(args.cuts))[:: args.every]
    waves = [read_wave(cut, recognizer.sample_rate) for cut in cuts]
    own = recognizer.config.decoding
    cases: dict[tuple[str, int], DecodingOptions | None] = {("encoding", 0): None}
    for method in METHODS:
        for n_best in (own.n_best, 1):
            cases[method, n_best] = own.changed({"method": method, "n_best": n_best})
    times: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for _ in range(1 + args.rounds):
        for case, options in cases.items():
            times[case].append(milliseconds(recognizer, waves, options))
    found = {case: median(values[1:]) for case, values in times.items()}
    encoding = found.pop(("encoding", 0))
    rows: list[list[Value]] = [
        [method, n_best, value, value / found["joint", n_best], value - encoding]
        for (method, n_best), value in found.items()
    ]
    columns = {
        "method": "", "n best": "d", "ms an utterance": ".2f", "of joint": ".2f",
        "without encoding": ".2f",
    }  # fmt: skip
    note = f"{len(waves)} utterances one at a time, one thread; encoding {encoding:.2f} ms."
    title = "Processor time of each method"
    result = Result(title=title, note=note, columns=columns, rows=rows)
    record.publish(args, "decoding-speed", [result])


if __name__ == "__main__":
    main()
