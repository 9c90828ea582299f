"""The engine process under attack: costly recordings, a pipe that stands still, a crash loop."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from asr.transcription.transcript import Segment
from serve.engine.messages import Cancel, Transcribe
from serve.engine.process import Engine
from serve.settings import Settings
from tests.helpers import (
    URL,
    beeps,
    bomb,
    encode_audio,
    engine,
    last_messages,
    refused,
    running,
    stopped,
    transcribe,
    wait_for,
)

WAV = encode_audio(beeps(1, 1.0))


def test_a_short_recording_is_read_before_costly_ones_that_came_first(library, monkeypatch) -> None:
    """C1: recordings are read in turns, a slice each, by what their samples cost."""
    recordings, snapshot = [], []
    real_open = library.open

    def opened(*arguments, **options):
        recordings.append(real_open(*arguments, **options))
        return recordings[-1]

    def silent(chunks, *_):
        if any(chunk.end == 1.0 for chunk in chunks):
            snapshot.extend(each.recording.seconds for each in recordings[:4])
        return [Segment(c.start, c.end, "", 0.0, "eos", (), (), None) for c in chunks]

    monkeypatch.setattr(library, "open", opened)
    monkeypatch.setattr(library, "recognize", silent)
    flac = bomb(25)
    with engine(library, wait=0) as pipe:
        for i in range(4):
            pipe.send(transcribe(i, flac))
        pipe.send(transcribe(4, WAV))
        last_messages(pipe, 1)
        for i in range(4):
            pipe.send(Cancel(i))
    assert len(snapshot) == 4 and max(snapshot) < 15, "a chunk of each would be 20 s"


@pytest.mark.slow
def test_costly_recordings_of_clients_that_leave_delay_others_by_less_than_a_second(
    tiny_bundle,
) -> None:
    """C1: four of them at once, with the settings' defaults."""
    flac = bomb(400)

    def leave(service) -> None:
        with suppress(httpx.TimeoutException):
            files, data = {"file": ("a", flac)}, {"model": "tiny"}
            httpx.post(f"http://{service.host}:{service.port}{URL}", files=files, data=data,
                       timeout=2, trust_env=False)  # fmt: skip

    def timed(request: Callable[[], httpx.Response]) -> float:
        started = time.monotonic()
        assert request().status_code == 200
        return time.monotonic() - started

    with running(tiny_bundle) as service, ThreadPoolExecutor(4) as pool:
        idle = max(timed(lambda: service.post(WAV)) for _ in range(3))
        for _ in range(4):
            pool.submit(leave, service)
        time.sleep(0.5)
        for _ in range(8):
            assert timed(lambda: service.post(WAV)) < 2 * idle + 1
            assert timed(lambda: service.client.get("/health/live")) < 1
            time.sleep(0.3)
        refused(service.post(flac), 413, "file", "too_long")


def test_readers_that_are_stuck_are_no_progress_while_a_recording_waits(
    library, monkeypatch
) -> None:
    """K1: two recordings stopped all others for minutes, and the service was ready throughout."""
    begun, goes_on = threading.Semaphore(0), threading.Event()

    def stuck(*_, **__):
        begun.release()
        goes_on.wait(30)
        yield from ()

    monkeypatch.setattr("asr.transcription.chunks.ChunkedRecording.slices", stuck)
    engine = Engine(Pipe()[0], {"m": library}, Settings(hang_seconds=0.2))
    monkeypatch.setattr(engine, "_finish", lambda job: None)
    try:
        for i in range(2):
            engine._accept(transcribe(i, WAV))
            assert begun.acquire(timeout=10)
        time.sleep(0.3)
        assert not engine._is_stuck(), "nothing waits"
        engine._accept(transcribe(2, WAV))
        assert engine._is_stuck()
    finally:
        goes_on.set()
        engine._readers.shutdown()
    assert not engine._is_stuck()


# --- a process that stands for the engine ---------------------------------------------------------

STAND_IN = """
import io, sys
from multiprocessing.connection import Connection
import soundfile
from serve.engine import messages

pipe = Connection(int(sys.argv[1]))
pipe.recv()
pipe.send(messages.Ready())
while True:
    message = pipe.recv()
    if isinstance(message, messages.Transcribe):
        print('{"level": "info", "message": "a record"}', file=sys.stderr, flush=True)
        soundfile.read(io.BytesIO(message.audio))
        sys.stderr.write("a plain line\\n" * 200)
        pipe.send(messages.Failed(message.id, "empty_audio", "decoded"))
"""


@pytest.fixture
def stand_in(monkeypatch) -> None:
    """The service starts a process that only decodes audio, and so is ready at once."""
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return popen([sys.executable, "-c", STAND_IN, command[-1]], **options)

    fake = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)
    monkeypatch.setattr("serve.engine.client.subprocess", fake)


def n_kept(body: bytes) -> int:
    """How many messages with a recording of such a length are in memory."""
    messages = [each for each in gc.get_objects() if type(each) is Transcribe]
    return sum(len(each.audio) == len(body) for each in messages)


def test_bodies_of_clients_that_left_are_not_kept_while_the_engine_stands_still(
    stand_in, tiny_bundle
) -> None:
    """S6: only what the pipe is taking stays, and it is counted."""
    body = encode_audio(beeps(1, 60.0))
    with running(tiny_bundle) as service, stopped(service.engine.pid):
        address = f"http://{service.host}:{service.port}{URL}"
        for _ in range(5):
            with pytest.raises(httpx.TimeoutException):
                files, data = {"file": ("a", body)}, {"model": "tiny"}
                httpx.post(address, files=files, data=data, timeout=0.5, trust_env=False)
        wait_for(lambda: service.metric("asr_requests_in_flight") == 0)
        assert n_kept(body) == 1
        assert service.metric("asr_held_bytes") == len(body)
        os.kill(service.engine.pid, signal.SIGCONT)
        wait_for(lambda: service.metric("asr_held_bytes") == 0 == n_kept(body))


def test_lines_of_libraries_become_records_of_the_log(stand_in, tiny_bundle, capfd, caplog) -> None:
    """M13: libmpg123 writes plain lines, as many as a damaged recording has frames."""
    mp3 = bytearray(encode_audio(np.random.default_rng(0).normal(0, 0.1, 320_000), format="MP3"))
    for at in np.random.default_rng(1).integers(2000, len(mp3), 2000):
        mp3[at] ^= 0x55
    with running(tiny_bundle) as service:
        refused(service.post(bytes(mp3)), 400, "file", "empty_audio")
        wait_for(lambda: [line for line in caplog.messages if "mpg123" in line], 10)
        refused(service.post(WAV), 400, "file", "empty_audio")
    written = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert {"level": "info", "message": "a record"} in written
    assert len([line for line in caplog.messages if "process wrote" in line]) == 50


def test_the_engine_has_no_keys(stand_in, tiny_bundle, monkeypatch) -> None:
    """M18: it decodes what strangers send."""
    monkeypatch.setenv("ASR_API_KEYS", "secret")
    monkeypatch.setenv("ASR_DEVICE", "cpu")
    with running(tiny_bundle) as service:
        variables = psutil.Process(service.engine.pid).environ()
    assert variables["ASR_DEVICE"] == "cpu" and "secret" not in variables.values()


@pytest.mark.parametrize(
    ("healthy_seconds", "expected"), [(0.0, [0.5, 0.5, 0.5]), (60.0, [0.5, 1.0, 2.0])]
)
def test_pauses_before_restarts_grow_only_while_it_fails_at_once(
    stand_in, tiny_bundle, monkeypatch, healthy_seconds, expected
) -> None:
    """M2: after a healthy time the first pause is short again."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    patched = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    monkeypatch.setattr("serve.engine.client._HEALTHY_SECONDS", healthy_seconds, raising=False)
    monkeypatch.setattr("serve.engine.client.asyncio", patched)
    with running(tiny_bundle) as service:
        for _ in expected:
            pid = service.engine.pid
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda pid=pid: service.engine.pid != pid and service.engine.ready)
    assert pauses == expected
