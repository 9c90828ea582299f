"""Measure time and memory of `asr prepare aishell1` on a large corpus of tiny recordings.

    python -m benchmarks.prepare_scale [--record]     # 120,000 utterances: 2 minutes, 2 GB at most

The corpus has the layout of AiShell-1. A speaker has one silent recording of 0.2 s under as many
names (hard links) as utterances, and every utterance has its line in the transcript.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import soundfile as sf

from benchmarks import record
from benchmarks.record import Result

SPEAKERS = 400


def make_corpus(root: Path, utterances: int) -> Path:
    """Lay out `utterances` recordings and their transcript; return the corpus's folder."""
    tree = root / "data_aishell"
    (tree / "transcript").mkdir(parents=True)
    each = -(-utterances // SPEAKERS)
    with (tree / "transcript/aishell_transcript_v0.8.txt").open("w", encoding="utf-8") as lines:
        for number in range(utterances):
            speaker, nth = divmod(number, each)
            split = "train" if speaker < 0.85 * SPEAKERS else "dev" if speaker % 3 else "test"
            folder = tree / "wav" / split / f"S{speaker:04}"
            name = f"BAC009S{speaker:04}W{nth:04}"
            first = folder / f"BAC009S{speaker:04}W0000.wav"
            if nth == 0:
                folder.mkdir(parents=True)
                sf.write(first, np.zeros(3200, np.int16), 16000)
            else:
                (folder / f"{name}.wav").hardlink_to(first)
            lines.write(f"{name} 今天 天气 {chr(0x4E00 + number % 4000)} 很 好\n")
    return tree


def main() -> None:
    """Measure the command in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--utterances", type=int, default=120_000)
    record.add_option(parser)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        tree = make_corpus(Path(folder), args.utterances)
        command = [sys.executable, "-c", "from asr.cli import main; main()", "prepare", "aishell1"]
        record.progress(f"{args.utterances} utterances are laid out")
        start = time.perf_counter()
        subprocess.run([*command, tree, Path(folder) / "out"], check=True, capture_output=True)
        seconds = time.perf_counter() - start
        report = json.loads((Path(folder) / "out" / "report.json").read_text("utf-8"))
    kept = sum(split["utterances"] for split in report["splits"].values())
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    result = Result(
        title="Preparing a large corpus",
        note="The aim is 2 minutes and 2 GB.",
        columns={"utterances": ",d", "seconds": ".1f", "peak (GB)": ".2f"},
        rows=[[kept, seconds, peak]],
    )
    record.publish(args, "data", [result])


if __name__ == "__main__":
    main()
