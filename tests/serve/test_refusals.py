"""What the service refuses, in OpenAI's shape: requests, keys, what is too large, slow or much."""

import asyncio
import http.client
import io
import json
import logging
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import numpy as np
import pytest
import soundfile as sf

from serve.app import create_app
from serve.logs import JsonFormatter
from serve.middleware.access import ApiKeyMiddleware
from serve.settings import Settings
from tests.helpers import (
    MAX_BYTES,
    URL,
    beeps,
    changed,
    encode_audio,
    refused,
    running,
    stopped,
    wait_for,
)

ZIP = b"PK\x03\x04" + bytes(range(256)) * 8
WAV = ("a.wav", encode_audio(beeps(1, 0.2)))
FORM = {"content-type": "multipart/form-data; boundary=b"}


def with_rate(rate: int) -> bytes:
    wav = bytearray(encode_audio(beeps(1, 0.1)))
    wav[24:28] = rate.to_bytes(4, "little")
    return bytes(wav)


REFUSALS = [
    ([], {"model": "tiny"}, (400, "file", None)),
    ([], {"model": "tiny", "file": "not a part"}, (400, "file", None)),
    ([("file", ("", b""))], {"model": "tiny"}, (400, "file", None)),
    ([("file", WAV), ("file", WAV)], {"model": "tiny"}, (400, "file", None)),
    ([("file", WAV)], {}, (400, "model", None)),
    ([("file", WAV)], {"model": ""}, (400, "model", None)),
    ([("file", WAV), ("model", WAV)], {}, (400, "model", None)),
]
for name in ("whisper-2", "../tiny", "/etc", "http://x/y", "t\0", "\u202e", "x" * 9999):
    REFUSALS.append(([("file", WAV)], {"model": name}, (404, "model", "model_not_found")))
for field, value in [
    ("response_format", "json_verbose"), ("response_format", "diarized_json"),
    ("temperature", "2"), ("temperature", "warm"), ("temperature", "nan"), ("stream", "maybe"),
]:  # fmt: skip
    REFUSALS.append(([("file", WAV)], {"model": "tiny", field: value}, (400, field, None)))
for field, value in [("timestamp_granularities[]", "word"), ("timestamp_granularities[]", "char")]:
    REFUSALS.append(
        ([("file", WAV)], {"model": "tiny", field: value}, (400, "timestamp_granularities[]", None))
    )
REFUSALS.append(
    ([("file", WAV)], {"model": "tiny", "stream": "1", "response_format": "srt"},
     (400, "stream", None))
)  # fmt: skip
for content, status, code in [
    (b"", 400, "empty_audio"), (encode_audio(np.zeros((0, 1))), 400, "empty_audio"),
    (ZIP, 415, "unsupported_media"), (b"<html>" * 99, 415, "unsupported_media"),
    (b"\0\0\0\x1cftypM4A " + bytes(99), 415, "unsupported_media"),
    (np.random.default_rng(0).bytes(5000), 415, "unsupported_media"),
    (with_rate(0), 415, "unsupported_media"), (with_rate(10**9), 415, "unsupported_media"),
    (encode_audio(np.zeros((99, 9))), 415, "unsupported_media"),
    (encode_audio(np.zeros((99, 256))), 415, "unsupported_media"),
    (encode_audio(np.full(99, np.nan), subtype="FLOAT"), 400, "non_finite_audio"),
    (encode_audio(np.zeros(int(61 * 8e3)), 8000), 413, "too_long"),
]:  # fmt: skip
    REFUSALS.append(([("file", ("a", content))], {"model": "tiny"}, (status, "file", code)))


@pytest.mark.parametrize(("files", "fields", "error"), REFUSALS)
def test_refusals(service, files, fields, error):
    reply = service.client.post(URL, files=files or {"other": b"x"}, data=fields)
    message = refused(reply, *error)
    assert len(message) < 300 and "\u202e" not in message and "\0" not in message


def test_formats_that_only_ffmpeg_decodes_are_refused_with_what_does(service):
    """Its decoders are not as safe in the engine process as libsndfile is."""
    for content in (b"\0\0\0\x1cftypM4A " + bytes(99), b"\x1aE\xdf\xa3" + bytes(99)):
        reply = service.client.post(URL, files={"file": ("a.m4a", content)}, data={"model": "tiny"})
        message = refused(reply, 415, "file", "unsupported_media")
        assert "`asr transcribe`" in message and "ffmpeg" in message


def test_a_refusal_lists_what_is_allowed(service):
    message = refused(service.post(WAV[1], response_format="x"), 400, "response_format", None)
    assert "'x'" in message and "'verbose_json'" in message


def test_bodies_that_are_no_form(service):
    post = service.client.post
    refused(post(URL, json={"model": "tiny"}), 400, "file", None)
    headers = {"content-type": "multipart/form-data"}
    refused(post(URL, content=b"junk", headers=headers), 400, None, None)
    refused(post(URL, content=b"junk" * 99, headers=FORM), 400, None, None)
    late = b'junk\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n--b--\r\n'
    assert post(URL, content=late, headers=FORM).status_code == 400
    giant = b'--b\r\nContent-Disposition: form-data; name="' + b"x" * 2**20 + b'"\r\n\r\nx\r\n--b--'
    refused(post(URL, content=giant, headers=FORM), 400, None, None)
    many = {f"field{i}": (None, "x") for i in range(10_000)}
    refused(post(URL, files=many), 400, None, None)
    files = [("file", (f"{i}", b"x")) for i in range(1000)]
    refused(post(URL, files=files), 400, None, None)
    huge = {"prompt": (None, "x" * 2**21), "file": WAV, "model": (None, "tiny")}
    refused(post(URL, files=huge), 400, None, None)


def test_routes_methods_and_the_document(service):
    client = service.client
    for path in ("/health", "/health/live", "/health/ready"):
        assert client.get(path).json() == {"status": "ok"}
    models = client.get("/v1/models").json()
    assert models["object"] == "list" and [m["id"] for m in models["data"]] == ["tiny"]
    refused(client.get("/v1/nothing"), 404, None, None)
    for method, path, allowed in [("GET", URL, "POST"), ("DELETE", "/v1/models", "GET")]:
        wrong = client.request(method, path)
        refused(wrong, 405, None, None)
        assert wrong.headers["allow"] == allowed
    assert client.head(URL).status_code == client.options(URL).status_code == 405
    paths = client.get("/openapi.json").json()["paths"]
    assert paths.keys() >= {URL, "/v1/transcribe", "/v1/models", "/health/ready", "/metrics"}
    answer = paths[URL]["post"]["responses"]["200"]["content"]
    assert answer.keys() >= {"application/json", "text/plain", "text/event-stream", "text/vtt"}
    assert "example" in answer["application/x-subrip"]


# --- what is too large ----------------------------------------------------------------------


def test_body_limit_holds_while_the_body_arrives(service):
    message = refused(service.post(bytes(MAX_BYTES)), 413, "file", "request_too_large")
    assert f"{MAX_BYTES} bytes" in message

    def chunks() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        yield from (bytes(65536) for _ in range(160))

    reply = service.client.post(URL, content=chunks(), headers=FORM)
    refused(reply, 413, "file", "request_too_large")
    assert reply.headers["connection"] == "close"
    wait_for(lambda: service.metric("asr_held_bytes") == 0)


def test_a_declared_length_is_refused_before_the_body(service):
    with socket.create_connection((service.host, service.port)) as raw:
        raw.settimeout(10)
        headers = {**FORM, "host": "localhost", "expect": "100-continue", "content-length": 10**10}
        lines = [f"POST {URL} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        raw.sendall("\r\n".join(lines).encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_client_that_sends_all_before_it_reads_sees_the_413(service):
    old = http.client.HTTPConnection(service.host, service.port, timeout=10)
    old.request("POST", URL, bytes(30 * 2**20), FORM)
    assert old.getresponse().status == 413


@pytest.mark.parametrize("unknown_length", [False, True])
def test_an_hour_in_a_small_file_is_too_long(service, unknown_length):
    file = io.BytesIO()
    with sf.SoundFile(file, "w", 16000, 1, format="FLAC") as sound:
        for _ in range(60):
            sound.write(np.zeros(60 * 16000, np.int16))
    bomb = bytearray(file.getvalue())
    if unknown_length:
        bomb[21] &= 0xF0
        bomb[22:26] = bytes(4)
    assert len(bomb) < 300_000
    assert "60 seconds" in refused(service.post(bytes(bomb)), 413, "file", "too_long")


# --- keys, slots, time  -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tiny_bundle):
    """A service with keys."""
    with running(
        tiny_bundle, api_keys=("first-key", "second-key"), cors_origins=("https://page.example",)
    ) as service:
        yield service


KEY = {"authorization": "Bearer first-key"}
OTHER = {"authorization": "bearer second-key"}


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": ""}, {"authorization": "Bearer"}, {"authorization": "Bearer first"},
     {"authorization": "Basic first-key"}, {"authorization": "Bearer first-key second-key"},
     {"sec-websocket-protocol": "bearer.5a-G"}, {"authorization": "Bearer \u5bc6".encode()}],
)  # fmt: skip
def test_without_a_key_nothing_is_read(guarded, headers):
    for path in (URL, f"{URL}?api_key=first-key&authorization=first-key"):
        reply = guarded.client.post(path, files={"file": WAV}, headers=headers)
        message = refused(reply, 401, None, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer" and "Bearer KEY" in message
    refused(guarded.client.get("/v1/models", headers=headers), 401, None, "invalid_api_key")
    assert guarded.client.get("/health/ready").status_code == 200


@pytest.mark.parametrize("headers", [KEY, OTHER, {"authorization": "BEARER  first-key"}])
def test_with_a_key_all_is_as_without(guarded, headers):
    data = {"model": "tiny"}
    reply = guarded.client.post(URL, files={"file": WAV}, data=data, headers=headers)
    assert reply.status_code == 200, reply.text


def test_keys_and_hosts_count_behind_a_proxy_with_a_prefix_too(tiny_bundle):
    """As with Ray's route_prefix: the path has the prefix, and routes are looked up without it."""
    settings = Settings(bundles=(f"tiny={tiny_bundle}",), device="cpu", api_keys=("first-key",))
    app = create_app(settings)

    async def statuses() -> list[int]:
        asked = [
            ("localhost", "/asr/v1/models", {}), ("localhost", "/asr/v1/models", KEY),
            ("evil.example", "/asr/", KEY), ("evil.example", "/asr/health/live", {}),
        ]  # fmt: skip
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app, root_path="/asr"))
        async with app.router.lifespan_context(app), client:
            return [(await client.get(f"http://{host}{path}", headers=headers)).status_code
                    for host, path, headers in asked]  # fmt: skip

    assert asyncio.run(statuses()) == [401, 200, 403, 200]


def test_keys_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(
        "serve.middleware.access.hmac.compare_digest",
        lambda given, key: compared.append(key) or given == key,
    )
    keys = ApiKeyMiddleware(None, Settings(api_keys=("a", "b", "c")))  # type: ignore[arg-type]
    assert keys._index("Bearer a") == 0 and compared == [b"a", b"b", b"c"]


@pytest.mark.costly
def test_a_slow_upload_is_ended_and_harms_no_other(guarded):
    lines = [f"POST {URL} HTTP/1.1", "host: localhost", "content-length: 9999",
             *(f"{k}: {v}" for k, v in {**FORM, **KEY}.items()), "", ""]  # fmt: skip
    with (
        changed(guarded, upload_seconds=3.0),
        socket.create_connection((guarded.host, guarded.port), timeout=0.2) as raw,
    ):
        part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        raw.sendall("\r\n".join(lines).encode() + part)
        started, answer = time.monotonic(), b""
        assert guarded.client.get("/v1/models", headers=OTHER).status_code == 200
        while not answer and time.monotonic() - started < 30:
            raw.sendall(b"-")
            with suppress(TimeoutError):
                answer = raw.recv(4096)
        raw.settimeout(10)
        while part := raw.recv(4096):  # the body may come by itself
            answer += part
    assert answer.startswith(b"HTTP/1.1 408") and b"upload_timeout" in answer
    assert time.monotonic() - started >= 3


def test_bodies_together_have_a_limit(service):
    with changed(service, max_held_bytes=2**20):
        reply = service.post(encode_audio(beeps(1, 40)))
    refused(reply, 503, None, "busy")
    assert reply.headers["retry-after"] == "1"
    wait_for(lambda: service.metric("asr_held_bytes") == 0)


def test_full_slots_are_refused_and_accepted_requests_are_answered(guarded):
    """The engine process is stopped meanwhile, so that all wait."""

    def ask(headers):
        data = {"model": "tiny"}
        return guarded.client.post(URL, files={"file": WAV}, data=data, headers=headers)

    with (
        ThreadPoolExecutor(3) as pool,
        changed(guarded, max_requests=3, max_requests_per_client=2),
        stopped(guarded.engine.pid),
    ):
        accepted = [pool.submit(ask, KEY) for _ in range(2)]
        wait_for(lambda: guarded.metric("asr_requests_in_flight") == 2)
        too_many = ask(KEY)
        accepted.append(pool.submit(ask, OTHER))
        wait_for(lambda: guarded.metric("asr_requests_in_flight") == 3)
        full = ask(OTHER)
        assert guarded.client.get("/health/live").status_code == 200, "the event loop is free"
    refused(too_many, 429, None, "rate_limit")
    refused(full, 503, None, "busy")
    assert too_many.headers["retry-after"] == full.headers["retry-after"] == "1"
    texts = [job.result().json()["text"] for job in accepted]
    assert len(set(texts)) == 1 and texts[0]


def test_a_deadline_is_kept(service):
    with changed(service, deadline_seconds=0.5), stopped(service.engine.pid):
        reply = service.post(WAV[1])
    refused(reply, 504, None, "deadline")
    assert 'asr_errors_total{kind="deadline"} 1' in service.client.get("/metrics").text


def test_uploads_never_touch_the_disk(service, monkeypatch):
    def refuse(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", refuse)
    assert service.post(encode_audio(beeps(1, 20), 8000, "WAV", "DOUBLE")).status_code == 200


def test_pages_of_other_origins_may_call_only_if_named(guarded, service):
    asked = {"origin": "https://page.example", "access-control-request-method": "POST"}
    allowed = guarded.client.options(URL, headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    other = guarded.client.options(URL, headers={**asked, "origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    assert (
        "access-control-allow-origin" not in service.client.get("/v1/models", headers=asked).headers
    )


def test_logs_have_sizes_times_and_an_id_and_nothing_that_a_client_said(guarded):
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    logging.getLogger("serve").addHandler(handler)
    try:
        data, file = {"model": "tiny", "prompt": "a secret"}, ("private/name.wav", WAV[1])
        reply = guarded.client.post(URL, files={"file": file}, data=data, headers=KEY)
        others = [
            guarded.client.get("/v1/a-secret?api_key=first-key", headers={"x-secret": "secret"}),
            guarded.client.request("PROPFIND", "/v1/models", headers=KEY),
        ]
        ids = [each.headers["x-request-id"] for each in (reply, *others)]
        # An earlier test's last request may still be written here.
        wait_for(lambda: all(each in written.getvalue() for each in ids))
    finally:
        logging.getLogger("serve").removeHandler(handler)
    lines = map(json.loads, written.getvalue().splitlines())
    (line,) = [line for line in lines if line["request"] == ids[0]]
    assert line["audio_seconds"] == 0.2
    assert line["bytes"] > 6000 and line["status"] == 200 and line["seconds"] > 0
    said = reply.json()["text"]
    assert not re.search(f"secret|SECRET|private|first-key|{said}", written.getvalue())
