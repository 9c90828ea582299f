"""Show that the speculative joint search finds what the plain one finds, on recordings.

    python -m benchmarks.identity BUNDLE CUTS [CUTS …] [--beams 1 4 8 16] [--lm LM --lm-weight 0.3]
        [--most 1000] [--record]

Each utterance is encoded once and decoded by both searches in turn, alone, for its best text, with
each beam. The table has the number of utterances whose texts differ, the largest difference of
scores, and the ratio of the CPU times of both searches, without encoder and front end. The exit
code is 1 if any texts differ, or scores by more than 1e-4.
"""

import argparse
import sys
import time
from pathlib import Path

import torch

import asr
from asr.data.manifest import load_cuts, read_wave
from asr.transcription.recognizer import Recognizer
from benchmarks import record
from benchmarks.record import Result, Value

TOLERANCE = 1e-4


def compare(
    model: Recognizer, waves: list[torch.Tensor], beam: int, changes: dict[str, object]
) -> list[Value]:
    """Return a row: beam, utterances, texts that differ, difference of scores, ratio of times."""
    options = model.config.decoding.changed(
        {"method": "joint", "n_best": 1, "beam_size": beam, "confidence_threshold": 0.0, **changes}
    )
    seconds, differing, largest = [0.0, 0.0], 0, 0.0
    for wave in waves:
        found = []
        ((_, encoded),) = model.encode([wave])
        for i, speculates in enumerate((False, True)):
            model.decoder.speculates = speculates
            start = time.process_time()
            found.append(model.decode(encoded, options)[0][0])
            seconds[i] += time.process_time() - start
        plain, fast = found
        differing += plain.tokens != fast.tokens
        largest = max(largest, abs(plain.score - fast.score))
    return [beam, len(waves), differing, largest, seconds[0] / seconds[1]]


def main() -> None:
    """Compare, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("cuts", type=Path, nargs="+")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--lm", type=Path)
    parser.add_argument("--lm-weight", type=float, default=0.3)
    parser.add_argument("--most", type=int, default=1000, help="utterances")
    record.add_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = asr.load(args.bundle, "cpu")
    cuts = [cut for path in args.cuts for cut in load_cuts(path)]
    cuts = cuts[:: -(-len(cuts) // args.most)]
    waves = [read_wave(cut, model.sample_rate) for cut in cuts]
    changes = {"lm": str(args.lm), "lm_weight": args.lm_weight} if args.lm else {}
    rows = []
    for beam in args.beams:
        rows.append(compare(model, waves, beam, changes))
        record.progress(str(rows[-1]))
    columns = {
        "beam": "d", "utterances": "d", "texts that differ": "d",
        "largest difference of scores": ".1e", "times as fast": ".2f",
    }  # fmt: skip
    title = f"The same text and score: {args.bundle.name}"
    title += f", {args.lm.name}" if args.lm else ""
    record.publish(args, "speculation", [Result(title=title, columns=columns, rows=rows)])
    same = all(row[2] == 0 and float(row[3] or 0) <= TOLERANCE for row in rows)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
