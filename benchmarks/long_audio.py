"""What long audio costs: seconds of work a second of audio, and memory, by length.

    python benchmarks/long_audio.py BUNDLE CUTS [--seconds 10 60 600 3600]

Each file is the recordings of CUTS (test.jsonl.gz) in turn, with pauses of 0.3 to 1 s between, as
FLAC. Each length is a process of its own, so that the peak of memory is its own. Loading the
bundle is not timed; its memory and the interpreter's are in the peak. The last columns are the
characters in which the file's text differs from the recordings' own texts, as they are recognised
one by one; those in which it differs from the texts of the pieces that it was cut to, each
recognised by itself; and how often the times of segments and tokens go back.
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


def write_speech(path: Path, seconds: int, waves: list[Tensor], rate: int) -> list[int]:
    """Recordings in turn, whole, then silence up to the length; which they are."""
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


def pieces_alone(model: Recognizer, recording: Path) -> str:
    """What the pieces that a recording is cut to are heard as, one by one."""
    longest = model.config.decoding.chunk_seconds or 20.0
    blocks = Recording(recording, model.sample_rate)
    pieces = split_at_silence(blocks, model.sample_rate, longest)
    return "".join(model.texts([torch.from_numpy(piece)])[0][0] for piece in pieces)


def measure(bundle: Path, recording: Path) -> None:
    """Print seconds of work, the peak of memory in MiB, the text, and the times in their order."""
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


def main() -> None:
    """Measure each length in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("cuts", type=Path)
    parser.add_argument("--seconds", type=int, nargs="+", default=[10, 60, 600, 3600])
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.bundle, args.cuts)
        return
    model = asr.load(args.bundle, "cpu")
    waves = [read_wave(cut, model.sample_rate) for cut in load_cuts(args.cuts)]
    own = [text for text, _ in model.texts(waves)]
    print(
        "| audio s | work / audio | peak MiB | other than recordings | other than pieces "
        "| times go back |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        for seconds in args.seconds:
            path = Path(folder) / "a.flac"
            used = write_speech(path, seconds, waves, model.sample_rate)
            command = [sys.executable, __file__, str(args.bundle), str(path), "--measure"]
            line = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            work, peak, text, times = json.loads(line)
            counts = character_errors("".join(own[i] for i in used), text)
            pieces = character_errors(pieces_alone(model, path), text)
            back = sum(b < a for a, b in itertools.pairwise(times))
            print(
                f"| {seconds} | {work / seconds:.4f} | {peak:.0f} | "
                f"{counts.errors} of {counts.reference_length} | {pieces.errors} | {back} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
