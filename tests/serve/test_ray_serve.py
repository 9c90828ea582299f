"""The service under Ray Serve: the plain service's texts, also while replicas are killed."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import psutil
import pytest
import yaml

from asr.errors import ConfigError
from serve import ray_serve
from serve.settings import Settings
from tests.helpers import (
    RATE,
    Service,
    answers,
    encode_audio,
    live_session,
    pcm,
    send_audio,
    speak,
    wait_for,
)

CONFIG = Path(__file__).parents[2] / "deploy/ray-serve.yaml"
KEY = "one-of-the-keys"
WAVES = [speak("一二三四五"[: 1 + i % 5], i) for i in range(24)]


class Cluster:
    """`serve run` of the configuration that is shipped, on a cluster of its own."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.host, self.port = found.getsockname()
        config = yaml.safe_load(CONFIG.read_text("utf-8"))
        config["http_options"] |= {"host": self.host, "port": self.port}
        application = config["applications"][0]
        application["args"] = {"bundles": f"tiny=file://{bundle}", "upload_seconds": 300}
        deployment = application["deployments"][0]
        del deployment["autoscaling_config"]
        deployment |= {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0.5}}
        (folder / "config.yaml").write_text(json.dumps(config))
        self.copies, self._log = folder / "copies", folder / "log"
        self.copies.mkdir()
        self._environment = {
            **os.environ, "HOME": str(folder), "RAY_TMPDIR": str(folder),
            "TMPDIR": str(self.copies), "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0",
            "RAY_worker_niceness": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "ASR_API_KEYS": KEY,
        }  # fmt: skip
        with self._log.open("w") as log:
            code = "from ray.serve.scripts import cli; cli()"
            self.run = self._start(code, "run", folder / "config.yaml", stdout=log, stderr=log)

    def _start(self, code: str, *arguments: Any, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        return subprocess.Popen(command, env=self._environment, text=True, **options)

    def delete(self) -> subprocess.Popen[str]:
        """Stop the application, and let the proxies live."""
        code = "import ray; ray.init('auto', namespace='serve'); from ray import serve"
        return self._start(f"{code}; serve.delete('lrt-asr')", stderr=subprocess.DEVNULL)

    def end(self) -> None:
        started = psutil.Process(self.run.pid).children(recursive=True) if self.runs() else []
        self.run.kill()
        self.run.wait()
        for process in started:
            if process.is_running():
                process.kill()
        psutil.wait_procs(started, 30)

    def runs(self) -> bool:
        return self.run.poll() is None

    def replicas(self) -> dict[int, psutil.Process]:
        """The decoding process of each replica's process."""
        found = psutil.Process(self.run.pid).children(recursive=True)
        return {each.ppid(): each for each in found if "serve.engine.process" in each.cmdline()}

    def ready(self) -> bool:
        try:
            reply = httpx.get(f"http://{self.host}:{self.port}/health/ready", trust_env=False)
        except httpx.TransportError:
            assert self.runs(), self._log.read_text()
            return False
        return reply.status_code == 200 and len(self.replicas()) == 2

    def decoded_by(self) -> set[int]:
        """The processes that have logged the answer to a recording."""
        lines = [line for line in self._log.read_text().splitlines() if "audio_seconds" in line]
        return {int(pid) for line in lines for pid in re.findall(r"pid=(\d+)\)", line)}


@pytest.fixture(scope="module")
def cluster(tiny_bundle: Path) -> Iterator[Cluster]:
    pytest.importorskip("ray.serve")
    # Ray's sockets are below it, whose names must be short.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder), tiny_bundle)
        try:
            wait_for(cluster.ready, 400)
            yield cluster
        finally:
            cluster.end()


def texts(service: Any, waves: list[Any]) -> list[str]:
    """What the official client gets, for eight recordings at a time."""
    base = f"http://{service.host}:{service.port}/v1"

    def text(wave: Any) -> str:
        file = ("a.wav", encode_audio(wave, RATE))
        return client.audio.transcriptions.create(model="tiny", file=file).text

    with (
        openai.OpenAI(base_url=base, api_key=KEY, max_retries=5) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        return list(pool.map(text, waves))


@pytest.mark.slow
def test_texts_are_those_of_the_plain_service_also_after_a_replica_is_killed(
    cluster: Cluster, service: Service
) -> None:
    expected = texts(service, WAVES)
    assert len(set(expected)) > 5
    assert texts(cluster, WAVES) == expected
    before = cluster.replicas()
    rounds = 0
    while cluster.decoded_by() != set(before):  # the second may still load, and logs come later
        assert texts(cluster, WAVES) == expected
        assert (rounds := rounds + 1) < 100
    for engine in before.values():
        assert engine.environ()["OMP_NUM_THREADS"] == "1", "from num_cpus"
    victim, engine = next(iter(before.items()))
    os.kill(victim, signal.SIGKILL)
    assert texts(cluster, WAVES) == expected
    psutil.wait_procs([engine], 30)
    assert not engine.is_running()
    wait_for(cluster.ready, 300)
    assert victim not in cluster.replicas()


@pytest.mark.slow
def test_live_texts_are_those_of_the_plain_service(cluster: Cluster, service: Service) -> None:
    key = {"authorization": f"Bearer {KEY}"}

    def talk(service: Any, seed: int) -> list[str]:
        with live_session(service, additional_headers=key) as session:
            send_audio(session, pcm(speak("一二三四五", seed)))
            found = answers(session)
            assert session.close_code == 1000
        return [event["segment"]["text"] for event in found if event["type"] == "final"]

    with ThreadPoolExecutor(4) as pool:
        expected = list(pool.map(lambda seed: talk(service, seed), range(4)))
        got = list(pool.map(lambda seed: talk(cluster, seed), range(4)))
    assert all(expected) and got == expected


@pytest.mark.slow
def test_who_has_no_key_is_refused(cluster: Cluster) -> None:
    url = f"http://{cluster.host}:{cluster.port}/v1/models"
    assert httpx.get(url, trust_env=False).status_code == 401
    named = {"host": "asr.example", "authorization": f"Bearer {KEY}"}
    assert httpx.get(url, trust_env=False, headers=named).status_code == 403


@pytest.mark.slow
def test_a_replica_that_is_stopped_answers_first(cluster: Cluster, service: Service) -> None:
    """The last test of the cluster, whose application it deletes."""
    wave, rest = speak("一二三四五" * 20), threading.Event()
    expected = texts(service, [wave])
    copies = list(cluster.copies.rglob("model.safetensors"))
    key, path = {"authorization": f"Bearer {KEY}"}, "/v1/audio/transcriptions"
    with (
        httpx.Client(
            base_url=f"http://{cluster.host}:{cluster.port}",
            headers=key,
            trust_env=False,
            timeout=300,
        ) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        files = {"file": ("a.wav", encode_audio(wave, RATE))}
        whole = client.build_request("POST", path, files=files, data={"model": "tiny"})
        body = whole.read()

        def parts() -> Iterator[bytes]:
            yield body[:1000]
            rest.wait(300)
            yield body[1000:]

        kind = {"content-type": whole.headers["content-type"]}
        reply = pool.submit(client.post, path, content=parts(), headers=kind)
        wait_for(lambda: "asr_held_bytes 1000.0" in client.get("/metrics").text)
        with cluster.delete() as delete:
            wait_for(lambda: client.get("/health/live").status_code != 200, 60)
            rest.set()
            assert [reply.result().json()["text"]] == expected
            assert delete.wait() == 0
    assert not cluster.replicas()
    left = list(cluster.copies.rglob("model.safetensors"))
    assert len(left) == len(copies) - 2, "that of a killed replica stays"


def test_the_shipped_configuration_fits_the_application() -> None:
    (application,) = yaml.safe_load(CONFIG.read_text("utf-8"))["applications"]
    assert application["import_path"] == "serve.ray_serve:application"
    assert callable(ray_serve.application)
    assert Settings.read(**application["args"]).bundles == ("s3://models/lrt_r100",)
    (deployment,) = application["deployments"]
    assert deployment["name"] == ray_serve.Service.__name__
    scaling = deployment["autoscaling_config"]
    assert scaling["target_ongoing_requests"] < Settings().max_requests


def test_settings_are_read_where_the_application_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    apps: list[Settings] = []

    def deployment(**options: Any) -> Any:
        asked.update(options)
        return lambda replica: SimpleNamespace(bind=lambda: replica)

    ingress = {"ingress": lambda build: lambda replica: build, "deployment": deployment}
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(serve=SimpleNamespace(**ingress)))
    monkeypatch.setattr(ray_serve, "create_replica", apps.append)
    monkeypatch.setenv("ASR_API_KEYS", KEY)
    monkeypatch.setenv("ASR_GRACE_SECONDS", "70")
    build: Any = ray_serve.application({"bundles": "a,b=s3://c/d", "device": "cuda"})
    monkeypatch.delenv("ASR_API_KEYS")  # which a node need not have
    build()
    (settings,) = apps
    assert settings.bundles == ("a", "b=s3://c/d")
    assert settings.api_keys[0].get_secret_value() == KEY
    assert asked["ray_actor_options"] == {"num_gpus": 1}
    assert asked["graceful_shutdown_timeout_s"] > 70
    assert asked["max_ongoing_requests"] > settings.max_requests


@pytest.mark.parametrize(
    ("given", "sentence"),
    [({}, "no model to serve"), ({"bundles": "a", "max_request": "1"}, "ASR_MAX_REQUEST: extra")],
)
def test_what_is_wrong_is_told_before_ray_is_asked(
    given: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=sentence):
        ray_serve.application(given)


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [("auto", [], "cpu"), ("auto", [3], "auto"), ("cuda", [3], "cuda"), ("cpu", [3], "cpu")],
)
def test_a_replica_takes_no_gpu_that_ray_did_not_give_it(
    device: str, gpus: list[int], expected: str, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_gpu_ids=lambda: gpus))
    monkeypatch.setattr(ray_serve, "create_app", lambda settings: SimpleNamespace(
        state=SimpleNamespace(settings=settings, engine=SimpleNamespace(ready=False))
    ))  # fmt: skip
    replica = ray_serve.Service()
    given = Settings(bundles=(f"file://{tiny_bundle}",), device=device)
    replica.app = ray_serve.create_replica(given)
    settings = replica.app.state.settings
    assert settings.device == expected
    (copy,) = settings.models.values()
    assert (copy / "model.safetensors").is_file() and copy != tiny_bundle
    with pytest.raises(RuntimeError, match="no progress"):
        asyncio.run(replica.check_health())
    replica.app.state.engine.ready = True
    asyncio.run(replica.check_health())
    replica.__del__()  # Ray calls it
    assert not copy.exists()
