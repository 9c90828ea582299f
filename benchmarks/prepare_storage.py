"""Measure `asr prepare table` of many recordings in a service like S3, by workers.

    python -m benchmarks.prepare_storage --utterances 2000 [--record]
    python -m benchmarks.prepare_storage --utterances 120000 --workers 1 2 4 [--record]

The storage is moto's server of S3 on this machine, which answers each request after `--latency`
seconds, as one far away does. All recordings are the same silent one of 0.2 s under their names.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import soundfile as sf

from benchmarks import record
from benchmarks.record import Result

SPEAKERS = 400
_SERVER = """
import logging, sys, time
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.moto_server.werkzeug_app import DomainDispatcherApplication as App, create_backend_app
from werkzeug.serving import make_server
app, late = App(create_backend_app), float(sys.argv[1])
def slow(environ, start_response):
    time.sleep(late if environ["REQUEST_METHOD"] in ("GET", "HEAD") else 0)
    return app(environ, start_response)
server = make_server("127.0.0.1", 0, slow, threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""
# argv: the command's. Prints the most memory that it held, in MB.
_PREPARE = """
import resource, sys
from asr.cli import app
app(sys.argv[1:], standalone_mode=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, file=sys.stderr)
"""


@contextmanager
def storage(latency: float) -> Iterator[None]:
    """Run the server, which the environment names meanwhile."""
    command = [sys.executable, "-c", _SERVER, str(latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        port = server.stdout.readline().strip()
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }  # fmt: skip
        try:
            yield
        finally:
            server.kill()


def fill(table: Path, utterances: int) -> None:
    """Write the recordings to the storage, and their table."""
    import s3fs  # type: ignore[import-untyped]

    sound = BytesIO()
    sf.write(sound, np.zeros(3200, np.int16), 16000, format="WAV")
    system = s3fs.S3FileSystem(use_listings_cache=False)
    system.mkdir("corpus")
    with table.open("w", encoding="utf-8") as lines:
        lines.write("audio,text,speaker\n")
        for first in range(0, utterances, 1000):
            names = [
                f"S{i % SPEAKERS:03}/{i:06}.wav"
                for i in range(first, min(first + 1000, utterances))
            ]
            system.pipe({f"corpus/{name}": sound.getvalue() for name in names})
            lines.writelines(f"{name},今天天气很好,{name[:4]}\n" for name in names)


def prepare(table: Path, workers: int) -> tuple[int, float, float]:
    """Return the utterances, the seconds, and the peak in MB of a preparation."""
    out = f"s3://corpus/out{workers}"
    command = [sys.executable, "-c", _PREPARE, "prepare", "table", "s3://corpus", str(table), out]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "--jobs", str(workers)], check=True, capture_output=True, text=True
    )
    seconds = time.perf_counter() - start
    import s3fs

    report = json.loads(s3fs.S3FileSystem().cat_file(f"corpus/out{workers}/report.json"))
    kept = sum(split["utterances"] for split in report["splits"].values())
    return kept, seconds, float(done.stderr.splitlines()[-1])


def main() -> None:
    """Measure the command in a process of its own for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--utterances", type=int, default=2000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--latency", type=float, default=0.02)
    record.add_option(parser)
    args = parser.parse_args()
    rows: list[list[record.Value]] = []
    with TemporaryDirectory() as folder, storage(args.latency):
        table = Path(folder) / "table.csv"
        fill(table, args.utterances)
        record.progress(f"{args.utterances} recordings are in the storage")
        for workers in args.workers:
            kept, seconds, peak = prepare(table, workers)
            rows.append([workers, kept, seconds, kept / seconds, peak])
            record.progress(f"{workers} workers: {seconds:.1f} s, {peak:.0f} MB")
    result = Result(
        title="Preparing a corpus in object storage",
        note=f"moto's server of S3 on the same machine, {args.latency:g} s late with each answer.",
        columns={
            "workers": ",d", "utterances": ",d", "seconds": ".1f", "per second": ".0f",
            "peak (MB)": ".0f",
        },
        rows=rows,
    )  # fmt: skip
    record.publish(args, "data", [result])


if __name__ == "__main__":
    main()
