"""The service over a real socket: OpenAI's shape, the library's texts, and limits that hold."""

import http.client
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import soundfile as sf
import torch
import uvicorn
from fastapi import FastAPI

import asr
from asr.bundle import Bundle
from asr.cli import main
from asr.config import Config
from asr.errors import BundleError
from asr.recognizer import Recognizer
from asr.tokenizer import Tokenizer
from serve.app import create_app

URL = "/v1/audio/transcriptions"
MAX_BYTES, MAX_SECONDS = 3 * 2**20, 60.0
ZIP = b"PK\x03\x04" + bytes(range(256)) * 8


def tones(seed: int, seconds: float = 0.7, rate: int = 16000, channels: int = 1) -> np.ndarray:
    """Beeps over noise, which a model with random weights turns into a text of their own."""
    rng, time_N = np.random.default_rng(seed), np.arange(round(seconds * rate)) / rate
    beeps = np.sin(2 * np.pi * (200 + 97 * seed) * time_N) * (np.sin(20 * time_N + seed) > 0)
    wave = 0.5 * beeps + 0.01 * rng.standard_normal(len(time_N))
    return np.stack([wave] * channels, axis=1)


def encoded(wave: np.ndarray, rate: int = 16000, format: str = "WAV", subtype: str = "") -> bytes:
    file = io.BytesIO()
    sf.write(file, wave, rate, format=format, subtype=subtype or None)
    return file.getvalue()


@contextmanager
def running(app: FastAPI) -> Iterator[httpx.Client]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            base = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=base, timeout=60, trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    config = Config.model_validate(
        {
            "data": {"train": "train.jsonl.gz", "dev": "dev.jsonl.gz"},
            "features": {"kind": "log_mel", "n_mels": 40},
            "model": {
                "d_model": 32, "d_inner": 64, "n_heads": 2, "ctc_weight": 0.3,
                "projection": {"kind": "low_rank", "rank": 8},
                "frontend": {"kind": "vgg", "channels": [4, 4]},
            },
            "search": {"beam_size": 2, "ctc_weight": 0.5},
        }
    )  # fmt: skip
    tokenizer = Tokenizer.train(["今天天气很好我们去公园", "打开窗户三点十分"], config.tokenizer)
    folder = tmp_path_factory.mktemp("exp") / "tiny"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more only get in each other's way in a model as small as this
    torch.manual_seed(4)
    Bundle.create(config, tokenizer).save(folder, "a card")
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def library(bundle: Path) -> Recognizer:
    return asr.load(bundle, "cpu")


@pytest.fixture(scope="module")
def client(bundle: Path) -> Iterator[httpx.Client]:
    with running(create_app(bundle, "cpu", MAX_BYTES, MAX_SECONDS)) as client:
        yield client


def post(client: httpx.Client, file: bytes, **fields: str) -> httpx.Response:
    return client.post(URL, files={"file": ("a.wav", file)}, data={"model": "tiny", **fields})


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


# --- texts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "channels", "kind"),
    [
        (16000, 1, "WAV PCM_16"), (8000, 1, "WAV ULAW"), (44100, 2, "WAV PCM_24"),
        (192000, 6, "WAV FLOAT"), (16000, 1, "FLAC PCM_16"), (22050, 2, "FLAC PCM_24"),
        (48000, 1, "OGG VORBIS"), (16000, 1, "MP3 MPEG_LAYER_III"),
    ],
)  # fmt: skip
def test_text_is_the_librarys(client, library, rate, channels, kind):
    recording = encoded(tones(rate, 0.6, rate, channels), rate, *kind.split())
    expected = library.transcribe(io.BytesIO(recording))
    reply = post(client, recording)
    assert reply.status_code == 200, reply.text
    answer = {"text": expected.text, "usage": {"type": "duration", "seconds": expected.duration}}
    if expected.warnings:
        answer["warnings"] = list(expected.warnings)
    assert expected.text and reply.json() == answer
    text = post(client, recording, response_format="text")
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert text.text == expected.text


def test_what_other_clients_send_too_is_accepted(client, library):
    wave = encoded(tones(3))
    fields = {
        "model": "tiny", "language": "zh", "prompt": "公园", "temperature": "0.2",
        "stream": "false", "chunking_strategy": "auto", "include[]": "logprobs", "hotwords": "",
    }  # fmt: skip
    expected = {"text": library.transcribe(io.BytesIO(wave)).text}
    expected["usage"] = {"type": "duration", "seconds": 0.7}
    for name in ("../../etc/passwd", "/etc/passwd", "x" * 4000, "\u202egpj.exe", "a\r\nX: y", "a"):
        reply = client.post(
            URL,
            files={"file": (name, wave, "application/octet-stream")},
            data=fields,
            headers={"authorization": "Bearer whatever"},
        )
        assert reply.json() == expected


def test_short_and_cut_recordings_are_answered(client):
    assert post(client, encoded(np.zeros((1, 1)))).json()["text"] == ""
    cut = post(client, encoded(tones(5))[:-4000]).json()
    assert cut["text"] and "truncated" in cut["warnings"][0]


def test_twenty_at_once_get_their_own_texts(client, library):
    waves = [encoded(tones(i, 0.4 + 0.04 * i)) for i in range(20)]
    expected = [library.transcribe(io.BytesIO(wave)).text for wave in waves]
    assert len(set(expected)) >= 15
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda wave: post(client, wave).json()["text"], waves))
    assert replies == expected


# --- refusals -------------------------------------------------------------------------------

WAV = ("a.wav", encoded(tones(1, 0.2)))


REFUSALS = [
    ([], {"model": "tiny"}, (400, "file", None)),
    ([], {"model": "tiny", "file": "not a part"}, (400, "file", None)),
    ([("file", ("", b""))], {"model": "tiny"}, (400, "file", None)),
    ([("file", WAV), ("file", WAV)], {"model": "tiny"}, (400, "file", None)),
    ([("file", WAV)], {}, (400, "model", None)),
    ([("file", WAV)], {"model": ""}, (400, "model", None)),
    ([("file", WAV), ("model", WAV)], {}, (400, "model", None)),
]
for name in ("whisper-1", "../tiny", "/etc", "http://x/y", "t\0", "\u202e", "x" * 9999):
    REFUSALS.append(([("file", WAV)], {"model": name}, (404, "model", "model_not_found")))
for field, value in [
    ("response_format", "srt"), ("response_format", "json_verbose"), ("temperature", "2"),
    ("temperature", "warm"), ("stream", "true"), ("timestamp_granularities[]", "word"),
]:  # fmt: skip
    REFUSALS.append(([("file", WAV)], {"model": "tiny", field: value}, (400, field, None)))
for content, status, code in [
    (b"", 400, "empty_audio"), (encoded(np.zeros((0, 1))), 400, "empty_audio"),
    (ZIP, 415, "unsupported_media"), (b"<html>" * 99, 415, "unsupported_media"),
    (encoded(np.full(99, np.nan), subtype="FLOAT"), 400, "non_finite_audio"),
    (encoded(np.zeros(int(61 * 8e3)), 8000), 413, "too_long"),
]:  # fmt: skip
    REFUSALS.append(([("file", ("a", content))], {"model": "tiny"}, (status, "file", code)))


@pytest.mark.parametrize(("files", "fields", "error"), REFUSALS)
def test_refusals(client, files, fields, error):
    reply = client.post(URL, files=files or {"other": b"x"}, data=fields)
    message = refused(reply, *error)
    assert len(message) < 300 and "\u202e" not in message and "\0" not in message
    if fields.get("response_format") == "srt":
        assert "'srt'" in message and "'json' or 'text'" in message


def test_bodies_that_are_no_form(client):
    refused(client.post(URL, json={"model": "tiny"}), 400, "file", None)
    headers = {"content-type": "multipart/form-data"}
    refused(client.post(URL, content=b"junk", headers=headers), 400, None, None)
    headers = {"content-type": "multipart/form-data; boundary=x"}
    refused(client.post(URL, content=b"junk" * 99, headers=headers), 400, None, None)
    many = {f"field{i}": (None, "x") for i in range(10_000)}
    refused(client.post(URL, files=many), 400, None, None)
    huge = {"prompt": (None, "x" * 2**21), "file": WAV, "model": (None, "tiny")}
    refused(client.post(URL, files=huge), 400, None, None)


def test_routes_methods_and_the_document(client, bundle):
    assert client.get("/health").json() == {"status": "ok"}
    models = client.get("/v1/models").json()
    assert models["object"] == "list" and [m["id"] for m in models["data"]] == [bundle.name]
    assert models["data"][0]["object"] == "model" and models["data"][0]["created"] > 0
    refused(client.get("/v1/nothing"), 404, None, None)
    wrong = client.get(URL)
    refused(wrong, 405, None, None)
    assert wrong.headers["allow"] == "POST"
    paths = client.get("/openapi.json").json()["paths"]
    assert paths.keys() == {URL, "/v1/models", "/health"}
    assert paths[URL]["post"]["responses"].keys() == {"200", "4XX", "5XX"}
    assert paths[URL]["post"]["requestBody"]["content"].keys() == {"multipart/form-data"}


# --- limits ---------------------------------------------------------------------------------


FORM = {"content-type": "multipart/form-data; boundary=b"}


def test_body_limit_holds_while_the_body_arrives(client):
    message = refused(post(client, bytes(MAX_BYTES)), 413, "file", "request_too_large")
    assert "3145728 bytes" in message

    def chunks() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        yield from (bytes(65536) for _ in range(160))

    reply = client.post(URL, content=chunks(), headers=FORM)
    refused(reply, 413, "file", "request_too_large")
    assert reply.headers["connection"] == "close"
    assert client.get("/health").status_code == 200


def test_a_declared_length_is_refused_before_the_body(client):
    with socket.create_connection((client.base_url.host, client.base_url.port)) as raw:
        raw.settimeout(3)
        headers = {**FORM, "host": "x", "expect": "100-continue", "content-length": 10**10}
        lines = [f"POST {URL} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        raw.sendall("\r\n".join(lines).encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_client_that_sends_all_before_it_reads_sees_the_413(client):
    old = http.client.HTTPConnection(client.base_url.host, client.base_url.port, timeout=10)
    old.request("POST", URL, bytes(30 * 2**20), FORM)
    assert old.getresponse().status == 413


def test_an_hour_in_a_small_file_is_too_long(client):
    bomb = io.BytesIO()
    with sf.SoundFile(bomb, "w", 16000, 1, format="FLAC") as file:
        for _ in range(60):
            file.write(np.zeros(60 * 16000, np.int16))
    assert len(bomb.getvalue()) < 300_000
    started = time.monotonic()
    message = refused(post(client, bomb.getvalue()), 413, "file", "too_long")
    assert "60 seconds" in message and time.monotonic() - started < 5


# --- the worker -----------------------------------------------------------------------------


def stub(monkeypatch: pytest.MonkeyPatch, transcribe: Callable[..., object]) -> None:
    monkeypatch.setattr(asr, "load", lambda *_: SimpleNamespace(transcribe=transcribe))


def test_decoding_is_one_by_one_and_leaves_the_loop_free(monkeypatch, tmp_path):
    go, begun = threading.Event(), []

    def transcribe(file, max_seconds):
        begun.append(max_seconds)
        assert go.wait(20)
        return SimpleNamespace(text=file.read().decode(), duration=1.0, warnings=())

    stub(monkeypatch, transcribe)
    with running(create_app(tmp_path / "tiny" / "..")) as client, ThreadPoolExecutor(5) as pool:
        texts = [f"text {i}" for i in range(5)]
        fields = {"model": tmp_path.name}
        replies = [pool.submit(post, client, text.encode(), **fields) for text in texts]
        deadline = time.monotonic() + 10
        while not begun and time.monotonic() < deadline:
            time.sleep(0.01)
        for _ in range(5):
            started = time.monotonic()
            assert client.get("/health").status_code == 200
            assert time.monotonic() - started < 1
        assert begun == [1800]
        go.set()
        assert [reply.result().json()["text"] for reply in replies] == texts


def test_a_bug_is_a_500_that_tells_nothing(monkeypatch, tmp_path):
    def transcribe(file, max_seconds):
        raise RuntimeError("secret")

    stub(monkeypatch, transcribe)
    with running(create_app(tmp_path)) as client:
        reply = post(client, b"x", model=tmp_path.name)
    assert "secret" not in refused(reply, 500, None, None)


def test_serve_leaves_torch_to_the_library():
    code = "import sys, serve.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the command ----------------------------------------------------------------------------


def break_bundle(folder: Path, kind: str) -> None:
    weights = folder / "model.safetensors"
    if kind == "missing":
        shutil.rmtree(folder)
    elif kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    else:
        (folder / "tokenizer.model").write_bytes(b"someone else's")


@pytest.mark.parametrize("kind", ["missing", "truncated", "foreign"])
def test_a_broken_bundle_is_refused_at_the_start(bundle, tmp_path, monkeypatch, capsys, kind):
    folder = tmp_path / "broken"
    shutil.copytree(bundle, folder)
    break_bundle(folder, kind)
    with pytest.raises(BundleError):
        create_app(folder)
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: pytest.fail("the port was opened"))
    monkeypatch.setattr(sys, "argv", ["asr", "serve", str(folder)])
    with pytest.raises(SystemExit) as exit_:
        main()
    told = capsys.readouterr().err
    assert exit_.value.code == 4
    assert told.count("\n") == 1 and str(folder) in told and "Traceback" not in told


def ask(address: str, folder: Path) -> dict[str, object]:
    """What curl, typed as in the README, prints; httpx where there is no curl."""
    if not shutil.which("curl"):
        form = {"files": {"file": (folder / "a.wav").open("rb")}, "data": {"model": "tiny"}}
        return httpx.post(f"http://{address}", trust_env=False, timeout=60, **form).json()
    curl = ["curl", "--noproxy", "*", "-F", "file=@a.wav", "-F", "model=tiny", address]
    return json.loads(subprocess.run(curl, cwd=folder, capture_output=True, check=True).stdout)


def test_the_command_and_curl_give_what_transcribe_gives(bundle, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.wav").write_bytes(encoded(tones(7)))
    monkeypatch.setattr(sys, "argv", ["asr", "transcribe", str(bundle), str(tmp_path / "a.wav")])
    with pytest.raises(SystemExit):
        main()
    expected = capsys.readouterr().out.strip()
    command = [sys.executable, "-c", "from asr.cli import main; main()", "serve", str(bundle)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--port", "0"], stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        try:
            lines = iter(server.stderr.readline, "")
            port = next(m[1] for line in lines if (m := re.search(r"http://127.+:(\d+)", line)))
            answer = ask(f"localhost:{port}{URL}", tmp_path)
        finally:
            server.terminate()
    assert expected and answer["text"] == expected
