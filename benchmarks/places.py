"""Measure bundles on recordings as they are, in a room, and with noise or voices behind.

    python -m benchmarks.places CUTS BUNDLE [BUNDLE …] [--record]

The places are simulated, the same for each bundle, by other means than `augment.voices` has: echoes
that fall by 60 dB in 0.4 s; white noise, or the sum of six other utterances, 10 dB below the
speech. Decoding is greedy CTC; uncertain texts count too.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from lhotse.cut import Cut
from scipy.signal import fftconvolve  # type: ignore[import-untyped]

import asr
from asr.data.manifest import load_cuts, read_wave, text_of
from asr.evaluation.cer import character_errors, corpus_errors
from benchmarks import record
from benchmarks.record import Result, Value

PLACES = ("as recorded", "in a room", "white noise", "voices")
_SNR_DB, _DECAY_SECONDS, _BEHIND = 10.0, 0.4, 6


def placed(waves: list[np.ndarray], rate: int, place: str) -> Iterator[np.ndarray]:
    """Yield each waveform (samples,) as it sounds at a place, as long and as loud as it was."""
    for i, wave in enumerate(waves):
        rng = np.random.default_rng(i)
        if place == "in a room":
            there = _in_room(wave, rate, rng)
        elif place == "white noise":
            there = _with(wave, rng.normal(size=len(wave)))
        elif place == "voices":
            others = rng.choice(np.delete(np.arange(len(waves)), i), _BEHIND)
            behind = np.sum([np.resize(waves[other], len(wave)) for other in others], axis=0)
            there = _with(wave, behind)
        else:
            there = wave
        yield there * _rms(wave) / max(_rms(there), 1e-9)


def _in_room(wave: np.ndarray, rate: int, rng: np.random.Generator) -> np.ndarray:
    t = np.arange(int(_DECAY_SECONDS * rate)) / rate
    response = rng.normal(size=len(t)) * 10 ** (-3 * t / _DECAY_SECONDS)
    response /= np.sqrt((response**2).sum())  # the echoes are as loud as the direct sound
    response[0] = 1
    there: np.ndarray = fftconvolve(wave, response)[: len(wave)]
    return there


def _with(wave: np.ndarray, behind: np.ndarray) -> np.ndarray:
    return wave + behind * _rms(wave) / max(_rms(behind), 1e-9) * 10 ** (-_SNR_DB / 20)


def _rms(wave: np.ndarray) -> float:
    return float(np.sqrt((wave**2).mean()))


def measure(bundle: Path, cuts: list[Cut]) -> list[Value]:
    """Return a row: the CER at each place in percent, then the share of texts without an error."""
    model = asr.load(bundle, "cpu")
    changes = {"method": "ctc_greedy", "confidence_threshold": 0.0}
    options = model.config.decoding.model_copy(update=changes)
    waves = [read_wave(cut, model.sample_rate).numpy() for cut in cuts]
    known = [text_of(cut) for cut in cuts]
    rates: list[tuple[float, float]] = []
    for place in PLACES:
        there = [torch.from_numpy(w).float() for w in placed(waves, model.sample_rate, place)]
        texts = [text for text, _ in model.texts(there, options)]
        pairs = list(zip(known, texts, strict=True))
        characters, _ = corpus_errors(pairs, model.tokenizer.normalize)
        right = sum(not character_errors(*pair, model.tokenizer.normalize).errors for pair in pairs)
        rates.append((100 * characters.rate, 100 * right / len(pairs)))
        record.progress(f"{bundle}, {place}: CER {rates[-1][0]:.2f} %")
    return [bundle.name, *(cer for cer, _ in rates), *(right for _, right in rates)]


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cuts", type=Path)
    parser.add_argument("bundles", type=Path, nargs="+")
    record.add_option(parser)
    args = parser.parse_args()
    cuts = [cut for cut in load_cuts(args.cuts) if text_of(cut)]
    columns = {"bundle": ""}
    columns |= {f"{place}: {rate} (%)": ".2f" for rate in ("CER", "right") for place in PLACES}
    rows = [measure(bundle, cuts) for bundle in args.bundles]
    title = f"{args.cuts.parent.name}: at other places"
    record.publish(args, "noise", [Result(title=title, columns=columns, rows=rows)])


if __name__ == "__main__":
    main()
