"""The service in process, without sockets, models or an engine: its forms and live sessions."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

from asr.transcription.transcript import Segment, Token, Transcript
from serve import app
from serve.engine.messages import Done
from serve.settings import Settings
from tests.attacks.fuzz.target import Target

_EDGE = (b"host", b"origin", b"content-encoding")
_TEXT = "今天"
_TOKENS = tuple(Token(text, i / 10, (i + 1) / 10) for i, text in enumerate(_TEXT))
_SEGMENT = Segment(0.0, 1.0, _TEXT, -1.0, "eos", (4, 5), (0.9, 0.8), _TOKENS)
_TRANSCRIPT = Transcript(_TEXT, -1.0, 1.0, ("a warning",), (_SEGMENT,))


class Job:
    """Stands for a recording in the engine: its transcript is there at once."""

    def __init__(self, model: str) -> None:
        self.model, self.events = model, asyncio.Queue[Any]()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def next(self) -> Done:
        """Return the only event."""
        return Done(0, _TRANSCRIPT, 0.0, 0.0)


class Engine:
    """Stands for the engine process."""

    ready, streaming = True, frozenset[str]()

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, model: str, *_: object, **_options: object) -> Job:
        """Return a job that is done."""
        return Job(model)


class App:
    """The application, called as uvicorn calls it."""

    def __init__(self, folder: Path) -> None:
        with patch("serve.app.EngineClient", Engine):
            self.app = app.create_app(Settings.read(bundles=(f"tiny={folder}",), device="cpu"))
        self.loop = asyncio.new_event_loop()

    def call(self, scope: dict[str, Any], received: Iterator[dict[str, Any]]) -> list[Any]:
        """Return what the application sends for a connection."""
        sent = []

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0)
            return next(received)

        async def send(message: Any) -> None:
            sent.append(message)

        base = {"http_version": "1.1", "client": ("127.0.0.1", 5000), "server": ("localhost", 8000)}
        base |= {"asgi": {"version": "3.0"}, "root_path": "", "state": {}}
        self.loop.run_until_complete(self.app({**base, **scope}, receive, send))
        return sent


def _headers(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return header lines as servers pass them on, without those that frame the body."""
    pairs = [line.partition(b":")[::2] for line in lines if b":" in line]
    framing = (b"content-length", b"transfer-encoding")
    # A server refuses control characters in headers.
    clean = [(k.strip().lower(), bytes(c for c in v.strip() if c > 31)) for k, v in pairs]
    return [(key, value) for key, value in clean if key not in framing and key.isascii()]


def _request(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the scope and the body of a request."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    method, _, url = first.decode("latin-1").partition(" ")
    path, _, query = url.partition("?")
    headers = [*_headers(lines), (b"content-length", str(len(body)).encode())]
    if len(data) % 8:  # most requests reach the form
        path = path if path.startswith("/v1/") else "/v1/audio/transcriptions"
        headers = [(b"host", b"localhost"), *(h for h in headers if h[0] not in _EDGE)]
    scope = {
        "type": "http", "method": method if method.isalpha() else "POST", "scheme": "http",
        "path": unquote(path) or "/", "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"), "headers": headers,
    }  # fmt: skip
    return scope, body


def form(folder: Path) -> Target:
    """Requests with forms, as raw HTTP: a line, headers, and a body in three parts."""
    server = App(folder)

    def run(data: bytes) -> None:
        scope, body = _request(data)
        size = len(body) // 3 + 1
        parts = [body[i : i + size] for i in range(0, len(body), size)] or [b""]
        messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        messages[-1]["more_body"] = False
        gone = iter(lambda: {"type": "http.disconnect"}, None)
        sent = server.call(scope, (m for some in (messages, gone) for m in some))
        status, content = sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:])
        assert status < 500, content
        assert status < 400 or scope["method"] == "HEAD" or json.loads(content)["error"]["message"]

    def seed(path: str, fields: dict[str, str]) -> bytes:
        start = "--b\r\nContent-Disposition: form-data; name="
        parts = [f'{start}"{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
        kind = "Content-Type: multipart/form-data; boundary=b"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n"
        file = f'{start}"file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n'
        return f"{head}{''.join(parts)}{file}--b--\r\n".encode()

    words = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    openai = {"model": "tiny", "temperature": "0.5", "language": "zh", "include[]": "logprobs"}
    seeds = [
        seed("/v1/audio/transcriptions", openai | words),
        seed("/v1/audio/transcriptions", {"model": "whisper-1", "response_format": "srt"}),
        seed("/v1/audio/transcriptions?a=b", {"model": "tiny", "stream": "true"}),
        seed("/v1/transcribe", {"model": "tiny", "stream": "1"}),
        b"GET /v1/models/tiny HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n",
    ]
    tokens = [
        b"--b\r\n", b"--b--", b"boundary=", b"; charset=utf-7", b'filename="', b"text",
        b"application/x-www-form-urlencoded", b"vtt", b"Content-Transfer-Encoding: base64",
        b"Authorization: Bearer x\r\n", b"Origin: null\r\n", b"Host: \r\n", b"%00", b"%ff", b"[]",
        b"Content-Encoding: gzip\r\n", b"_charset_", b"\r\n\r\n", b"OPTIONS ", b"HEAD ",
        b"/v1/live", b"filename*=UTF-8''%",
    ]  # fmt: skip
    return Target(seeds, run, tokens)


def _session(folder: Path, path: str) -> Callable[[bytes], None]:
    """Return what has a session of messages with lines of -- between them; text begins with {."""
    server = App(folder)

    def run(data: bytes) -> None:
        messages: list[dict[str, Any]] = [{"type": "websocket.connect"}]
        for part in data.split(b"\n--\n"):
            is_text = part[:1] in (b"{", b"[", b'"')
            content = {"text": part.decode("utf-8", "replace")} if is_text else {"bytes": part}
            messages.append({"type": "websocket.receive", **content})
        gone = iter(lambda: {"type": "websocket.disconnect", "code": 1000}, None)
        scope = {
            "type": "websocket", "scheme": "ws", "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": [(b"host", b"localhost")], "subprotocols": [],
        }  # fmt: skip
        sent = server.call(scope, (m for some in (messages, gone) for m in some))
        texts = [json.loads(m["text"]) for m in sent if m.get("text")]
        failed = [t["error"] for t in texts if t.get("error", {}).get("code") == "failed"]
        assert not failed, failed

    return run


def live(folder: Path) -> Target:
    """Messages of live sessions."""
    begin, end = b'{"sample_rate": 16000, "model": "tiny"}\n--\n', b'\n--\n{"type": "end"}'
    audio = b"\1\2" * 8000
    seeds = [begin + audio + end, begin + b"\n--\n".join([audio] * 3) + end, begin + end]
    seeds.append(b'{"sample_rate": 8000, "model": "whisper-1"}\n--\n' + audio)
    tokens = [b"\n--\n", b'{"type": "end"}', b"8000", b"96000", b'"sample_rate"', b"\n--\n" + audio]
    return Target(seeds, _session(folder, "/v1/live"), tokens)


def realtime(folder: Path) -> Target:
    """Events of OpenAI's realtime transcription."""
    buffer = '{"type": "input_audio_buffer.'
    append = f'{buffer}append", "audio": "{"AQIDBA==" * 2 + "AAAA" * 2000}"}}'
    commit, clear = f'{buffer}commit", "event_id": "e"}}', f'{buffer}clear"}}'
    input = '{"format": {"type": "audio/pcm", "rate": 8000}, "turn_detection": null}'
    update = f'{{"type": "session.update", "session": {{"audio": {{"input": {input}}}}}}}'
    older = (
        '{"type": "transcription_session.update", "session": {"input_audio_format": "g711_ulaw"}}'
    )
    sessions = ([append, commit], [update, append, append, commit], [older, append, clear, commit])
    seeds = ["\n--\n".join(session).encode() for session in sessions]
    words = [b"\n--\n", b'"server_vad"', b'"include": [', b"null", b"1e400", b"NaN", b"\\ud800"]
    events = [each.encode() for each in (update, older, commit, clear)]
    return Target(seeds, _session(folder, "/v1/realtime"), [*words, *events])
