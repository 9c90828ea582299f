"""`asr transcribe --server`: the texts of the command line, by a service; services that fail."""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import soundfile as sf

import asr
from asr.errors import ConfigError
from asr.transcription.jobs import find_tasks
from asr.transcription.remote import ask_all
from asr.transcription.writers import FORMATS
from tests.helpers import RATE, run_cli, running, say

ERROR = {"message": "the sentence", "type": "x", "param": None, "code": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recordings")
    for i in range(12):
        path = root / f"{i % 3}" / f"{i:02}.wav"
        path.parent.mkdir(exist_ok=True)
        sf.write(path, say(2 + i % 5, i)[0], RATE)
    return root


@pytest.fixture(scope="module")
def url(trained_service) -> str:
    return f"http://{trained_service.host}:{trained_service.port}"


def test_files_are_those_that_the_library_writes(trained_bundle, folder, url, tmp_path):
    model = asr.load(trained_bundle, "cpu")
    transcripts = {path: model.transcribe(path) for path in folder.rglob("*.wav")}
    for format in ("txt", "srt", "vtt", "tsv"):
        tasks = find_tasks([str(folder)], tmp_path, format)
        done: list[float] = []
        found = list(ask_all(tasks, url, None, format, 4, done.append))
        assert [task for task, _ in found] == tasks and done == list(range(1, 13))
        for task, text in found:
            assert text == FORMATS[format](transcripts[task.recording])
            assert task.out and task.out.read_text("utf-8") == text


def test_standard_input_is_sent(trained_bundle, folder, url):
    recording = next(folder.rglob("*.wav"))
    with recording.open("rb") as file:
        done = run_cli("transcribe", "--server", url, "-", stdin=file)
    assert done.stdout.strip() == asr.load(trained_bundle, "cpu").transcribe(recording).text


def test_it_prints_in_order_and_continues_after_a_bad_one(trained_bundle, folder, url, tmp_path):
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"no audio")
    arguments = [bad, tmp_path / "none.wav", folder]
    here = run_cli("transcribe", trained_bundle, *arguments)
    there = run_cli("transcribe", *arguments, "--server", f"{url}/v1/", "--jobs", "3")
    assert there.stdout == here.stdout and len(there.stdout.splitlines()) == 12
    assert (there.returncode, here.returncode) == (1, 1)
    assert f"{bad}: " in there.stderr and "none.wav cannot be opened" in there.stderr
    one = run_cli("transcribe", folder / "0" / "03.wav", "--server", url, "--format", "json")
    found = json.loads(one.stdout)
    assert found["file"] == str(folder / "0" / "03.wav")
    assert (
        found["text"] == found["segments"][0]["text"] == here.stdout.splitlines()[1].split("\t")[1]
    )


@pytest.mark.parametrize("format", ["txt", "srt", "tsv"])
def test_what_the_service_warns_of_is_told(format, folder, url, tmp_path):
    whole = next(folder.rglob("*.wav")).read_bytes()
    (tmp_path / "录音.wav").write_bytes(whole[: len(whole) // 2])
    done = run_cli("transcribe", tmp_path / "录音.wav", "--server", url, "--format", format)
    assert done.returncode == 0 and done.stdout
    assert re.search(r"录音.wav: .* is truncated: only its first \d", done.stderr)


def test_a_killed_job_continues_where_it_was(folder, url, tmp_path):
    many = tmp_path / "many"
    for i in range(8):
        shutil.copytree(folder, many / f"{i:02}")
    arguments = [str(many), "--server", url, "--out", str(tmp_path / "out"), "--format", "srt"]
    code = "from asr.cli import main; main()"
    command = [sys.executable, "-c", code, "transcribe", *arguments]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while not list(tmp_path.rglob("*.srt")) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    done = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.srt")}
    assert 0 < len(done) < 96 and all(path.read_text("utf-8") for path in done)
    again = run_cli("transcribe", *arguments, "--jobs", "8")
    assert f"{96 - len(done)} written" in again.stderr
    assert f"{len(done)} were there" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert len(list(tmp_path.rglob("*.srt"))) == 96


def with_key(key: str) -> str:
    return f"import os; os.environ['ASR_API_KEY'] = {key!r}"


@pytest.mark.costly
def test_keys_and_names(trained_bundle, folder, tmp_path):
    one = folder / "0" / "00.wav"
    other = tmp_path / "other"
    shutil.copytree(trained_bundle, other)
    bundles = (f"tiny={trained_bundle}", str(other))
    with running(trained_bundle, bundles=bundles, api_keys="密钥") as service:
        url = f"http://{service.host}:{service.port}"
        for key in ("", "wrong"):
            result = run_cli("transcribe", one, "--server", url, before=with_key(key))
            assert result.returncode == 2 and "ASR_API_KEY" in result.stderr
        right = with_key("密钥")
        for name in (None, "third"):
            option = ("--model", name) if name else ()
            result = run_cli("transcribe", one, "--server", url, *option, before=right)
            assert result.returncode == 2 and "tiny" in result.stderr and "other" in result.stderr
        texts = [
            run_cli("transcribe", one, "--server", url, "--model", name, before=right).stdout
            for name in ("tiny", "other")
        ]
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a.wav", "--server", "localhost:8000"], "http"),
        (["a.wav", "--server", "http://127.0.0.1:9"], "cannot be reached"),
        (["a.wav", "--server", "http://127.0.0.1:9", "--beam", "3"], "--beam"),
        (["a.wav", "--server", "http://127.0.0.1:9", "--confidence", "0"], "--confidence is the"),
        (["a.wav", "b.wav", "--model", "x"], "--server"),
        (["a.wav"], "--server"),
    ],
)
def test_mistakes_are_reported_in_a_sentence(arguments, says):
    result = run_cli("transcribe", *arguments)
    assert result.returncode == 2 and says in result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1 and not result.stdout


class FailingServer(ThreadingHTTPServer):
    """A service that answers each recording as a script says: (status, headers) or a text."""

    def __init__(self, script: list, models: object = {"data": [{"id": "m"}]}) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.models = models
        self.script, self.times = iter(script), [time.monotonic()]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: FailingServer

    def do_GET(self) -> None:
        self.answer(200, {}, json.dumps(self.server.models))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.times.append(time.monotonic())
        script = next(self.server.script)
        if script is None:
            self.connection.close()
        elif isinstance(script, str):
            assert b"RIFF" in body, "the recording is sent whole each time"
            self.answer(200, {}, script)
        else:
            self.answer(*script, json.dumps({"error": ERROR}))

    def answer(self, status: int, headers: dict[str, str], body: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body.encode()))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def failing() -> Iterator[type[FailingServer]]:
    servers = []

    def make(*arguments: object) -> FailingServer:
        servers.append(FailingServer(*arguments))
        threading.Thread(target=servers[-1].serve_forever).start()
        return servers[-1]

    yield make  # type: ignore[misc]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.costly
def test_a_full_service_is_asked_again_when_it_says(failing, folder):
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=6), usegmt=True)
    script = [(429, {"retry-after": "2"}), (503, {"retry-after": soon}), None, (503, {}), "a text"]
    server = failing(script)
    begun = time.time()
    result = run_cli("transcribe", folder / "0" / "00.wav", "--server", server.url)
    assert (result.stdout, result.stderr) == ("a text\n", "")
    first, second, third, fourth, fifth = server.times[1:]
    assert second - first > 1.9 and time.time() - begun > 5
    assert fourth - third > 0.9 and fifth - fourth > 0.9


def test_a_service_that_stays_full_ends_the_job(failing, folder):
    server = failing([(503, {"retry-after": "600"})])
    result = run_cli("transcribe", folder / "0" / "00.wav", "--server", server.url)
    assert result.returncode == 1 and "the sentence" in result.stderr
    assert "Traceback" not in result.stderr and not result.stdout


def test_the_error_of_one_recording_is_reported_and_the_others_continue(failing, folder):
    server = failing([(500, {}), (413, {}), "a text", (504, {})])
    paths = [folder / "0" / f"{name}.wav" for name in ("00", "03", "06", "09")]
    result = run_cli("transcribe", *paths, "--server", server.url)
    assert result.returncode == 1 and result.stdout == f"{paths[2]}\ta text\n"
    errors = [f"asr: {paths[i]}: the sentence" for i in (0, 1, 3)]
    assert result.stderr.splitlines() == errors


def test_a_server_of_another_kind_is_reported(failing, folder):
    server = failing(["<html>"])
    one = folder / "0" / "00.wav"
    result = run_cli("transcribe", one, "--server", server.url, "--format", "json")
    assert result.returncode == 2 and "OpenAI's shape" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("models", [{"models": []}, [], None, {"data": None}, {"data": [{}]}])
def test_a_server_whose_models_are_other_json_is_reported(failing, folder, models):
    server = failing([], models)
    tasks = find_tasks([str(folder)], None, "txt")
    with pytest.raises(ConfigError, match="OpenAI's shape") as caught:
        next(ask_all(tasks, server.url, None, "txt", 1, float))
    assert f"{server.url}/v1/models" in str(caught.value)
    with pytest.raises(ConfigError, match="has no model"):
        next(ask_all(tasks, failing([], {"data": []}).url, None, "txt", 1, float))
