"""Run S3 on this machine, by moto's server or a light one, and write recordings for its jobs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf

from benchmarks.random_models import random_bundle

_SERVER = (
    "import logging, time; logging.getLogger('werkzeug').setLevel(logging.ERROR)\n"
    "from moto.server import ThreadedMotoServer as Server\n"
    "server = Server(ip_address='0.0.0.0', port=0, verbose=False); server.start()\n"
    "print(server.get_host_and_port()[1], flush=True); time.sleep(1e6)"
)
_RATE = 16000


@contextmanager
def s3_server() -> Iterator[int]:
    """Run moto's server in a process of its own; yield its port, on all addresses."""
    with _running([sys.executable, "-c", _SERVER]) as port:
        yield port


@contextmanager
def light_server(recordings: int = 0, latency: float = 0.0) -> Iterator[int]:
    """Run `benchmarks.light_s3`, which takes less of the processors; yield its port."""
    module = "benchmarks.light_s3"
    with _running([sys.executable, "-m", module, str(recordings), str(latency)]) as port:
        yield port


@contextmanager
def _running(command: list[str]) -> Iterator[int]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


def use_s3(port: int, address: str = "127.0.0.1") -> None:
    """Point the S3 clients of this process and its children to a server."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{address}:{port}",
    }  # fmt: skip


def file_system() -> Any:
    """Return the file system of S3."""
    import s3fs  # type: ignore[import-untyped]

    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)


def write_recordings(folder: Path, n: int, seconds: float) -> list[Path]:
    """Write recordings of drawn tones, a half to one and a half times as long as `seconds`."""
    folder.mkdir(parents=True)
    paths = []
    for i in range(n):
        rng = np.random.default_rng(i)
        steps = max(1, round(seconds * rng.uniform(0.5, 1.5) / 0.1))
        pitch = np.repeat(rng.uniform(200, 3000, steps), _RATE // 10)
        wave = 0.3 * np.sin(2 * np.pi * np.cumsum(pitch) / _RATE) + rng.normal(0, 0.01, len(pitch))
        paths.append(folder / f"{i:05}.wav")
        sf.write(paths[-1], wave.astype(np.float32), _RATE)
    return paths


def write_bundle(folder: Path, changes: list[str]) -> None:
    """Write the demo's model with random weights, so that it guesses."""
    changes = [*changes, "decoding.confidence_threshold=0"]
    random_bundle("demo/lrt", changes).save(folder, "Random weights.")
