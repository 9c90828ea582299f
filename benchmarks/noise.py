"""Count the noises that get a text, and the utterances that get none.

    python -m benchmarks.noise BUNDLE CUTS [--most 200] [--record]

There are seventeen kinds of noise at six lengths of 0.5 to 16 s; the table tells how many of them
get a text. It also tells how many utterances of CUTS (dev.jsonl.gz), evenly chosen, get none.
"""

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile as sf

import asr
from asr.data.manifest import load_cuts, read_wave, text_of
from asr.transcription.recognizer import Recognizer
from benchmarks import record
from benchmarks.record import Result

_SECONDS = (0.5, 1, 2, 4, 8, 16)


def noises(seconds: float, rate: int, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a waveform (samples,) of each kind."""
    n, rng = int(seconds * rate), np.random.default_rng(seed)
    t, white = np.arange(n) / rate, rng.normal(size=n)
    for db in (-80, -60, -40, -20, -6):
        yield f"white, {db} dB", (white * 0.3 * 10 ** (db / 20)).clip(-1, 1)
    spectrum, bins = np.fft.rfft(white), np.arange(1, n // 2 + 2)
    for name, power in (("pink", 0.5), ("brown", 1)):
        wave = np.fft.irfft(spectrum / bins**power, n)
        yield name, 0.3 * wave / np.abs(wave).max()
    for hz in (50, 440, 1000, 3000):
        yield f"tone, {hz} Hz", 0.3 * np.sin(2 * np.pi * hz * t)
    hum = sum(np.sin(2 * np.pi * 50 * k * t) / k for k in range(1, 8))
    yield "hum", 0.05 * hum + 0.001 * white
    yield "dither of 16 bits", rng.integers(-1, 2, n) / 32768
    clicks = np.zeros(n)
    clicks[rng.integers(0, n, max(1, int(3 * seconds)))] = 0.8
    yield "clicks", clicks
    one = np.zeros(n)
    one[n // 2] = 1e-4
    yield "one sample", one
    yield "sweep", 0.3 * np.sin(2 * np.pi * (100 * t + 1500 * t**2 / seconds))
    yield "bursts", 0.1 * white * (np.floor(4 * t + rng.random()) % 2)


def count_texts(model: Recognizer) -> tuple[int, int]:
    """Return how many noises get a text, and of how many; print the text of each."""
    texts, n = 0, 0
    for seed, seconds in enumerate(_SECONDS):
        for name, wave in noises(seconds, model.sample_rate, seed):
            file = io.BytesIO()
            sf.write(file, wave, model.sample_rate, subtype="FLOAT", format="WAV")
            file.seek(0)
            text, n = model.transcribe(file).text, n + 1
            texts += bool(text)
            record.progress(f"{name}, {seconds:g} s: {text or 'no text'}")
    return texts, n


def main() -> None:
    """Count, print and record both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("cuts", type=Path)
    parser.add_argument("--most", type=int, default=200)
    record.add_option(parser)
    args = parser.parse_args()
    model = asr.load(args.bundle, "cpu")
    texts, n = count_texts(model)
    cuts = sorted((c for c in load_cuts(args.cuts) if text_of(c)), key=lambda c: c.id)
    cuts = cuts[:: -(-len(cuts) // args.most)]
    spoken = [text for text, _ in model.texts([read_wave(cut, model.sample_rate) for cut in cuts])]
    result = Result(
        title=f"Noise that gets a text: {args.bundle.name}",
        columns={"model": "", "noises with a text": "", "utterances without a text": ""},
        rows=[[f"{args.bundle}", f"{texts} of {n}", f"{spoken.count('')} of {len(cuts)}"]],
    )
    record.publish(args, "noise", [result])


if __name__ == "__main__":
    main()
