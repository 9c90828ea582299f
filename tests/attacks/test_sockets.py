"""Live sessions of hostile and of patient peers over a real socket."""

import base64
import gc
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest
from uvicorn import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from serve import connections, protocols
from tests.helpers import Service, changed, read_until, stopped, wait_for

START = json.dumps({"sample_rate": 16000, "model": "tiny"})
SECOND = bytes(32_000)
PING, TEXT, BINARY = 0x9, 0x1, 0x2
INVALID = struct.pack("!BBH", 0x88, 2, 1007)


@contextmanager
def session(service: Service) -> Iterator[ClientConnection]:
    with connect(f"ws://{service.host}:{service.port}/v1/live", proxy=None) as client:
        client.send(START)
        yield client


def last(client: ClientConnection, seconds: float = 60) -> tuple[int | None, dict[str, Any]]:
    """The close code and the last message, once the service has closed."""
    message: dict[str, Any] = {}
    with suppress(ConnectionClosed):
        while True:
            message = json.loads(client.recv(timeout=seconds))
    return client.close_code, message


def frame(opcode: int, payload: bytes) -> bytes:
    """A short frame as a client sends it; its mask is 0."""
    return struct.pack("!BBI", 0x80 | opcode, 0x80 | len(payload), 0) + payload


@contextmanager
def raw_session(
    service: Service, room: int = 2**12, start: bytes = START.encode()
) -> Iterator[socket.socket]:
    """A session of a client that never answers, and that reads only where it is told to."""
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        raw.settimeout(30)
        raw.connect((service.host, service.port))
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            "GET /v1/live HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n"
            f"connection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n"
        )
        raw.sendall(head.encode())
        assert raw.recv(12) == b"HTTP/1.1 101"
        raw.sendall(frame(TEXT, start))
        yield raw


def test_a_peer_that_does_not_read_loses_its_place(service, monkeypatch):
    """S3: pings without end, then silence: the place was lost, and the memory grew."""
    monkeypatch.setattr(connections, "_STALL_SECONDS", 1.0)
    with changed(service, max_live_sessions=1), raw_session(service) as raw:
        pings, held, deadline = frame(PING, bytes(125)) * 500, 0, time.monotonic() + 40
        kind = WebSocketsSansIOProtocol
        peers = [o for o in gc.get_objects() if issubclass(type(o), kind) and not o.disconnected]
        with suppress(OSError):
            for _ in range(100):  # 6.5 MB: more than all buffers of the kernel
                raw.sendall(pings)
        while service.state.n_live:
            held = max(held, *(peer.transport.get_write_buffer_size() for peer in peers))
            assert held < 2**17 and time.monotonic() < deadline
            time.sleep(0.1)
        with session(service) as client:
            client.send('{"type": "end"}')
            assert last(client)[0] == 1000


@pytest.mark.parametrize("message", [b"", b"\0\0"])
def test_messages_with_next_to_no_audio_hold_no_place(service, message):
    """S3: a message now and then held a place for ever."""
    with changed(service, live_idle_seconds=2.0), session(service) as client:
        deadline = time.monotonic() + 20
        with suppress(ConnectionClosed):
            while time.monotonic() < deadline:
                client.send(message)
                time.sleep(0.2)
        assert time.monotonic() < deadline
        code, error = last(client)
    assert (code, error["error"]["code"]) == (1008, "idle")


def test_a_session_ends_by_the_clock_as_by_its_audio(service):
    """S3: what comes slowly enough held a place for days."""
    with changed(service, max_live_seconds=2.0), session(service) as client:
        deadline = time.monotonic() + 20
        with suppress(ConnectionClosed):
            while time.monotonic() < deadline:
                client.send(SECOND[:640])
                time.sleep(0.3)
        assert time.monotonic() < deadline
        code, error = last(client)
    assert (code, error["error"]["code"]) == (1009, "too_long")


@pytest.mark.parametrize("opcode", [BINARY, PING])
def test_a_flood_of_small_messages_is_ended(service, opcode):
    """S2: each costs as much time as a large one."""
    flood = frame(opcode, b"") * 20_000
    with raw_session(service, 2**20) as raw:
        wait_for(lambda: service.state.n_live == 1)
        with suppress(OSError):
            for _ in range(20):
                raw.sendall(flood)
        wait_for(lambda: service.state.n_live == 0, 10)


def test_messages_of_a_few_milliseconds_are_taken(service):
    """M7: 2.5 ms at 8 kHz are 40 bytes, which were too small."""
    with session(service) as client:
        for _ in range(4000):
            client.send(bytes(40))
        client.send('{"type": "end"}')
        code, end = last(client)
    assert (code, end["type"], end["duration"]) == (1000, "end", 5.0)


def test_a_session_is_not_taken_for_a_peer_that_waits(service, monkeypatch):
    """K3: who begins neither a request nor a session is cut off, and no others."""
    configs = [o for o in gc.get_objects() if type(o) is Config]
    (config,) = [o for o in configs if getattr(o.app, "state", None) is service.state]
    monkeypatch.setattr(config, "timeout_keep_alive", 0.5)
    with (
        session(service) as client,
        socket.create_connection((service.host, service.port), timeout=5) as idle,
    ):
        with suppress(ConnectionError):
            assert not idle.recv(1)
        time.sleep(1)
        client.send('{"type": "end"}')
        assert last(client)[0] == 1000


@pytest.fixture
def quick_pings(monkeypatch):
    """Pings each 0.5 s, and 1.5 s for their answers, which a busy machine needs."""
    original = WebSocketsSansIOProtocol.__init__

    def quick(self, *args, **options):
        original(self, *args, **options)
        self.ping_interval, self.ping_timeout = 0.5, 1.5

    monkeypatch.setattr(WebSocketsSansIOProtocol, "__init__", quick)


def test_a_client_that_is_made_to_wait_is_not_dropped(service, quick_pings):
    """S12: 1011 keepalive ping timeout, since answers to pings were not read."""
    with session(service) as client:

        def speak() -> None:
            for _ in range(60):  # more than the service holds
                client.send(SECOND)
            client.send('{"type": "end"}')

        with stopped(service.engine.pid):
            speaker = threading.Thread(target=speak)
            speaker.start()
            time.sleep(4)
        speaker.join()
        code, end = last(client)
    assert (code, end["type"], end["duration"]) == (1000, "end", 60.0)


def test_a_client_that_is_dead_is_noticed(service, quick_pings):
    """S12: nothing comes of it, though it is listened to."""
    with raw_session(service):
        wait_for(lambda: service.state.n_live == 1)
        wait_for(lambda: service.state.n_live == 0, 20)


def test_closed_sessions_give_their_places_to_others(service, monkeypatch):
    """A2: refused sessions whose peers did not answer the close held all connections for 10 s."""
    monkeypatch.setattr(protocols, "most_connections", lambda: 6)
    with ExitStack() as held:
        for _ in range(20):
            raw = held.enter_context(raw_session(service, start=b"null"))
            read_until(raw, INVALID)
            with httpx.Client(base_url=service.client.base_url, trust_env=False) as other:
                assert other.get("/health/live").status_code == 200
        wait_for(lambda: not raw.recv(1), 3)  # a second after its close


def test_text_that_is_no_utf_8_is_refused_with_an_error_object(service, caplog):
    """A9: the log had a traceback, and the client only a close code."""
    for start in (START.encode(), None):
        with raw_session(service, start=start or b"\xff\xfe") as raw:
            if start:
                raw.sendall(frame(TEXT, b'{"type": "\xff"}'))
            answer = b""
            while part := raw.recv(2**12):
                answer += part
            assert b'"invalid_message"' in answer and b"is not JSON" in answer
            assert answer.endswith(INVALID)
    assert not [record for record in caplog.records if record.levelname != "INFO"]
