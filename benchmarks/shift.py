"""Measure what a shift of the audio by some encoder steps does to trained models' error rates.

    python -m benchmarks.shift CUTS BUNDLE … [--most 200] [--record]

Linformer's matrices E and F belong to positions, so a shift by one position changes what it finds
(Zaytsev, slides: Gini 53.47, shifted by one 47.31). Each utterance stands in 16 steps of faint
noise. More and more of them come before it, so that the length is always the same and only the
position changes. Decoding is greedy CTC; uncertain texts count too.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

import asr
from asr.data.manifest import load_cuts, read_wave, text_of
from asr.evaluation.cer import ErrorCounts, character_errors
from asr.model.frontend import FRAMES_PER_STEP
from benchmarks import record
from benchmarks.record import Result, Value

SHIFTS, MOST = (0, 1, 2, 4, 8, 16), 16  # encoder steps
NOISE = 1e-4
GREEDY = {"method": "ctc_greedy", "confidence_threshold": 0.0}


def shifted(wave_N: Tensor, before: int, after: int) -> Tensor:
    """Return a waveform with so many samples of noise before and after it."""
    noise = NOISE * torch.randn(before + after, generator=torch.Generator().manual_seed(0))
    return torch.cat((noise[:before], wave_N, noise[before:]))


def texts(model: asr.Recognizer, waves: list[Tensor], shift: int) -> list[str]:
    """Return the texts of waveforms shifted by so many steps."""
    step = FRAMES_PER_STEP * model.config.features.hop_length
    options, found = model.config.decoding.changed(GREEDY), [""] * len(waves)
    given = [shifted(wave, shift * step, (MOST - shift) * step) for wave in waves]
    for indices, encoded in model.encode(given):
        for i, nbest in zip(indices, model.decode(encoded, options), strict=True):
            found[i] = nbest[0].text
    return found


def main() -> None:
    """Recognize each shift, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cuts", type=Path)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--most", type=int, default=200, help="utterances")
    record.add_option(parser)
    args = parser.parse_args()
    cuts = list(load_cuts(args.cuts))
    cuts = cuts[:: -(-len(cuts) // args.most)]
    rows: list[list[Value]] = []
    for bundle in args.bundles:
        model = asr.load(bundle, "cpu")
        waves = [read_wave(cut, model.sample_rate) for cut in cuts]
        row, found = list[Value]([bundle.name]), [texts(model, waves, shift) for shift in SHIFTS]
        for each in found:
            errors = ErrorCounts()
            for cut, text in zip(cuts, each, strict=True):
                errors += character_errors(text_of(cut), text, model.tokenizer.normalize)
            row.append(100 * errors.rate)
        changed = sum(a != b for a, b in zip(found[0], found[-1], strict=True))
        rows.append([*row, 100 * changed / len(cuts)])
        record.progress(f"{rows[-1]}")
    columns = {"model": "", **{f"CER (%), {s}": ".2f" for s in SHIFTS}}
    columns[f"texts that {MOST} change (%)"] = ".1f"
    note = f"{len(cuts)} utterances in {MOST} steps of faint noise, 0 to {MOST} of them first."
    table = Result(title="Shifted audio", note=note, columns=columns, rows=rows)
    record.publish(args, "attention-demo", [table])


if __name__ == "__main__":
    main()
