"""What long audio costs: seconds of work a second of audio, and memory, by length.

    python benchmarks/long_audio.py BUNDLE [--seconds 10 60 600 3600]

Each length is a process of its own, so that the peak of memory is its own; the recording is noise
in bursts as of words (synthetic), written as FLAC at 16 kHz. Loading the bundle is not timed; its
memory and the interpreter's are in the peak.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile as sf

RATE = 16000


def write_bursts(path: Path, seconds: int) -> None:
    """Bursts of coloured noise of 0.1 to 0.4 s, with pauses between."""
    rng = np.random.default_rng(0)
    with sf.SoundFile(path, "w", RATE, 1) as file:
        left = seconds * RATE
        while left:
            burst = np.cumsum(rng.normal(size=int(rng.uniform(0.1, 0.4) * RATE)))
            burst = 0.3 * (burst - burst.mean()) / np.abs(burst - burst.mean()).max()
            part = np.concatenate((burst, np.zeros(int(rng.uniform(0.02, 0.3) * RATE))))[:left]
            file.write(part)
            left -= len(part)


def measure(bundle: Path, recording: Path) -> None:
    """Print seconds of work and the peak of memory in MiB."""
    import asr

    model = asr.load(bundle, "cpu")
    start = time.perf_counter()
    model.transcribe(recording)
    seconds = time.perf_counter() - start
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    """Measure each length in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--seconds", type=int, nargs="+", default=[10, 60, 600, 3600])
    parser.add_argument("--recording", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.recording:
        measure(args.bundle, args.recording)
        return
    print("audio s | work s | work / audio | peak MiB")
    with tempfile.TemporaryDirectory() as folder:
        for seconds in args.seconds:
            path = Path(folder) / "a.flac"
            write_bursts(path, seconds)
            command = [sys.executable, __file__, str(args.bundle), "--recording", str(path)]
            line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            work, peak = map(float, line.split())
            print(f"{seconds} | {work:.2f} | {work / seconds:.4f} | {peak:.0f}", flush=True)


if __name__ == "__main__":
    main()
