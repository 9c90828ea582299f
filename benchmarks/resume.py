"""Kill a job over a folder of recordings half-way, start it again, and count what is done twice.

    python -m benchmarks.resume BUNDLE FOLDER [--jobs 1] [--record]

`asr transcribe BUNDLE FOLDER --out OUT` is killed (kill -9, with all its processes) as soon as half
of the transcripts are there. The same command then continues. A transcript is written under another
name and renamed, so a transcript that is written again is another file (inode).
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from asr.transcription.jobs import SUFFIXES
from benchmarks import record
from benchmarks.record import Result


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return each transcript's inode and time of writing."""
    found = {p.relative_to(folder).as_posix(): p.stat() for p in folder.rglob("*.txt")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


def main() -> None:
    """Kill once, continue, and do everything undisturbed for comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    record.add_option(parser)
    args = parser.parse_args()
    total = sum(p.suffix.lower() in SUFFIXES for p in args.folder.rglob("*"))
    command = [sys.executable, "-m", "asr.cli", "transcribe", str(args.bundle), str(args.folder)]
    command += ["--jobs", str(args.jobs), "--out"]
    with tempfile.TemporaryDirectory() as name:
        out, whole = Path(name) / "out", Path(name) / "whole"
        job = subprocess.Popen([*command, str(out)], start_new_session=True)
        while len(files(out)) < total / 2 and job.poll() is None:
            time.sleep(0.02)
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(job.pid, signal.SIGKILL)
        code, before = job.wait(), files(out)
        record.progress(f"ended by {code}: {len(before)} of {total} recordings have a transcript")
        subprocess.run([*command, str(out)], check=True)
        subprocess.run([*command, str(whole)], check=True)
        after = files(out)
        again = sum(after[name] != stat for name, stat in before.items())
        unlike = sum((out / n).read_bytes() != (whole / n).read_bytes() for n in files(whole))
    headings = ["recordings", "written before the kill", "at the end", "twice", "different"]
    result = Result(
        title="A job that is killed and started again",
        columns=dict.fromkeys(headings, "d"),
        rows=[[total, len(before), len(after), again, unlike]],
    )
    record.publish(args, "long-audio", [result])


if __name__ == "__main__":
    main()
