"""Full and read-only disks, little memory, clocks that jump, files that change, large uploads."""

import ast
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from asr.bundle import Bundle
from asr.config import Config
from asr.errors import AudioError
from asr.tokenizer import Tokenizer, TokenizerConfig
from asr.transcription import remote
from asr.transcription.jobs import find_tasks
from tests.helpers import (
    MAX_BYTES,
    TONES,
    URL,
    Service,
    beeps,
    encode_audio,
    make_tree,
    run_cli,
    started,
    tones_recipe,
    wait_for,
    write_recipe,
    write_tones,
)

ROOT = Path(__file__).parents[2]


class Disk:
    """A file system of a megabyte with a bundle on it."""

    def __init__(self, root: Path, bundle: Path) -> None:
        self.root = root
        root.mkdir()
        self._mount("-t", "tmpfs", "-o", "size=1m", "none")
        shutil.copytree(bundle, root / "bundle")
        self.before = self.files()

    def _mount(self, *options: str) -> None:
        command = ["mount", *options, str(self.root)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")

    def fill(self, n_free: int) -> None:
        """Leave so many bytes."""
        free = shutil.disk_usage(self.root).free
        (self.root / "filling").write_bytes(bytes(max(0, free - n_free)))

    def make_read_only(self) -> None:
        self._mount("-o", "remount,ro")

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.root.rglob("*") if path.is_file() and path.name != "filling")
        return {str(path.relative_to(self.root)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the verbs read: corpora, a recipe, a bundle with random weights."""
    root = tmp_path_factory.mktemp("inputs")
    values = tones_recipe(write_tones(root / "data", 6, 3), training={"epochs": 1})
    write_recipe(root / "recipe.yaml", values)
    tokenizer = Tokenizer.train(["".join(TONES)], TokenizerConfig())
    Bundle.create(Config.model_validate(values), tokenizer).save(root / "bundle", "a card")
    (root / "bundle" / "training").mkdir()
    history = "epoch,train_loss,val_loss,val_cer_percent,seconds\n1,2,2,90,1\n"
    (root / "bundle" / "training" / "history.csv").write_text(history)
    make_tree(root / "aishell")
    return root


@pytest.fixture
def disk(tmp_path: Path, inputs: Path) -> Iterator[Disk]:
    root = tmp_path / "disk"
    try:
        yield Disk(root, inputs / "bundle")
    finally:
        subprocess.run(["umount", root], check=False, capture_output=True)


VERBS = {
    "prepare": "prepare aishell1 {inputs}/aishell {disk}/out --jobs 1",
    "transcribe": "transcribe {inputs}/bundle {inputs}/data/wav --out {disk}/out",
    "prepare demo": "prepare demo {disk}/out --train 20 --jobs 1",
    "train": "train {inputs}/recipe.yaml --out {disk}/out --device cpu",
    "train-lm": "train-lm {inputs}/bundle --out {disk}/out --epochs 1 --device cpu",
    "evaluate": "evaluate {disk}/bundle {inputs}/data/test.jsonl.gz",
    "evaluate --out": "evaluate {inputs}/bundle {inputs}/data/test.jsonl.gz --out {disk}/a.jsonl",
    "tune": "tune {disk}/bundle {inputs}/data/dev.jsonl.gz --method ctc_greedy --write",
    "compress": "compress {inputs}/bundle --out {disk}/out --rank 2",
    "export": "export {inputs}/bundle --out {disk}/out",
    "export torch": "export {inputs}/bundle --out {disk}/out --format torch",
    "report": "report {inputs}/bundle --out {disk}/out.md",
    "report --plot": "report {inputs}/bundle --plot {disk}/out.png",
    "bench": "bench efficiency --out {disk}/out --lengths 16 --ranks 2 --kinds lrt --runs 1",
}
SLOW = [pytest.param(verb, marks=pytest.mark.slow) for verb in VERBS if verb != "prepare"]


@pytest.mark.parametrize("verb", ["prepare", *SLOW])
@pytest.mark.parametrize(
    "fault",
    [
        "No space left on device",
        pytest.param("Read-only file system", marks=pytest.mark.slow),
    ],
)
def test_a_disk_that_takes_no_more_is_a_sentence(
    disk: Disk, inputs: Path, verb: str, fault: str
) -> None:
    """What was not tried: every verb that writes ends with a sentence, and leaves no half files."""
    if fault.startswith("No"):
        disk.fill(8192 if verb in ("prepare", "transcribe", "train", "compress", "export") else 0)
    else:
        disk.make_read_only()
    command = VERBS[verb].format(disk=disk.root, inputs=inputs).split()
    result = run_cli(*command, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode not in (0, -6, -7), result.stderr
    assert "Traceback" not in result.stderr
    sentence = result.stderr.splitlines()[-1]
    assert sentence.startswith("asr: ") and fault in sentence and str(disk.root) in sentence
    after = disk.files()
    assert after.items() >= disk.before.items(), "what was there is as it was"
    left = after.keys() - disk.before.keys()
    assert not [name for name in left if "/." in f"/{name}" or name.endswith((".tmp", ".partial"))]
    if not verb.startswith(("transcribe", "train", "prepare demo")):  # those continue later
        assert not left


@pytest.mark.parametrize(
    "arguments",
    [pytest.param(["info", "{inputs}/recipe.yaml"], marks=pytest.mark.slow), ["--help"]],
)
def test_output_to_a_full_disk_is_a_sentence(inputs: Path, arguments: list[str]) -> None:
    """What was not tried: results that cannot be printed are no success."""
    command = [part.format(inputs=inputs) for part in arguments]
    code = "import sys; from asr.cli import main; main()"
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [sys.executable, "-c", code, *command], stdout=full,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "asr: disk: No space left on device"
    assert "Exception ignored" not in result.stderr and "Traceback" not in result.stderr


def test_too_little_memory_is_a_sentence(inputs: Path) -> None:
    """What was not tried: prlimit. Where not even torch fits, that is told."""
    before = "import resource; resource.setrlimit(resource.RLIMIT_AS, (400_000_000, 400_000_000))"
    result = run_cli("info", inputs / "recipe.yaml", before=before, timeout=60)
    assert result.returncode == 1
    assert result.stderr.startswith("asr: out of memory") and len(result.stderr.splitlines()) == 1


def test_no_module_measures_time_by_the_clock_on_the_wall() -> None:
    """What was not tried: clocks that jump. Only dates of HTTP and of logs are of that clock."""
    found = set()
    for path in [*(ROOT / "asr").rglob("*.py"), *(ROOT / "serve").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute):
                name = f"{getattr(node.value, 'id', '')}.{node.attr}"
                if name in ("time.time", "datetime.now", "datetime.utcnow", "date.today"):
                    found.add((str(path.relative_to(ROOT)), name))
    stale = {("asr/runtime/files.py", "time.time")}  # the age of temporary files
    assert found - stale == {("asr/transcription/reply.py", "datetime.now")}


@pytest.mark.slow
def test_clocks_that_jump_by_hours_change_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    """What was not tried: jumps of hours under load, in the service and in its engine."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time, random\n"
        "clock, rng = time.time, random.Random(1)\n"
        "time.time = lambda: clock() + 3600 * rng.randint(-9, 9)\n"
    )
    wav = encode_audio(beeps(1))
    with started(tiny_bundle, PYTHONPATH=str(tmp_path)) as (server, url):
        threading.Thread(target=server.stderr.read).start()

        def post(_: int) -> int:
            reply = httpx.post(
                url + URL, files={"file": ("a.wav", wav)}, data={"model": "tiny"}, timeout=60
            )
            return reply.status_code

        with ThreadPoolExecutor(6) as pool:
            assert set(pool.map(post, range(40))) == {200}
        assert httpx.get(f"{url}/health/ready").status_code == 200
        assert "asr_engine_restarts_total 0.0" in httpx.get(f"{url}/metrics").text
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


def _head(service: Service, length: str) -> bytes:
    return (
        f"POST {URL} HTTP/1.1\r\nhost: {service.host}\r\n{length}\r\n"
        "content-type: multipart/form-data; boundary=x\r\n\r\n"
    ).encode()


def test_two_gigabytes_are_refused_while_they_arrive(service: Service) -> None:
    """What was not tried: uploads of 2 GB without a length; the connection is closed."""
    chunk = b"100000\r\n" + bytes(2**20) + b"\r\n"
    file = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    answer, n_sent = b"", 0
    with socket.create_connection((service.host, service.port), 10) as client:
        client.sendall(_head(service, "transfer-encoding: chunked"))
        client.sendall(b"%x\r\n%s\r\n" % (len(file), file))
        client.settimeout(0)
        deadline, rest = time.monotonic() + 20, memoryview(b"")
        while not answer and n_sent < 2**31 and time.monotonic() < deadline:
            rest = rest or memoryview(chunk)
            with suppress(BlockingIOError):
                sent = client.send(rest)
                n_sent, rest = n_sent + sent, rest[sent:]
            with suppress(BlockingIOError):
                answer += client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413") and n_sent < MAX_BYTES + 2**24


@pytest.mark.slow
def test_a_client_with_two_gigabytes_is_told_so_and_goes_on(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not tried: uploads of 2 GB by `asr transcribe --server`.

    The client reads no response while it sends, so a connection that is closed meanwhile has none.
    """
    monkeypatch.setattr(remote, "_PATIENCE", 2.0)
    with (tmp_path / "a.wav").open("wb") as file:
        file.truncate(2**31)
    (tmp_path / "b.wav").write_bytes(encode_audio(beeps(1)))
    tasks = find_tasks([str(tmp_path)], None, "txt")
    url = f"http://{service.host}:{service.port}"
    (_, large), (_, small) = remote.ask_all(tasks, url, None, "txt", 1, float)
    assert isinstance(large, AudioError) and "large" in str(large)
    assert isinstance(small, str)


@pytest.mark.parametrize(
    "stages",
    [
        ["connected", "in a line", "in the headers"],
        pytest.param(["connected", "headers", "in the body", "in the end"], marks=pytest.mark.slow),
    ],
)
def test_requests_at_every_stage_are_answered_after_sigterm(
    tiny_bundle: Path, stages: list[str]
) -> None:
    """What was not tried: SIGTERM at each stage of an upload. None is closed without an answer."""
    form = (
        b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\ntiny\r\n--x\r\n'
        b'content-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        + encode_audio(beeps(1))
        + b"\r\n--x--\r\n"
    )
    head = (
        f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(form)}\r\n"
        "content-type: multipart/form-data; boundary=x\r\n\r\n"
    ).encode()
    n_sent = {
        "connected": 0, "in a line": 9, "in the headers": len(head) - 7, "headers": len(head),
        "in the body": len(head) + 900, "in the end": len(head) + len(form) - 1,
    }  # fmt: skip
    with started(tiny_bundle) as (server, url):
        threading.Thread(target=server.stderr.read).start()
        host, port = url.removeprefix("http://").split(":")
        clients = {stage: socket.create_connection((host, int(port)), 30) for stage in stages}
        for stage, client in clients.items():
            client.sendall((head + form)[: n_sent[stage]])
        time.sleep(0.2)
        with httpx.Client(base_url=url, trust_env=False) as other:
            other.get("/health/ready")
            server.send_signal(signal.SIGTERM)
            wait_for(lambda: other.get("/health/ready").status_code == 503)
        for stage, client in clients.items():
            client.sendall((head + form)[n_sent[stage] :])
        for stage, client in clients.items():
            with client:
                was_accepted = n_sent[stage] >= len(head)
                assert client.recv(4096)[9:12] == (b"200" if was_accepted else b"503"), stage
        assert server.wait(30) == 0
