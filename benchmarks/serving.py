"""Measure the service under load: throughput, waits, memory over many requests.

    python -m benchmarks.serving BUNDLE RECORDINGS [--requests 2000] [--soak 10000] [--record]

RECORDINGS is a folder of short recordings. Two services share the machine and are asked in turn, in
rounds: `asr serve`, and one that decodes recordings one by one (ASR_BATCH_SECONDS=0). `--clients`
clients ask at a time, each again as soon as it has its response. The response is compared with the
library's text of the recording.

Then an eighth of the clients send recordings of two minutes, and all others clips of 3 s. The
median wait of the clips is compared with that of an ideal queue, which shares the measured capacity
(audio seconds a second) evenly among all clients and wastes nothing. The clients share the cores
with the services.
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

from benchmarks import record
from benchmarks.record import Value

URL = "/v1/audio/transcriptions"
RATE = 16000
Found = tuple[str, psutil.Process, record.Result]


@dataclass
class Recording:
    """A file's content, its seconds, and the library's text (None: not compared)."""

    content: bytes
    seconds: float
    text: str | None

    @cached_property
    def request(self) -> bytes:
        """Return all bytes of its request."""
        sent = httpx.Request(
            "POST", "http://x" + URL, files={"file": ("a.wav", self.content)}, data={"model": "m"}
        )
        lines = [f"POST {URL} HTTP/1.1", *(f"{k}: {v}" for k, v in sent.headers.items()), "", ""]
        return "\r\n".join(lines).encode() + sent.read()


@dataclass
class Round:
    """The results of a round: seconds to the response of each request, errors, wrong texts."""

    seconds: float = 0.0
    audio: float = 0.0
    waits: list[float] = field(default_factory=list)
    n_errors: int = 0
    n_crossed: int = 0

    def add(self, other: "Round") -> None:
        """Add another round."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def rate(self) -> float:
        """Return the requests per second."""
        return len(self.waits) / self.seconds


@contextmanager
def serving(bundle: Path, batch_seconds: float) -> Iterator[tuple[str, psutil.Process]]:
    """Run `asr serve` as a process; yield its address and the process."""
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
                if server.poll() is not None:
                    raise SystemExit(f"asr serve ended: {Path(log.name).read_text()}")
                time.sleep(0.2)
            yield found[0], psutil.Process(server.pid)
        finally:
            server.terminate()


class Client:
    """Send one request after the other; little code runs, because it shares the cores."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, address: str) -> "Client":
        """Connect to http://HOST:PORT."""
        host, port = address.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, recording: Recording, result: Round) -> None:
        """Send a recording and count the response."""
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
) -> Round:
    """Run clients that ask again as soon as they have a response, until all is asked."""
    result, rng = Round(), random.Random(seed)
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
) -> tuple[Round, Round]:
    """Send clips by most clients and long recordings by a few, side by side for a while."""
    clips, longs = Round(), Round()
    clients = [await Client.connect(address) for _ in range(n_clients)]
    end = time.perf_counter() + seconds

    async def ask_on(client: Client, recording: Recording, result: Round) -> None:
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
    """Return at most n recordings with the library's texts."""
    import asr

    paths = sorted(folder.rglob("*.wav"))[:n]
    model = asr.load(bundle, "cpu")
    results = model.transcribe_all(paths)
    return [
        Recording(path.read_bytes(), result.duration, result.text)  # type: ignore[union-attr]
        for path, result in zip(paths, results, strict=True)
    ]


def joined(recordings: list[Recording], seconds: float) -> Recording:
    """Join recordings up to a length."""
    waves: list[np.ndarray] = []
    for recording in recordings * 100:
        waves.append(sf.read(io.BytesIO(recording.content), dtype="float32")[0])
        if sum(map(len, waves)) >= seconds * RATE:
            break
    file = io.BytesIO()
    sf.write(file, np.concatenate(waves)[: round(seconds * RATE)], RATE, format="WAV")
    return Recording(file.getvalue(), seconds, None)


def resident(server: psutil.Process) -> list[float]:
    """Return the MiB of the service and of its engine."""
    return [p.memory_info().rss / 2**20 for p in (server, *server.children())]


COLUMNS = {
    "mode": "", "requests": ",d", "requests/s": ".1f", "audio s/s": ".1f",
    "median wait (ms)": ",.0f", "errors": "d", "wrong texts": "d",
}  # fmt: skip


def row(name: str, result: Round) -> list[Value]:
    """Return the row of a round, and print it as progress."""
    wait = median(result.waits) * 1000
    audio = result.audio / result.seconds
    count = len(result.waits)
    found: list[Value] = [name, count, result.rate, audio, wait, result.n_errors, result.n_crossed]
    record.progress(f"{found}")
    return found


def soak(
    address: str, server: psutil.Process, recordings: list[Recording], args: argparse.Namespace
) -> record.Result:
    """Return the memory after each tenth of many requests; the first tenth warms up."""
    rows: list[list[Value]] = []
    for part in range(10):
        result = asyncio.run(load(address, recordings, args.clients, args.soak // 10, part))
        row(f"soak {part + 1}/10", result)
        rows.append([(part + 1) * (args.soak // 10), *resident(server)[:2]])
    columns = {"requests": ",d", "service (MiB)": ".0f", "engine (MiB)": ".0f"}
    return record.Result(title=f"Memory over {args.soak:,} requests", columns=columns, rows=rows)


def throughput(running: ExitStack, recordings: list[Recording], args: argparse.Namespace) -> Found:
    """Ask both services in turn; return the first one and the table."""
    services = {}
    for name, batch_seconds, n_requests in [
        ("shared batches", 80.0, args.requests),
        ("one by one (`ASR_BATCH_SECONDS=0`)", 0.0, args.requests // 3),  # slower: fewer will do
    ]:
        address, server = running.enter_context(serving(args.bundle, batch_seconds))
        services[name] = (address, server, n_requests, Round())
    for turn in range(args.rounds):
        for address, _, n_requests, total in services.values():
            n = n_requests // args.rounds
            total.add(asyncio.run(load(address, recordings, args.clients, n, turn)))
    rows = [row(name, total) for name, (_, _, _, total) in services.items()]
    batched, single = (total.rate for *_, total in services.values())
    note = f"Shared batches serve {batched / single:.2f} times as many requests."
    table = record.Result(title="Requests", note=note, columns=COLUMNS, rows=rows)
    address, server, *_ = next(iter(services.values()))
    return address, server, table


def fairness(address: str, recordings: list[Recording], args: argparse.Namespace) -> record.Result:
    """Send clips beside long recordings; return their waits beside an ideal queue's."""
    clip, long = joined(recordings, 3.0), joined(recordings, 120.0)
    clips, longs = asyncio.run(
        mixed(address, clip, long, args.clients, args.clients // 8, args.mixed_seconds)
    )
    ideal = args.clients * clip.seconds / ((clips.audio + longs.audio) / clips.seconds)
    share = median(clips.waits) / ideal
    note = f"An ideal queue would let the clips wait {ideal * 1000:,.0f} ms: {share:.2f} of it."
    rows = [row("3 s clips beside recordings of 120 s", clips)]
    return record.Result(
        title="Short recordings beside long ones", note=note, columns=COLUMNS, rows=rows
    )


def main() -> None:
    """Measure each part in turn, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--mixed-seconds", type=float, default=30.0)
    parser.add_argument("--soak", type=int, default=0)
    record.add_option(parser)
    args = parser.parse_args()
    recordings = read(args.recordings, args.bundle, 200)
    seconds = sum(r.seconds for r in recordings)
    record.progress(f"{len(recordings)} recordings, {seconds / len(recordings):.2f} s in the mean")
    with ExitStack() as running:
        address, server, table = throughput(running, recordings, args)
        tables = [table]
        if args.mixed_seconds:
            tables.append(fairness(address, recordings, args))
        if args.soak:
            tables.append(soak(address, server, recordings, args))
    record.publish(args, "serving", tables)


if __name__ == "__main__":
    main()
