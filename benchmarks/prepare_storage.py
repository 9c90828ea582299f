"""Measure `asr prepare table` of many recordings in a service like S3, by workers.

    python -m benchmarks.prepare_storage --utterances 2000 [--record]
    python -m benchmarks.prepare_storage --utterances 120000 --workers 1 2 4 [--record]

The storage is `benchmarks.light_s3` on this machine, a small server which answers each request
after `--latency` seconds, as one far away does. All recordings are the same silent one of 0.2 s.
"""

import argparse
import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks import record
from benchmarks.light_s3 import names
from benchmarks.local_s3 import file_system, light_server, use_s3
from benchmarks.record import Result

_LOOK = 0.2  # seconds between looks at the processes


def write_table(path: Path, utterances: int) -> None:
    """Write the table of the recordings."""
    rows = (f"{name},今天天气很好,{name[:4]}\n" for name in names(utterances))
    path.write_text("audio,text,speaker\n" + "".join(rows), "utf-8")


def prepare(table: Path, workers: int) -> tuple[int, float, float, float]:
    """Return the utterances, the seconds, the CPU seconds, and the MB of the largest process."""
    out = f"s3://corpus/out{workers}"
    code = "from asr.cli import main; main()"
    command = [sys.executable, "-c", code, "prepare", "table", "s3://corpus", str(table), out]
    start = time.perf_counter()
    command += ["--jobs", str(workers)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as running:
        peak, cpu = _watch(running)
        assert not running.returncode, running.communicate()
    seconds = time.perf_counter() - start
    report = json.loads(file_system().cat_file(f"corpus/out{workers}/report.json"))
    kept = sum(split["utterances"] for split in report["splits"].values())
    return kept, seconds, cpu, peak


def _watch(running: "subprocess.Popen[bytes]") -> tuple[float, float]:
    """Wait for a command; return the MB of its largest process, and the CPU seconds of all."""
    most, used = 0.0, dict[int, float]()
    while running.poll() is None:
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(running.pid)
            for process in (first, *first.children(recursive=True)):
                most = max(most, process.memory_info().rss / 1e6)
                times = process.cpu_times()
                used[process.pid] = times.user + times.system
        time.sleep(_LOOK)
    return most, sum(used.values())


def main() -> None:
    """Measure the command in a process of its own for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--utterances", type=int, default=2000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--latency", type=float, default=0.002)
    record.add_option(parser)
    args = parser.parse_args()
    rows, first = list[list[record.Value]](), 0.0
    with TemporaryDirectory() as folder, light_server(args.utterances, args.latency) as port:
        use_s3(port)
        table = Path(folder) / "table.csv"
        write_table(table, args.utterances)
        for workers in args.workers:
            kept, seconds, cpu, peak = prepare(table, workers)
            first = first or seconds * workers
            share = 100 * first / (seconds * workers)
            rows.append([workers, kept, seconds, kept / seconds, share, cpu, peak])
            record.progress(f"{workers} workers: {seconds:.1f} s, {peak:.0f} MB")
    result = Result(
        title="Preparing a corpus in object storage",
        note=f"`benchmarks.light_s3` on the same machine, {args.latency:g} s late with each "
        "answer. In proportion: 100 %. The peak is that of the largest process, "
        "looked at now and then.",
        columns={
            "workers": ",d", "utterances": ",d", "seconds": ".1f", "per second": ".0f",
            "of proportion (%)": ".0f", "CPU seconds": ".1f", "peak (MB)": ".0f",
        },
        rows=rows,
    )  # fmt: skip
    record.publish(args, "data", [result])


if __name__ == "__main__":
    main()
