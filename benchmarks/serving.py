"""The service under load: throughput against one-by-one handling, waits, memory over many requests.

    python benchmarks/serving.py BUNDLE RECORDINGS [--clients 64] [--requests 2000] [--soak 10000]

RECORDINGS is a folder of short recordings. Two services share the machine and are asked in turn, in
rounds: `asr serve`, and one that decodes recordings one by one (ASR_BATCH_SECONDS=0). So many
clients ask at a time, each again as soon as it is answered. Every answer is compared with the
library's text of its recording. Then 3 s clips are sent by all clients but an eighth, who send two
minutes each, and the clips' median wait is set against an ideal queue's: one that shares the
measured capacity (audio seconds a second) evenly among all clients and wastes nothing. The clients
share the cores with the services.
"""

import argparse
import asyncio
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median

import httpx
import numpy as np
import psutil
import soundfile as sf

URL = "/v1/audio/transcriptions"
RATE = 16000


@dataclass
class Recording:
    """A file's content, its seconds, and what the library hears in it (None: not compared)."""

    content: bytes
    seconds: float
    text: str | None

    @cached_property
    def request(self) -> bytes:
        """All bytes of it."""
        sent = httpx.Request(
            "POST", "http://x" + URL, files={"file": ("a.wav", self.content)}, data={"model": "m"}
        )
        lines = [f"POST {URL} HTTP/1.1", *(f"{k}: {v}" for k, v in sent.headers.items()), "", ""]
        return "\r\n".join(lines).encode() + sent.read()


@dataclass
class Result:
    """What a round found: seconds from sending to the answer by recording, errors, wrong texts."""

    seconds: float = 0.0
    audio: float = 0.0
    waits: list[float] = field(default_factory=list)
    n_errors: int = 0
    n_crossed: int = 0

    def add(self, other: "Result") -> None:
        """Count another round in."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.waits) / self.seconds


@contextmanager
def serving(bundle: Path, batch_seconds: float) -> Iterator[tuple[str, psutil.Process]]:
    """`asr serve` as a process, its address."""
    code = "from asr.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", f"m={bundle}", "--port", "0", "--device", "cpu"]
    environment = {
        **os.environ,
        "ASR_BATCH_SECONDS": str(batch_seconds),
    }
    with (
        tempfile.NamedTemporaryFile("w") as log,
        subprocess.Popen(command, stderr=log, env=environment) as server,
    ):
        try:
            while not (found := re.search(r"http://127.0.0.1:\d+", Path(log.name).read_text())):
                time.sleep(0.2)
            yield found[0], psutil.Process(server.pid)
        finally:
            server.terminate()


class Client:
    """A connection that asks one thing after the other; lean, for it shares the cores."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, address: str) -> "Client":
        """To http://HOST:PORT."""
        host, port = address.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, recording: Recording, result: Result) -> None:
        """Send a recording and count what comes back."""
        began = time.perf_counter()
        self.writer.write(recording.request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
        body = await self.reader.readexactly(length)
        result.waits.append(time.perf_counter() - began)
        result.audio += recording.seconds
        if not head.startswith(b"http/1.1 200"):
            print(head, body, flush=True)
            result.n_errors += 1
        elif recording.text is not None and json.loads(body)["text"] != recording.text:
            result.n_crossed += 1


async def load(
    address: str, recordings: list[Recording], n_clients: int, n_requests: int, seed: int
) -> Result:
    """So many clients that ask again as soon as they are answered, until all is asked."""
    result, rng = Result(), random.Random(seed)
    todo = iter([rng.choice(recordings) for _ in range(n_requests)])
    clients = [await Client.connect(address) for _ in range(n_clients)]

    async def ask_on(client: Client) -> None:
        for recording in todo:
            await client.ask(recording, result)
        client.writer.close()

    began = time.perf_counter()
    await asyncio.gather(*map(ask_on, clients))
    result.seconds = time.perf_counter() - began
    return result


async def mixed(
    address: str, clip: Recording, long: Recording, n_clients: int, n_long: int, seconds: float
) -> tuple[Result, Result]:
    """Clips by most clients and long recordings by a few, side by side for a while."""
    clips, longs = Result(), Result()
    clients = [await Client.connect(address) for _ in range(n_clients)]
    end = time.perf_counter() + seconds

    async def ask_on(client: Client, recording: Recording, result: Result) -> None:
        while time.perf_counter() < end:
            await client.ask(recording, result)
        client.writer.close()

    began = time.perf_counter()
    await asyncio.gather(
        *(ask_on(client, long, longs) for client in clients[:n_long]),
        *(ask_on(client, clip, clips) for client in clients[n_long:]),
    )
    clips.seconds = longs.seconds = time.perf_counter() - began
    return clips, longs


def read(folder: Path, bundle: Path, n: int) -> list[Recording]:
    """Some recordings, with the library's texts."""
    import asr

    paths = sorted(folder.rglob("*.wav"))[:n]
    model = asr.load(bundle, "cpu")
    heard = model.transcribe_all(paths)
    return [
        Recording(path.read_bytes(), result.duration, result.text)  # type: ignore[union-attr]
        for path, result in zip(paths, heard, strict=True)
    ]


def joined(recordings: list[Recording], seconds: float) -> Recording:
    """One after the other until it is so long."""
    waves: list[np.ndarray] = []
    for recording in recordings * 100:
        waves.append(sf.read(io.BytesIO(recording.content), dtype="float32")[0])
        if sum(map(len, waves)) >= seconds * RATE:
            break
    file = io.BytesIO()
    sf.write(file, np.concatenate(waves)[: round(seconds * RATE)], RATE, format="WAV")
    return Recording(file.getvalue(), seconds, None)


def resident(server: psutil.Process) -> list[float]:
    """MiB of the service and of its decoding process."""
    return [p.memory_info().rss / 2**20 for p in (server, *server.children())]


def told(name: str, result: Result) -> None:
    """A line."""
    print(
        f"{name}: {len(result.waits)} requests in {result.seconds:.1f} s, {result.rate:.1f}/s, "
        f"{result.audio / result.seconds:.1f} s of audio a second, wait median "
        f"{median(result.waits) * 1000:.0f} ms, errors {result.n_errors}, wrong {result.n_crossed}",
        flush=True,
    )


def soak(address: str, server: psutil.Process, recordings: list[Recording], args) -> None:  # type: ignore[no-untyped-def]
    """The memory after each tenth of many requests; the first tenth warms up."""
    for part in range(10):
        result = asyncio.run(load(address, recordings, args.clients, args.soak // 10, part))
        told(f"soak {part + 1}/10", result)
        print("  RSS (MiB):", *(f"{mib:.0f}" for mib in resident(server)), flush=True)


def main() -> None:
    """Each part in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--mixed-seconds", type=float, default=30.0)
    parser.add_argument("--soak", type=int, default=0)
    args = parser.parse_args()
    recordings = read(args.recordings, args.bundle, 200)
    seconds = sum(r.seconds for r in recordings)
    print(
        f"{len(recordings)} recordings, {seconds / len(recordings):.2f} s in the mean", flush=True
    )
    with ExitStack() as running:
        services = {}
        for name, batch_seconds, n_requests in [
            ("shared batches", 80.0, args.requests),
            ("one by one", 0.0, args.requests // 3),  # slower: fewer tell its rate
        ]:
            address, server = running.enter_context(serving(args.bundle, batch_seconds))
            services[name] = (address, server, n_requests, Result())
        for turn in range(args.rounds):
            for address, _, n_requests, total in services.values():
                n = n_requests // args.rounds
                total.add(asyncio.run(load(address, recordings, args.clients, n, turn)))
        for name, (_, _, _, total) in services.items():
            told(name, total)
        batched, single = (total.rate for *_, total in services.values())
        print(f"ratio: {batched / single:.2f}", flush=True)
        address, server, *_ = next(iter(services.values()))
        if args.mixed_seconds:
            clip, long = joined(recordings, 3.0), joined(recordings, 120.0)
            clips, longs = asyncio.run(
                mixed(address, clip, long, args.clients, args.clients // 8, args.mixed_seconds)
            )
            told("3 s clips beside recordings of 120 s", clips)
            capacity = (clips.audio + longs.audio) / clips.seconds
            ideal = args.clients * clip.seconds / capacity
            share = median(clips.waits) / ideal
            print(f"  ideal wait {ideal * 1000:.0f} ms, measured {share:.2f} of it", flush=True)
        if args.soak:
            soak(address, server, recordings, args)


if __name__ == "__main__":
    main()
