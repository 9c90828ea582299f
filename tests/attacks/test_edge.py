"""HTTP from hostile peers: pieces, heads, hosts, origins, idle connections, and what is logged."""

import encodings
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import httpx
import psutil
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from asr.errors import ConfigError
from serve.settings import Settings
from tests.helpers import (
    URL,
    Service,
    beeps,
    changed,
    encode_audio,
    read_until,
    refused,
    started,
    wait_for,
)

WAV = encode_audio(beeps(1, 0.2))
POST = (
    f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=b\r\n"
)
CHUNKED = f"{POST}transfer-encoding: chunked\r\n\r\n".encode()
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
FORM = b"".join(
    (
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n',
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n',
    )
)
UPGRADE = b"/v1/live HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
KEY = b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


def raw_reply(host: str, port: int, request: bytes) -> bytes:
    """All that comes back until the service closes the connection."""
    with socket.create_connection((host, port), timeout=10) as raw, suppress(ConnectionError):
        answer = bytearray()
        with suppress(ConnectionError):
            raw.sendall(request)
        with suppress(ConnectionError):
            while part := raw.recv(2**16):
                answer += part
    return bytes(answer)


# --- pieces ---------------------------------------------------------------------------------


def test_small_chunks_are_refused_while_health_is_answered(service):
    """S2: a body in chunks of one byte cost 1.6 s of the event loop per MB."""
    flood = CHUNKED + b"1\r\n-\r\n" * 10**6
    ask = (service.host, service.port, flood)
    floods = [threading.Thread(target=raw_reply, args=ask) for _ in range(4)]
    for thread in floods:
        thread.start()
    started_at, slowest = time.monotonic(), 0.0
    while any(thread.is_alive() for thread in floods):
        asked = time.monotonic()
        assert service.client.get("/health/live", timeout=10).status_code == 200
        slowest = max(slowest, time.monotonic() - asked)
        assert time.monotonic() - started_at < 10
        time.sleep(0.05)
    assert slowest < 1
    answer = raw_reply(service.host, service.port, flood[:20_000])
    assert answer.startswith(b"HTTP/1.1 400") and b"small chunks" in answer


def test_chunks_of_usual_sizes_are_taken(service):
    """S2: the limit is far from what clients send."""
    body = FORM + encode_audio(beeps(1, 5)) + b"\r\n--b--\r\n"
    parts = (body[i : i + 100] for i in range(0, len(body), 100))
    headers = {"content-type": "multipart/form-data; boundary=b"}
    assert service.client.post(URL, content=parts, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(
            f"{POST}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".encode(),
            id="two lengths",
        ),
        pytest.param(GET + b"x: y\r\n" * 1000 + b"\r\n", id="1000 fields"),
        pytest.param(GET + b"x: " + b"y" * 2**20, id="a field without end"),
        pytest.param(b"\r\n" * 2**17, id="a head that never begins"),
        pytest.param((GET + b"\r\n") * 1000, id="1000 requests at once"),
        pytest.param(CHUNKED + b"1\r\n-\r\n0\r\nx: " + b"y" * 2**20, id="a trailer without end"),
        pytest.param(CHUNKED + b"1;" + b"y" * 2**20, id="a chunk extension without end"),
        pytest.param(b"GET " + UPGRADE + KEY + b"content-length: 1\r\n\r\n", id="upgrade, length"),
        pytest.param(
            b"GET " + UPGRADE + KEY + b"transfer-encoding: chunked\r\n\r\n", id="upgrade, chunks"
        ),
        pytest.param(b"POST " + UPGRADE + KEY + b"\r\n", id="upgrade of a POST"),
        pytest.param(b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n", id="CONNECT"),
    ],
)
def test_malformed_requests_close_the_connection(service, request_):
    """M17: Content-Length with Transfer-Encoding was obeyed, and the connection kept."""
    assert raw_reply(service.host, service.port, request_).startswith(b"HTTP/1.1 400")
    assert service.client.get("/health/live").status_code == 200


@pytest.mark.parametrize(
    "field", [b"cookie: " + b"a" * 9000, b"cookie: " + b"a" * 50_000, b"\r\n".join([b"x: y"] * 150)]
)
def test_heads_that_no_session_may_have_are_refused(service, field):
    """K3: nothing was answered and nothing closed, and such sockets took all connections."""
    answer = raw_reply(service.host, service.port, b"GET " + UPGRADE + KEY + field + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("way", ["one write", "two writes", "chunked"])
def test_other_upgrades_are_ignored(service, way):
    """S2: Java's client and `curl --http2` offer HTTP/2; their bodies were lost."""
    offer = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
    body = FORM + WAV + b"\r\n--b--\r\n"
    length = f"content-length: {len(body)}"
    if way == "chunked":
        body, length = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), "transfer-encoding: chunked"
    head = f"{POST}{offer}{length}\r\n\r\n".encode()
    with socket.create_connection((service.host, service.port), timeout=30) as raw:
        for _ in range(2):  # the connection is kept
            if way == "two writes":
                raw.sendall(head)
                time.sleep(0.2)
                raw.sendall(body)
            else:
                raw.sendall(head + body)
            answer = read_until(raw, b"}")  # the body may come by itself
            assert answer.startswith(b"HTTP/1.1 200")


def test_uploads_that_do_not_arrive_make_room(service):
    """S4: 256 heads without bodies took all slots for a minute."""
    head = f"{POST}content-length: 1000\r\n\r\n".encode()
    with changed(service, max_requests=3), ExitStack() as held:
        silent = []
        for n in range(1, 4):
            raw = socket.create_connection((service.host, service.port), timeout=10)
            silent.append(held.enter_context(raw))
            raw.sendall(head)
            wait_for(lambda n=n: service.metric("asr_requests_in_flight") == n)
        time.sleep(1.1)
        data = {"model": "tiny"}
        assert service.client.post(URL, files={"file": WAV}, data=data).status_code == 200
        answer = silent[0].recv(4096)
        assert answer.startswith(b"HTTP/1.1 503")
        for raw in silent[1:]:
            raw.settimeout(0.1)
            with pytest.raises(TimeoutError):
                raw.recv(4096)
    wait_for(lambda: service.metric("asr_requests_in_flight") == 0)


def test_uploads_that_begin_fast_and_stall_make_room(service, monkeypatch):
    """A3: a burst of 1 MB held a slot for a minute, as its mean rate was high."""
    monkeypatch.setattr("serve.middleware.limits._MOST_SECONDS", 1.0, raising=False)
    head = f"{POST}content-length: 1000000\r\n\r\n".encode() + FORM
    with changed(service, max_requests=3), ExitStack() as held:
        for n in range(1, 4):
            raw = socket.create_connection((service.host, service.port), timeout=10)
            held.enter_context(raw).sendall(head + bytes(900_000))
            wait_for(lambda n=n: service.metric("asr_held_bytes") > n * 900_000)
        time.sleep(1.2)
        assert service.post(WAV).status_code == 200
    wait_for(lambda: service.metric("asr_requests_in_flight") == 0)
    assert service.metric("asr_held_bytes") == 0


def test_uploads_that_stall_do_not_hold_the_memory(service, monkeypatch):
    """A3: what they had sent filled `ASR_MAX_HELD_BYTES` for a minute, and all others got a 503."""
    monkeypatch.setattr("serve.middleware.limits._MOST_SECONDS", 60.0)
    head = f"{POST}content-length: 1000000\r\n\r\n".encode() + FORM
    room = 2 * (len(FORM) + 900_000)
    with changed(service, max_held_bytes=room), ExitStack() as held:
        stalled = []
        for n in range(1, 3):
            raw = socket.create_connection((service.host, service.port), timeout=10)
            stalled.append(held.enter_context(raw))
            raw.sendall(head + bytes(900_000))
            wait_for(lambda n=n: service.metric("asr_held_bytes") == n * room / 2)
        assert "memory" in refused(service.post(WAV), 503, None, "busy")  # they are not slow yet
        for order, upload in enumerate(service.state.load._uploads):
            upload.fast_until = float(order)  # long ago
        assert service.post(WAV).status_code == 200
        assert stalled[0].recv(4096).startswith(b"HTTP/1.1 503")
        stalled[1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            stalled[1].recv(4096)
    wait_for(lambda: service.metric("asr_held_bytes") == 0)


# --- forms ----------------------------------------------------------------------------------


def _in_charset(service: Service, charset: str, field: bytes = b"") -> httpx.Response:
    part = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n' + field + b"\r\n"
    content = part + FORM + WAV + b"\r\n--b--\r\n"
    headers = {"content-type": f"multipart/form-data; boundary=b; {charset}"}
    return service.client.post(URL, content=content, headers=headers)


@pytest.mark.parametrize("codec", ["punycode", "idna", "utf-7", "zip", "x" * 900, ";" * 60_000])
def test_forms_in_other_charsets_are_refused_at_once(service, codec):
    """A1: some codecs stopped all others for seconds, and each name stayed in memory."""
    reply = _in_charset(service, f'charset="{codec}"', b"e28h" + b"a" * 131_000)
    assert "in utf-8" in refused(reply, 400, None, None)
    assert "x" * 900 not in encodings._cache


@pytest.mark.parametrize("charset", ["utf-8", "UTF8", "utf_8", '"us-ascii"', "ISO-8859-1"])
def test_forms_in_usual_charsets_are_read(service, charset):
    """A1: clients say so."""
    assert _in_charset(service, f"charset={charset}", "é".encode()).status_code == 200


# --- hosts and origins ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "origin", "code"),
    [
        ("evil.example", None, "host_not_allowed"),
        ("localhost.evil.example", None, "host_not_allowed"),
        ("127.0.0.1.evil.example", None, "host_not_allowed"),
        ("evil@localhost", None, "host_not_allowed"),
        ("evil.example", "http://evil.example", "host_not_allowed"),
        (None, "http://evil.example", "origin_not_allowed"),
        (None, "null", "origin_not_allowed"),
        ("localhost:8000", "http://localhost:8001", "origin_not_allowed"),
        ("localhost:8000", "http://localhost", "origin_not_allowed"),
        ("localhost", None, None),
        ("localhost:", None, None),
        ("localhost.", None, None),
        ("localhost.:8000", "http://localhost.:8000", None),
        ("evil.example.", None, "host_not_allowed"),
        ("LOCALHOST:8000", "http://localhost:8000", None),
        ("[::1]:8000", "http://[::1]:8000", None),
        ("192.168.1.5", "https://192.168.1.5", None),
        ("192.168.1.5:443", "https://192.168.1.5", None),
    ],
)
def test_other_hosts_and_origins_are_refused(service, host, origin, code):
    """S4: any page in a visitor's browser could use the service and read its models' names."""
    given = {"host": host or f"127.0.0.1:{service.port}", "origin": origin}
    headers = {name: value for name, value in given.items() if value}
    for path in ("/v1/models", "/", "/docs", "/metrics", "/openapi.json"):
        reply = service.client.get(path, headers=headers)
        assert (reply.status_code == 403) == bool(code), path
        if code:
            assert "tiny" not in refused(reply, 403, None, code)
    reply = service.client.post(URL, files={"file": WAV}, data={"model": "tiny"}, headers=headers)
    assert reply.status_code == (403 if code else 200)
    if code:
        setting = {
            "host_not_allowed": "ASR_ALLOWED_HOSTS",
            "origin_not_allowed": "ASR_CORS_ORIGINS",
        }
        assert setting[code] in refused(reply, 403, None, code)
    for path in ("/health", "/health/live", "/health/ready"):
        assert service.client.get(path, headers=headers).status_code == 200


def test_hosts_and_origins_that_are_named_may_call(service):
    """S4: the two settings hold for HTTP and WebSocket alike."""
    page = "https://page.example"
    with changed(service, allowed_hosts=("Asr.example", "asr"), cors_origins=(page,)):
        base = f"{service.host}:{service.port}"
        for host, origin, status in [
            ("asr.example", None, 200), ("asr:8000", page, 200), (base, page, 200),
            ("other.example", page, 403), ("asr", "https://asr.example", 403),
        ]:  # fmt: skip
            headers = {"host": host, **({"origin": origin} if origin else {})}
            assert service.client.get("/v1/models", headers=headers).status_code == status
        with connect(f"ws://{base}/v1/live", origin=page, proxy=None):
            pass
        with pytest.raises(InvalidStatus) as caught:
            connect(f"ws://{base}/v1/live", origin="https://other.example", proxy=None)
        assert caught.value.response.status_code == 403
        assert b"ASR_CORS_ORIGINS" in (caught.value.response.body or b"")


@pytest.mark.parametrize("keys", ["", " ", ",", " , "])
def test_a_setting_of_keys_that_holds_none_is_refused(keys, monkeypatch):
    """S11: the service ran without keys."""
    monkeypatch.setenv("ASR_API_KEYS", keys)
    with pytest.raises(ConfigError, match=r"^ASR_API_KEYS: it holds no key: .*unset"):
        Settings.read(bundles="/a")
    monkeypatch.delenv("ASR_API_KEYS")
    assert not Settings.read(bundles="/a").api_keys


def test_the_document_loads_nothing_from_elsewhere(service):
    """M1: /docs ran scripts of another host beside the key of the page."""
    reply = service.client.get("/docs")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "<script" not in reply.text and "//" not in reply.text.replace("</", "")
    for path in service.client.get("/openapi.json").json()["paths"]:
        assert path in reply.text
    assert "response_format" in reply.text
    assert service.client.get("/redoc").status_code == 404


# --- descriptors ----------------------------------------------------------------------------


@pytest.mark.costly
def test_idle_connections_neither_stop_the_service_nor_flood_its_log(tiny_bundle):
    """S5: with no descriptor left, health was dead, 87,181 lines were logged, no engine started."""
    limit = ("prlimit", "--nofile=64")
    with started(tiny_bundle, before=limit) as (server, address), ExitStack() as held:
        where, log = ("127.0.0.1", int(address.rpartition(":")[2])), list[str]()
        reader = threading.Thread(target=lambda: log.extend(server.stderr))
        reader.start()
        (engine,) = psutil.Process(server.pid).children()
        client = held.enter_context(httpx.Client(base_url=address, trust_env=False, timeout=20))
        for n in range(70):  # while none is free, the service accepts a few a second
            idle = held.enter_context(socket.create_connection(where))
            if n % 2:
                with suppress(ConnectionError):
                    idle.sendall(b"GET / HTTP/1.1\r\n")
        assert client.get("/health/live").status_code == 200
        for _ in range(20):  # answered at once, but waited for
            late = held.enter_context(socket.create_connection(where))
            late.sendall(GET + b"content-length: 1\r\n\r\n")
        with httpx.Client(base_url=address, trust_env=False, timeout=20) as other:
            time.sleep(0.3)
            assert other.get("/health/live").status_code == 200
        engine.kill()
        wait_for(lambda: client.get("/health/ready").status_code == 503)
        wait_for(lambda: client.get("/health/ready").status_code == 200, 120)
        held.close()
        with httpx.Client(base_url=address, trust_env=False, timeout=20) as other:
            assert other.get("/health/live").status_code == 200
        server.terminate()
        reader.join()
    assert all(json.loads(line) for line in log)
    assert len([line for line in log if "/health" not in line]) < 30
    assert not any("traceback" in line for line in log)


# --- a service that ends, and its log -------------------------------------------------------


@dataclass
class Ended:
    """What a real process answered and wrote before it ended by SIGHUP."""

    upload: bytes
    ready: int
    exit_code: int
    log: str


@pytest.fixture(scope="module")
def ended(tiny_bundle) -> Iterator[Ended]:
    """A service that is used with secrets, and stopped while an upload is under way."""
    keys, query = "SECRETKEY,other", "?api_key=SECRETKEY&patient=SECRETBOB"
    header = {"authorization": "Bearer SECRETKEY"}
    options = {"ASR_API_KEYS": keys, "ASR_GRACE_SECONDS": "6"}
    before = ("env", "--default-signal=HUP")  # tests may run under nohup
    with started(tiny_bundle, before=before, **options) as (server, address):
        live = address.replace("http", "ws") + "/v1/live" + query
        with connect(live, additional_headers=header, proxy=None) as session:
            session.send('{"sample_rate": 16000, "model": "tiny"}')
            session.send(bytes(3200))
            session.send('{"type": "end"}')
            assert [json.loads(text)["type"] for text in session][-1] == "end"
        for options in ({}, {"origin": "http://SECRETBOB.example", "additional_headers": header}):
            with pytest.raises(InvalidStatus):
                connect(live, proxy=None, **options)
        with httpx.Client(base_url=address, trust_env=False, headers=header) as client:
            for host in ("localhost", "SECRETBOB.example"):
                client.get(f"/v1/models/SECRETBOB{query}", headers={"host": host})
            port = int(address.rpartition(":")[2])
            raw_reply("127.0.0.1", port, b"GET /SECRETBOB HTTP/7\r\nSECRETKEY\r\n\r\n")
            headers = {"content-type": "multipart/form-data; boundary=b"}
            assert client.post(URL, content=b"--b\r\n\0: x", headers=headers).status_code == 400
            with socket.create_connection(("127.0.0.1", port), timeout=20) as upload:
                length = "authorization: Bearer SECRETKEY\r\ncontent-length: 9999\r\n\r\n"
                upload.sendall(f"{POST}{length}--b\r\n".encode())
                wait_for(lambda: "in_flight 1.0" in client.get("/metrics").text)
                server.send_signal(signal.SIGHUP)
                wait_for(lambda: client.get("/health/live").status_code == 200)
                wait_for(lambda: client.get("/health/ready").status_code == 503)
                ready = client.get("/health/ready").status_code
                answer = bytearray()
                while part := upload.recv(4096):
                    answer += part
        log = server.stderr.read()
        yield Ended(bytes(answer), ready, server.wait(20), log)


def test_sighup_drains(ended):
    """M15: it ended the service at once."""
    assert ended.ready == 503 and ended.exit_code == 0


def test_an_unfinished_upload_gets_a_503_when_grace_ends(ended):
    """M16: its connection was closed, with a traceback in the log."""
    assert ended.upload.startswith(b"HTTP/1.1 503") and b'"unavailable"' in ended.upload
    assert "raceback" not in ended.log and '"level": "error"' not in ended.log


def test_no_log_has_queries_addresses_or_keys(ended):
    """S7: uvicorn's own lines had the address and the query of each WebSocket."""
    for line in ended.log.splitlines():
        assert json.loads(line)
        assert not re.search(r"SECRET|127\.0\.0\.1|api_key=|patient|example", line, re.I), line


def test_sockets_are_in_the_log_as_requests_are(ended):
    """M18: neither sessions nor refused sockets had a line."""
    lines = [json.loads(line) for line in ended.log.splitlines()]
    asked = [line for line in lines if line["message"] == "request"]
    (session,) = [line for line in asked if line["status"] == 101]
    assert session["route"] == "/v1/live" and session["audio_seconds"] == 0.1
    assert session["bytes"] >= 3200 and session["request"]
    errors = {(line["status"], line.get("error")) for line in asked}
    assert {(401, "invalid_api_key"), (403, "origin_not_allowed")} <= errors
