"""What the tests of the service share: a tiny model, a real socket, recordings, and refusals."""

import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile as sf
import torch
import uvicorn

import asr
from asr.bundle import Bundle
from asr.config import Config
from asr.tokenizer import Tokenizer
from asr.transcription.recognizer import Recognizer
from serve.app import create_app
from serve.engine.client import Worker
from serve.settings import Settings

URL = "/v1/audio/transcriptions"
MAX_BYTES, MAX_SECONDS = 3 * 2**20, 60.0


def tones(seed: int, seconds: float = 0.7, rate: int = 16000, channels: int = 1) -> np.ndarray:
    """Beeps over noise, which a model with random weights turns into a text of their own."""
    rng, time_N = np.random.default_rng(seed), np.arange(round(seconds * rate)) / rate
    beeps = np.sin(2 * np.pi * (200 + 97 * seed) * time_N) * (np.sin(20 * time_N + seed) > 0)
    wave = 0.5 * beeps + 0.01 * rng.standard_normal(len(time_N))
    return np.stack([wave] * channels, axis=1)


def encoded(wave: np.ndarray, rate: int = 16000, format: str = "WAV", subtype: str = "") -> bytes:
    """A recording as a file's content."""
    file = io.BytesIO()
    sf.write(file, wave, rate, format=format, subtype=subtype or None)
    return file.getvalue()


@dataclass
class Service:
    """A running service: a client of its own, its address, and what it is made of."""

    client: httpx.Client
    host: str
    port: int
    worker: Worker
    state: Any

    def post(self, file: bytes, url: str = URL, **fields: Any) -> httpx.Response:
        """Send a recording."""
        data = {"model": "tiny", **fields}
        return self.client.post(url, files={"file": ("a.wav", file)}, data=data)

    def figure(self, name: str) -> float:
        """A figure of /metrics, without labels."""
        found = re.search(rf"^{name} (\S+)$", self.client.get("/metrics").text, re.M)
        assert found, name
        return float(found[1])


@contextmanager
def running(bundle: Path, **settings: Any) -> Iterator[Service]:
    """The service on a real socket, in a thread of this process."""
    given = {"bundles": (f"tiny={bundle}",), "device": "cpu", **settings}
    app = create_app(Settings.read(**given))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_keep_alive=75))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        limits = httpx.Limits(max_connections=None)
        base = f"http://{host}:{port}"
        try:
            with httpx.Client(base_url=base, timeout=60, trust_env=False, limits=limits) as client:
                yield Service(client, host, port, app.state.worker, app.state)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def changed(service: Service, **settings: Any) -> Iterator[None]:
    """Other settings for a while, of those that the decoding process need not know."""
    holders = [(service.state, "settings"), (service.state.load, "settings"),
               (service.worker, "_settings")]  # fmt: skip
    before = service.state.settings
    for holder, name in holders:
        setattr(holder, name, before.model_copy(update=settings))
    try:
        yield
    finally:
        for holder, name in holders:
            setattr(holder, name, before)


@contextmanager
def started(bundle: Path, *options: str, **environment: str) -> Iterator[tuple[Any, str]]:
    """`asr serve` as a process of its own, with its address; it is ended if it still runs."""
    code = "from asr.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", f"tiny={bundle}", "--port", "0", *options]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables) as server:
        try:
            lines = iter(server.stderr.readline, "")  # type: ignore[union-attr]
            found = (re.search(r"http://127.0.0.1:\d+", line) for line in lines)
            yield server, next(match[0] for match in found if match)
        finally:
            server.kill()


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with random weights, of a model as small as can be."""
    config = Config.model_validate(
        {
            "data": {"train": "train.jsonl.gz", "dev": "dev.jsonl.gz"},
            "features": {"kind": "log_mel", "n_mels": 40},
            "model": {
                "d_model": 32, "d_inner": 64, "n_heads": 2, "ctc_weight": 0.3,
                "projection": {"kind": "low_rank", "rank": 8},
                "frontend": {"kind": "vgg", "channels": [4, 4]},
            },
            # A random model guesses.
            "search": {
                "beam_size": 2, "ctc_weight": 0.5, "confidence_threshold": 0, "piece_seconds": 20,
            },
        }
    )  # fmt: skip
    tokenizer = Tokenizer.train(["今天天气很好我们去公园", "打开窗户三点十分"], config.tokenizer)
    folder = tmp_path_factory.mktemp("exp") / "tiny"
    torch.manual_seed(4)
    Bundle.create(config, tokenizer).save(folder, "a card")
    return folder


@pytest.fixture(scope="session")
def library(tiny_bundle: Path) -> Recognizer:
    """The same model without a service."""
    return asr.load(tiny_bundle, "cpu")


@pytest.fixture(scope="session")
def service(tiny_bundle: Path) -> Iterator[Service]:
    """A service for all tests that only talk to it."""
    with running(tiny_bundle, max_bytes=MAX_BYTES, max_seconds=MAX_SECONDS) as service:
        yield service


def refused(reply: httpx.Response, status: int, param: str | None, code: str | None) -> str:
    """The message of an error in OpenAI's shape."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.json().keys() == {"error"}
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert (error["type"], error["param"], error["code"]) == (kind, param, code)
    assert "\n" not in error["message"] and "Traceback" not in error["message"]
    return error["message"]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that stands still for a block of statements."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    """Until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.02)
