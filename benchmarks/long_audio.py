"""Measure what long audio costs: time per second of audio, and memory, by length.

    python -m benchmarks.long_audio BUNDLE CUTS [--seconds 10 60 600 3600] [--record]

Each file is the recordings of CUTS (test.jsonl.gz) in turn, with pauses of 0.3 to 1 s between, as
FLAC. Each length is a process of its own, so that the peak of memory is its own. Loading the
bundle is not timed; its memory and the interpreter's are in the peak. The last columns are

- the characters in which the file's text differs from the texts of the recordings, recognized one
  by one;
- the characters in which it differs from the texts of the chunks that it was cut to, each
  recognized by itself;
- how often the times of segments and tokens go back.
"""

import argparse
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile as sf
import torch
from torch import Tensor

import asr
from asr.audio.recording import Recording
from asr.audio.segmentation import split_at_silence
from asr.data.manifest import load_cuts, read_wave
from asr.evaluation.cer import character_errors
from asr.transcription.recognizer import Recognizer
from benchmarks import record
from benchmarks.record import Result, Value


def write_speech(path: Path, seconds: int, waves: list[Tensor], rate: int) -> list[int]:
    """Write whole recordings in turn, then silence up to the length; return their indices."""
    rng, used = np.random.default_rng(0), []
    with sf.SoundFile(path, "w", rate, 1) as file:
        left = seconds * rate
        for i in itertools.cycle(range(len(waves))):
            part = np.pad(waves[i].numpy(), (0, int(rng.uniform(0.3, 1.0) * rate)))
            if len(part) > left:
                break
            file.write(part)
            used.append(i)
            left -= len(part)
        file.write(np.zeros(left))
    return used


def chunks_alone(model: Recognizer, recording: Path) -> str:
    """Return the text of the chunks that a recording is cut to, each recognized by itself."""
    longest = model.config.decoding.chunk_seconds or 20.0
    blocks = Recording(recording, model.sample_rate)
    chunks = split_at_silence(blocks, model.sample_rate, longest)
    return "".join(model.texts([torch.from_numpy(chunk)])[0][0] for chunk in chunks)


def measure(bundle: Path, recording: Path) -> None:
    """Print the seconds, the peak of memory in MiB, the text, and the times in their order."""
    model = asr.load(bundle, "cpu")
    start = time.perf_counter()
    found = model.transcribe(recording)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    times = []
    for segment in found.segments:
        tokens = [t for token in segment.tokens or () for t in (token.start, token.end)]
        times += [segment.start, *tokens, segment.end]
    print(json.dumps((seconds, peak, found.text, times)))


def compare(
    args: argparse.Namespace, model: Recognizer, waves: list[Tensor], own: list[str], seconds: int
) -> list[Value]:
    """Return the row of a length, measured in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.flac"
        used = write_speech(path, seconds, waves, model.sample_rate)
        command = [sys.executable, "-m", "benchmarks.long_audio", str(args.bundle), str(path)]
        done = subprocess.run(
            [*command, "--measure"], check=True, stdout=subprocess.PIPE, text=True
        )
        work, peak, text, times = json.loads(done.stdout)
        counts = character_errors("".join(own[i] for i in used), text)
        chunks = character_errors(chunks_alone(model, path), text)
    back = sum(b < a for a, b in itertools.pairwise(times))
    other = f"{counts.errors} of {counts.reference_length:,}"
    return [seconds, work / seconds, peak, other, chunks.errors, back]


def main() -> None:
    """Measure each length in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("cuts", type=Path)
    parser.add_argument("--seconds", type=int, nargs="+", default=[10, 60, 600, 3600])
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    record.add_option(parser)
    args = parser.parse_args()
    if args.measure:
        measure(args.bundle, args.cuts)
        return
    model = asr.load(args.bundle, "cpu")
    waves = [read_wave(cut, model.sample_rate) for cut in load_cuts(args.cuts)]
    own = [text for text, _ in model.texts(waves)]
    rows = []
    for seconds in args.seconds:
        rows.append(compare(args, model, waves, own, seconds))
        record.progress(f"{rows[-1]}")
    columns = {
        "audio (s)": "d", "time / audio": ".4f", "peak (MiB)": ".0f",
        "characters other than the recordings'": "", "other than the chunks'": "d",
        "times that go back": "d",
    }  # fmt: skip
    title = f"Cost and text by length: {args.bundle.name}"
    record.publish(args, "long-audio", [Result(title=title, columns=columns, rows=rows)])


if __name__ == "__main__":
    main()
