"""A job over a folder of recordings, killed half-way, then begun again: what is done twice?

    python benchmarks/resume.py BUNDLE FOLDER [--jobs 1]

`asr transcribe BUNDLE FOLDER --out OUT` is killed (kill -9, with all its processes) as soon as half
of the transcripts are there; the same command then goes on. A transcript is written by renaming, so
one that was written again would be another file (inode).
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from asr.transcription.jobs import SUFFIXES


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Each transcript's inode and time of writing."""
    found = {p.relative_to(folder).as_posix(): p.stat() for p in folder.rglob("*.txt")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


def main() -> None:
    """Kill once, go on, and do it all undisturbed for comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    total = sum(p.suffix.lower() in SUFFIXES for p in args.folder.rglob("*"))
    command = [sys.executable, "-m", "asr.cli", "transcribe", str(args.bundle), str(args.folder)]
    command += ["--jobs", str(args.jobs), "--out"]
    with tempfile.TemporaryDirectory() as name:
        out, whole = Path(name) / "out", Path(name) / "whole"
        job = subprocess.Popen([*command, str(out)], start_new_session=True)
        while len(files(out)) < total / 2 and job.poll() is None:
            time.sleep(0.02)
        os.killpg(job.pid, signal.SIGKILL)
        print(f"ended by {job.wait()}: ", end="")
        before = files(out)
        print(f"{len(before)} of {total} recordings have a transcript", flush=True)
        subprocess.run([*command, str(out)], check=True)
        subprocess.run([*command, str(whole)], check=True)
        after = files(out)
        again = sum(after[name] != stat for name, stat in before.items())
        unlike = sum((out / n).read_bytes() != (whole / n).read_bytes() for n in files(whole))
        print(
            f"after going on {len(after)} of {total}; written twice: {again}; "
            f"other than undisturbed: {unlike}"
        )


if __name__ == "__main__":
    main()
