"""The client with services that are full, of another kind, or hostile."""

import gzip
import io
import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from pathlib import Path

import pytest

from asr.errors import AsrError, AudioError, ConfigError
from asr.transcription import jobs, remote
from asr.transcription.jobs import find_tasks
from tests.helpers import beeps, encode_audio, run_cli

MODELS = json.dumps({"data": [{"id": "tiny"}]}).encode()
Script = tuple[int, dict[str, str], bytes]


class Server(ThreadingHTTPServer):
    """Answers GET with a list of models and each POST by the next line of a script."""

    def __init__(self, script: list[Script], seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        # The end of patience in a test that fails.
        self.script: Iterator[Script] = chain(script[:-1], repeat(script[-1], 40), repeat(STOP))
        self.seconds, self.n_posts = seconds, 0
        self.encodings: set[str | None] = set()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.answer(200, {}, MODELS)

    def do_POST(self) -> None:
        self.server.encodings.add(self.headers["accept-encoding"])
        n_bytes = int(self.headers["content-length"])
        if len(self.rfile.read(n_bytes)) < n_bytes:
            return  # the client has left
        self.server.n_posts += 1
        time.sleep(self.server.seconds)
        self.answer(*next(self.server.script))

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client has left
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        pass


STOP: Script = (400, {}, b"")
Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Server] = []

    def start(*script: Script, seconds: float = 0.0) -> Server:
        servers.append(Server(list(script), seconds))
        threading.Thread(target=servers[-1].serve_forever, args=(0.05,)).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "a.wav"
    path.write_bytes(encode_audio(beeps(1)))
    return path


def ask(server: Server, recording: Path, format: str = "txt") -> str | AudioError:
    tasks = find_tasks([str(recording)], None, format)
    ((_, result),) = remote.ask_all(tasks, server.url, None, format, 1, float)
    return result


def ok(body: bytes, **headers: str) -> Script:
    return 200, headers, body


@pytest.mark.parametrize("wanted", ["0", "Wed, 21 Oct 2015 07:28:00 GMT", "-5", "٠"])
def test_a_full_service_is_asked_with_growing_pauses_for_a_limited_time(
    serve, recording, monkeypatch, wanted
) -> None:
    """S9: neither Retry-After: 0 nor a past date makes a loop, and the patience is of wall time."""
    monkeypatch.setattr(remote, "_PATIENCE", 2.5)
    server = serve((503, {"retry-after": wanted} if wanted.isascii() else {}, b""), seconds=0.3)
    with pytest.raises(AsrError, match="does not accept more work"):
        ask(server, recording)
    assert server.n_posts == 2


def test_the_clock_of_the_client_does_not_matter(serve, recording) -> None:
    """S9, clocks: a date in Retry-After is compared with the Date of the service."""
    for hours in (-3, 3):
        sent = datetime.now(UTC) + timedelta(hours=hours)
        dates = {"date": sent, "retry-after": sent + timedelta(seconds=1)}
        headers = {name: format_datetime(date, usegmt=True) for name, date in dates.items()}
        begun = time.monotonic()
        assert ask(serve((503, headers, b""), ok(b"a text")), recording) == "a text\n"
        assert 0.9 < time.monotonic() - begun < 5


def test_subtitles_of_any_clock_become_a_table(serve, recording) -> None:
    """M8: SRT without hours is read; a text may hold empty lines and tabs."""
    srt = b"1\r\n00:01,500 --> 1:00:02.25\r\na\tb\r\n\r\nc\r\n\r\n2\r\n00:00:03,000 --> 00:04\r\nd"
    assert ask(serve(ok(srt)), recording, "tsv") == (
        "start\tend\ttext\n1500\t3602250\ta b c\n3000\t4000\td\n"
    )
    assert ask(serve(ok(b"")), recording, "tsv") == "start\tend\ttext\n"


@pytest.mark.parametrize("body", [b"<html>", b"1\nsoon --> later\na\n\n", b"1 --> 2\n" * 3])
def test_subtitles_of_another_kind_are_reported(serve, recording, body) -> None:
    """M8: times that are none are a sentence."""
    with pytest.raises(ConfigError, match="OpenAI's shape"):
        ask(serve(ok(body)), recording, "tsv")


@pytest.mark.parametrize(
    "body",
    [
        b"00:00:00,000 --> 00:00:01,000\nab\n" * 14_000,
        b"1\n00:00:00,000 --> 00:00:01,000\nab\n\n" * 14_000,
        b"\n" * 500_000,
        b"a" * 500_000,
    ],
    ids=["no blank lines", "blank lines", "newlines", "one line"],
)
def test_half_a_megabyte_of_subtitles_takes_a_moment(serve, recording, body) -> None:
    """M8: the table is made in linear time."""
    server, begun = serve(ok(body)), time.thread_time()
    try:
        ask(server, recording, "tsv")
    except ConfigError as error:
        assert "OpenAI's shape" in str(error)
    assert time.thread_time() - begun < 2


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 50_000, b"[1]", b"{", b"1" * 5000])
def test_json_of_another_kind_is_reported(serve, recording, body) -> None:
    """M8: JSON that is nested too deeply, or no object, is a sentence."""
    with pytest.raises(ConfigError, match="OpenAI's shape"):
        ask(serve(ok(body)), recording, "json")
    with pytest.raises(ConfigError, match="answered 418"):
        ask(serve((418, {}, body)), recording)


@pytest.mark.parametrize("value", [b"NaN", b"-Infinity", b"1e999"])
def test_numbers_that_json_does_not_have_are_not_stored(serve, recording, value) -> None:
    """M6: Python reads and writes them, other programs do not."""
    with pytest.raises(ConfigError, match="OpenAI's shape"):
        ask(serve(ok(b'{"text": "x", "duration": %s}' % value)), recording, "json")


def test_half_a_character_is_no_models_name(serve, recording, monkeypatch) -> None:
    """A8: a service's name of a model, or the user's, is sent in UTF-8."""
    monkeypatch.setattr(sys.modules[__name__], "MODELS", b'{"data": [{"id": "\\ud800"}]}')
    with pytest.raises(ConfigError, match=r"name '\\ud800' is not Unicode: choose another"):
        ask(serve(ok(b"x")), recording)


def test_half_a_character_is_written_as_json_escapes_it(serve, recording) -> None:
    """M8: what is no UTF-8 neither fails nor is lost."""
    result = ask(serve(ok(b'{"text": "\\ud800 \xe4\xbd\xa0"}')), recording, "json")
    assert json.loads(str(result).encode()) == {"text": "\ud800 你"}
    strange = {"content-type": "text/plain; charset=idna"}
    assert ask(serve((200, strange, b"\xff")), recording) == "\ufffd\n"


def test_a_response_without_end_is_given_up(serve, recording, monkeypatch) -> None:
    """M8: a response has a limit."""
    monkeypatch.setattr(remote, "_MAX_REPLY", 2**20, raising=False)
    with pytest.raises(ConfigError, match="more than 1 MiB"):
        ask(serve(ok(bytes(2**21))), recording)


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "Deflate", "identity, br"])
def test_a_compressed_response_is_not_unpacked(serve, recording, encoding) -> None:
    """S8: gzip of gzip makes gigabytes of kilobytes before the limit can see them."""
    packed = gzip.compress(gzip.compress(bytes(2**20)))
    with pytest.raises(ConfigError, match=f"answers in {encoding.lower()}, though no"):
        ask(serve((200, {"content-encoding": encoding}, packed)), recording)
    plain = serve((200, {"content-encoding": "identity"}, b"a text"))
    assert ask(plain, recording) == "a text\n"
    assert plain.encodings == {"identity"}


def test_a_reply_does_not_name_another_file(serve, recording) -> None:
    """S8: in JSON on standard output, `file` is the recording."""
    server = serve(ok(b'{"file": "other.wav", "text": "a"}'))
    result = run_cli("transcribe", recording, "--format", "json", "--server", server.url)
    assert json.loads(result.stdout) == {"file": str(recording), "text": "a"}, result.stderr


def test_a_redirect_is_told_and_not_followed(serve, recording) -> None:
    """M8: neither the recording nor the key goes to another address."""
    other = serve(ok(b"stolen"))
    server = serve((307, {"location": f"{other.url}/{'x' * 5000}"}, b""))
    with pytest.raises(ConfigError, match=f"leads to {other.url}") as caught:
        ask(server, recording)
    assert other.n_posts == 0 and len(str(caught.value)) < 600


@pytest.mark.parametrize("size", [2**20, 2**22], ids=["truncated", "growing"])
def test_a_recording_that_changes_while_it_is_sent_is_an_error_of_its_own(
    serve, recording, monkeypatch, size
) -> None:
    """Files that change: the job does not wait two minutes for one, and does not end."""

    class Changing(io.FileIO):
        def read(self, n: int = -1) -> bytes:
            os.truncate(recording, size)
            return super().read(n)

    recording.write_bytes(bytes(2**21))
    monkeypatch.setattr(jobs, "open_regular", Changing)
    result = ask(serve(ok(b"text")), recording)
    assert isinstance(result, AudioError) and "changed while it was sent" in str(result)


def test_names_and_texts_of_strangers_do_not_drive_a_terminal(serve, tmp_path) -> None:
    """M8: control characters are escaped on a terminal, in names, texts and error messages."""
    evil = "\x1b]0;owned\x07"
    for name in (f"a{evil}\u202e.wav", "b.wav"):
        (tmp_path / name).write_bytes(encode_audio(beeps(1)))
    message = json.dumps({"error": {"message": f"no{evil}", "param": "file"}}).encode()
    server = serve(ok(f"text{evil}".encode()), (400, {}, message))
    code = "from asr.cli import main; main()"
    arguments = ["transcribe", str(tmp_path), "--server", server.url]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the other end is closed
            while part := os.read(ours, 2**16):
                shown += part
        os.close(ours)
    assert process.returncode == 1
    assert evil.encode() not in shown and "\u202e".encode() not in shown
    unwrapped = shown.replace(b"\r\n", b"")  # lines are as wide as the terminal
    assert unwrapped.count(rb"\x1b]0;owned\x07") == 3, shown


def test_a_line_is_a_recording_whatever_names_and_texts_hold(serve, tmp_path) -> None:
    """M8: a newline or a tab in a name, or in a service's text, breaks no line of txt."""
    for name in ("a\n.wav", "b\t.wav"):
        (tmp_path / name).write_bytes(encode_audio(beeps(1)))
    server = serve(ok(b"one\ntwo\x1b[m\n"))
    result = run_cli("transcribe", tmp_path, "--server", server.url)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"{tmp_path}/a\\n.wav\tone two\x1b[m", f"{tmp_path}/b\\t.wav\tone two\x1b[m",
    ]  # fmt: skip
