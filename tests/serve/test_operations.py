"""The service as it is run: health, metrics, signals, an engine process that dies, settings."""

import asyncio
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
import uvicorn
import yaml

from asr.cli import app, main
from asr.errors import AsrError, BundleError, ConfigError
from serve.app import create_app
from serve.engine.client import EngineClient, Job
from serve.logs import RequestRecord
from serve.metrics import Metrics
from serve.routes.transcriptions import _events
from serve.settings import Settings
from tests.helpers import (
    URL,
    beeps,
    changed,
    encode_audio,
    refused,
    run_cli,
    running,
    started,
    stopped,
    wait_for,
)

WAVES = [encode_audio(beeps(i, 0.5 + 0.1 * i)) for i in range(6)]


def ask(address: str, wave: bytes) -> httpx.Response:
    files, data = {"file": ("a.wav", wave)}, {"model": "tiny"}
    return httpx.post(address + URL, files=files, data=data, trust_env=False, timeout=120)


def engine_of(server: subprocess.Popen[str]) -> psutil.Process:
    (child,) = psutil.Process(server.pid).children()
    return child


# --- the engine process -------------------------------------------------------------------------


def test_a_killed_engine_is_restarted_and_its_requests_get_an_error(service):
    text = service.post(WAVES[0]).json()["text"]
    deaths = service.metric("asr_engine_restarts_total")
    pid = service.engine.pid
    with ThreadPoolExecutor(6) as pool, stopped(pid):
        waiting = [pool.submit(service.post, wave) for wave in WAVES]
        wait_for(lambda: service.metric("asr_requests_in_flight") == 6)
        os.kill(pid, signal.SIGKILL)
        replies = [reply.result() for reply in waiting]
    for reply in replies:
        refused(reply, 503, None, "unavailable")
        assert int(reply.headers["retry-after"]) > 0
    assert service.client.get("/health/live").status_code == 200
    refused(service.client.get("/health/ready"), 503, None, "unavailable")
    refused(service.post(WAVES[0]), 503, None, "unavailable")
    wait_for(lambda: service.client.get("/health/ready").status_code == 200, 60)
    assert service.post(WAVES[0]).json()["text"] == text
    assert service.metric("asr_engine_restarts_total") == deaths + 1
    assert service.engine.pid != pid


@pytest.mark.costly
def test_an_engine_that_hangs_is_not_ready_and_is_replaced(service):
    pid = service.engine.pid
    with changed(service, hang_seconds=6.0), stopped(pid):
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: service.client.get("/health/ready").status_code == 503)
        assert psutil.pid_exists(pid), "first not ready, then killed"
        wait_for(lambda: service.engine.pid != pid, 60)
    wait_for(lambda: service.client.get("/health/ready").status_code == 200, 60)
    assert service.post(WAVES[0]).json()["text"]


@pytest.mark.costly
def test_an_engine_that_does_not_load_is_started_again(service, caplog):
    pid, text = service.engine.pid, service.post(WAVES[0]).json()["text"]
    limit, service.engine._load_limit = service.engine._load_limit, 0.01
    assert limit >= 600
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "it has not loaded tiny within 0.01 seconds" in caplog.text)
    service.engine._load_limit = limit
    wait_for(lambda: service.client.get("/health/ready").status_code == 200, 90)
    assert service.post(WAVES[0]).json()["text"] == text


def test_modules_of_the_working_folder_are_not_run(tiny_bundle, tmp_path, monkeypatch):
    """A folder of recordings may hold anybody's files, and `serve.py` is a common name."""
    for name in ("serve", "soxr", "numpy", "asr"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')\nraise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    with running(tiny_bundle) as service:
        assert service.post(WAVES[0]).status_code == 200
    assert not (tmp_path / "ran").exists()


def test_a_port_that_is_taken_is_refused_before_models_are_loaded(tiny_bundle):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = run_cli("serve", tiny_bundle, "--port", port)
    assert result.returncode == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert f"port {port} of 127.0.0.1 cannot be opened (address already in use)" in line
    result = run_cli("serve", tiny_bundle, "--host", "no.such.host.test")
    assert result.returncode == 2 and "of no.such.host.test cannot be opened" in result.stderr


def test_a_failure_has_the_id_of_its_request(tiny_bundle, monkeypatch, caplog):
    """So that its line and traceback are found in the log; pages of other origins see it too."""

    def bug(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("serve.routes.transcriptions.responses.brief", bug)
    origin = "https://a.test"
    with running(tiny_bundle, cors_origins=(origin,)) as service:
        service.client.headers["origin"] = origin
        reply = service.post(WAVES[0])
        refused(reply, 500, None, "failed")
        assert reply.headers["access-control-allow-origin"] == origin
        assert 'asr_errors_total{kind="failed"} 1.0' in service.client.get("/metrics").text
    (record,) = (r for r in caplog.records if r.exc_info)
    assert record.exc_info[0] is ZeroDivisionError
    assert record.fields["request"] == reply.headers["x-request-id"]


def test_openai_s_client_in_a_page_may_call(tiny_bundle):
    """It tells of itself in many headers, for which a browser asks first."""
    origin, own = "https://a.test", "authorization,x-stainless-lang,x-stainless-retry-count"
    asked = {"origin": origin, "access-control-request-method": "POST",
             "access-control-request-headers": own}  # fmt: skip
    with running(tiny_bundle, cors_origins=(origin,)) as service:
        reply = service.client.options(URL, headers=asked)
        assert reply.status_code == 200 and reply.headers["access-control-allow-headers"] == own
        asked["origin"] = "https://b.test"
        other = service.client.options(URL, headers=asked)
        assert other.status_code in (400, 403)
        assert "access-control-allow-origin" not in other.headers


def test_a_client_that_leaves_its_upload_is_no_bad_request(service):
    before = is_cancelled(service)
    lines = [f"POST {URL} HTTP/1.1", "host: localhost", "content-length: 1000",
             "content-type: multipart/form-data; boundary=x"]  # fmt: skip
    disconnect(service, lines, b"--x\r\n")
    wait_for(lambda: is_cancelled(service) == before + 1)


@pytest.mark.costly
def test_starting_an_engine_is_retried_on_a_machine_without_room(service, monkeypatch):
    """No process at first, then no thread to listen to it, as where a limit is reached."""
    refused = []

    def full(real, error):
        def start(*arguments, **options):
            if error in refused:
                return real(*arguments, **options)
            refused.append(error)
            raise error

        return start

    popen = full(subprocess.Popen, OSError(errno.EAGAIN, "no process"))
    thread = full(threading.Thread, RuntimeError("can't start new thread"))
    monkeypatch.setattr(
        "serve.engine.client.subprocess", SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE)
    )
    monkeypatch.setattr("serve.engine.client.threading", SimpleNamespace(Thread=thread))
    pid = service.engine.pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(refused) == 2 and service.engine.pid != pid and service.engine.ready, 90)
    assert service.post(WAVES[0]).json()["text"]


def test_the_engine_ends_with_the_service_whatever_its_watch_died_of(tiny_bundle, monkeypatch):
    async def fail(_engine):
        raise ValueError("a bug")

    monkeypatch.setattr("serve.engine.client.EngineClient.supervise", fail)
    app = create_app(Settings.read(bundles=(f"tiny={tiny_bundle}",), device="cpu"))

    async def live():
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)

    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(live())
    assert app.state.engine._process.returncode is not None


def test_an_engine_that_starts_while_the_service_ends_is_ended(tiny_bundle):
    engine = create_app(Settings.read(bundles=(f"tiny={tiny_bundle}",), device="cpu")).state.engine
    engine.close()
    with pytest.raises(AsrError, match="ended while it loaded"):
        engine._start()
    assert engine._process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("steps", range(3))
def test_a_service_ends_though_its_engine_dies_in_that_moment(monkeypatch, steps):
    """It waited for ever: `asyncio.wait_for` had lost that its watch was cancelled."""
    monkeypatch.setattr(EngineClient, "_start", lambda _: None)
    monkeypatch.setattr(EngineClient, "_listen", lambda _: None)

    async def end() -> bool:
        engine = EngineClient(Settings(), Metrics(), lambda _: None)
        engine._process = SimpleNamespace(wait=lambda: 0, kill=lambda: None)
        engine._pipe = SimpleNamespace(close=lambda: None)
        engine._started = engine._last_message = time.monotonic()
        watch = asyncio.create_task(engine.supervise())
        await asyncio.sleep(0.01)
        engine._died.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        watch.cancel()
        await asyncio.wait([watch], timeout=5)
        return watch.cancelled()

    assert asyncio.run(end())


def disconnect(service, lines: list[str], body: bytes) -> None:
    """Send a request and disconnect while it is decoded or in the queue."""
    with socket.create_connection((service.host, service.port), timeout=60) as raw:
        raw.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        wait_for(lambda: service.metric("asr_requests_in_flight") == 1)


def is_cancelled(service) -> float:
    metrics = service.client.get("/metrics").text
    label = f'asr_requests_total{{method="POST",route="{URL}",status="499"}} '
    return float(metrics.partition(label)[2].partition("\n")[0] or 0)


@pytest.mark.parametrize("decoding", [False, True])
def test_the_slot_of_a_client_that_disconnected_is_free(service, decoding):
    wave = encode_audio(beeps(1, 55.0 if decoding else 0.5))
    request = httpx.Request("POST", "http://localhost" + URL, files={"file": ("a", wave)},
                            data={"model": "tiny"})  # fmt: skip
    lines = [f"POST {URL} HTTP/1.1", *(f"{k}: {v}" for k, v in request.headers.items())]
    before, waited = is_cancelled(service), service.metric("asr_wait_seconds_count")
    if decoding:
        disconnect(service, lines, request.read())
    else:
        with stopped(service.engine.pid):
            disconnect(service, lines, request.read())
            wait_for(lambda: service.metric("asr_requests_in_flight") == 0)
    wait_for(lambda: service.metric("asr_requests_in_flight") == 0)
    assert is_cancelled(service) == before + 1
    assert service.post(WAVES[0]).status_code == 200
    assert service.metric("asr_wait_seconds_count") == waited + 1, "only the second was answered"


def test_no_task_waits_for_a_recording_whose_request_is_cancelled():
    """As a shutdown does, and a stream whose client disconnects."""
    cancelled = []

    async def silent():
        await asyncio.Event().wait()

    async def follow():
        settings = Settings.read()
        state = SimpleNamespace(settings=settings)
        scope = {"asr.record": RequestRecord()}
        request = SimpleNamespace(app=SimpleNamespace(state=state), receive=silent, scope=scope)
        job = Job(SimpleNamespace(cancel=cancelled.append), 7, "m")
        waiting = asyncio.create_task(anext(_events(request, job)))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.sleep(0.05)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(follow()) == set() and cancelled == [7]


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.costly
def test_sigterm_answers_what_was_accepted_and_takes_nothing_new(tiny_bundle, library, tmp_path):
    for i, wave in enumerate(WAVES):
        (tmp_path / f"{i}.wav").write_bytes(wave)
    expected = [library.transcribe(tmp_path / f"{i}.wav").text for i in range(6)]
    with started(tiny_bundle) as (server, address), ThreadPoolExecutor(6) as pool:
        with stopped(engine_of(server).pid):
            waiting = [pool.submit(ask, address, wave) for wave in WAVES]
            metrics = f"{address}/metrics"
            wait_for(lambda: "in_flight 6.0" in httpx.get(metrics, trust_env=False).text, 60)
            server.terminate()
            ready = f"{address}/health/ready"
            wait_for(lambda: httpx.get(ready, trust_env=False).status_code == 503)
            refused(ask(address, WAVES[0]), 503, None, "unavailable")
        assert [reply.result().json()["text"] for reply in waiting] == expected
        assert server.wait(60) == 0


@pytest.mark.costly
def test_what_is_left_when_grace_ends_gets_an_error_and_no_process_is_left(tiny_bundle):
    with started(tiny_bundle, ASR_GRACE_SECONDS="0.5") as (server, address):
        engine = engine_of(server)
        with ThreadPoolExecutor(1) as pool, stopped_to_death(engine):
            waiting = pool.submit(ask, address, WAVES[0])
            metrics = f"{address}/metrics"
            wait_for(lambda: "in_flight 1.0" in httpx.get(metrics, trust_env=False).text, 60)
            server.terminate()
            refused(waiting.result(), 503, None, "unavailable")
        assert server.wait(60) == 0
        assert not engine.is_running()


@pytest.mark.costly
def test_a_second_signal_ends_at_once(tiny_bundle):
    with started(tiny_bundle) as (server, address):
        engine = engine_of(server)
        with ThreadPoolExecutor(1) as pool, stopped_to_death(engine):
            waiting = pool.submit(ask, address, WAVES[0])
            metrics = f"{address}/metrics"
            wait_for(lambda: "in_flight 1.0" in httpx.get(metrics, trust_env=False).text, 60)
            server.terminate()
            wait_for(lambda: httpx.get(f"{address}/health/ready", trust_env=False).is_error)
            server.terminate()
            server.wait(20)
            assert waiting.exception() or waiting.result().is_error
        wait_for(lambda: not engine.is_running())


class stopped_to_death:
    """A process that stands still, and need not be there in the end."""

    def __init__(self, process: psutil.Process) -> None:
        self.process = process

    def __enter__(self) -> None:
        self.process.suspend()

    def __exit__(self, *_: object) -> None:
        if self.process.is_running():
            self.process.resume()


def test_uvicorn_starts_it_from_the_environment_and_kill_9_leaves_nothing(tiny_bundle):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "serve.app:create_app", "--factory"]
    environment = {
        **os.environ, "ASR_BUNDLES": f"tiny={tiny_bundle}, other={tiny_bundle}",
        "ASR_API_KEYS": "one,two", "ASR_MAX_SECONDS": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen([*command, "--port", str(port)], env=environment) as server:
        try:
            wait_for(lambda: is_up(address), 90)
            with httpx.Client(
                base_url=address, headers={"authorization": "Bearer two"}, trust_env=False
            ) as client:
                names = [model["id"] for model in client.get("/v1/models").json()["data"]]
                assert names == ["tiny", "other"]
                for name in names:
                    files = {"file": ("a", WAVES[0])}
                    reply = client.post(URL, files=files, data={"model": name})
                    assert reply.json()["text"]
                long = client.post(URL, files={"file": ("a", WAVES[-1])}, data={"model": "tiny"})
                assert long.status_code == 200
                longer = {"file": ("a", encode_audio(beeps(1, 1.2)))}
                refused(client.post(URL, files=longer, data={"model": "tiny"}), 413, "file",
                        "too_long")  # fmt: skip
            engine = engine_of(server)
        finally:
            server.kill()
    wait_for(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)


def is_up(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


# --- settings -------------------------------------------------------------------------------------


def cut_off_weights(folder: Path) -> str:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return str(weights)


def name_a_lost_language_model(folder: Path) -> str:
    config = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
    config["decoding"] |= {"lm": "lost.arpa", "lm_weight": 0.3}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    return "lost.arpa"


@pytest.mark.costly
@pytest.mark.parametrize("damage", [cut_off_weights, name_a_lost_language_model])
def test_a_broken_bundle_is_refused_at_the_start(
    tiny_bundle, tmp_path, monkeypatch, capsys, damage
):
    folder = shutil.copytree(tiny_bundle, tmp_path / "broken")
    named = damage(folder)
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_: pytest.fail("the port was opened"))
    monkeypatch.setattr(sys, "argv", ["asr", "serve", str(tiny_bundle), str(folder)])
    with pytest.raises(SystemExit) as exit_:
        main()
    shown = capsys.readouterr().err
    assert exit_.value.code == BundleError.exit_code
    assert shown.count("\n") == 1 and named in shown and "Traceback" not in shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, "ASR_BUNDLES"),
        ({"bundles": "/a/x,/b/x"}, "two bundles are called x: write one as NAME=/b/x"),
        ({"bundles": "/a", "max_bytes": "-1", "device": 3}, "ASR_MAX_BYTES"),
        ({"bundles": "/a", "max_byte": "1"}, "ASR_MAX_BYTE:"),
    ],
)
def test_settings_that_cannot_be_obeyed_are_named(given, shown):
    with pytest.raises(ConfigError, match=shown):
        create_app(Settings.read(**given))


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"ASR_API_KEY": "secret"}, "ASR_API_KEY: is no setting .* did you mean ASR_API_KEYS"),
        ({"ASR_MAX_SECOND": "3"}, "ASR_MAX_SECOND: is no setting .* did you mean ASR_MAX_SECONDS"),
        ({"ASR_API_KEY": "secret", "ASR_API_KEYS": "secret"}, ""),
        ({"ASR_PORT": "tcp://10.0.0.1:80", "ASR_SERVICE_HOST": "10.0.0.1"}, ""),  # by Kubernetes
    ],
)
def test_a_misspelled_variable_is_refused(variables, shown, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if not shown:
        Settings.read(bundles="/a")
        return
    with pytest.raises(ConfigError, match=shown):
        Settings.read(bundles="/a")


def test_options_of_the_command_precede_the_environment(tiny_bundle, monkeypatch):
    seen = []
    monkeypatch.setattr("serve.server.run", lambda settings, *_: seen.append(settings))
    monkeypatch.setenv("ASR_DEVICE", "cuda:7")
    monkeypatch.setenv("ASR_INT8", "true")
    for options in ([], ["--device", "cpu"]):
        app(["serve", str(tiny_bundle), *options], standalone_mode=False)
    assert [(s.device, s.int8) for s in seen] == [("cuda:7", True), ("cpu", True)]


def test_serve_leaves_torch_to_the_engine_process():
    code = "import sys, serve.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_metrics_have_few_labels(service):
    def ask_oddly(i):
        service.client.get(f"/v1/models/{i}")
        service.client.get(f"/nothing/{i}")
        service.post(b"junk", model=f"m{i}")
        service.client.request(f"M{i}", "/v1/models")
        return service.client.get("/metrics").text

    few, many = ask_oddly(0), [ask_oddly(i) for i in range(1, 20)][-1]
    assert len(few.splitlines()) == len(many.splitlines())
    for name in ("asr_waiting_chunks", "asr_waiting_audio_seconds", "asr_real_time_factor",
                 "asr_audio_seconds_total", "asr_decode_seconds_total"):  # fmt: skip
        assert service.metric(name) >= 0
    assert 'asr_errors_total{kind="model_not_found"}' in many


@pytest.mark.costly
def test_health_is_answered_while_much_is_decoded(service):
    with ThreadPoolExecutor(4) as pool:
        long = [pool.submit(service.post, encode_audio(beeps(i, 20.0))) for i in range(4)]
        times = []
        while not all(reply.done() for reply in long):
            began = time.monotonic()
            assert service.client.get("/health/ready").status_code == 200
            times.append(time.monotonic() - began)
            time.sleep(0.05)
    assert len(times) > 3 and sorted(times)[len(times) // 2] < 1
    assert all(reply.result().status_code == 200 for reply in long)


def test_nothing_is_left_in_the_folder_of_temporary_files(service, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert service.post(encode_audio(beeps(1, 50.0))[:2_000_000]).status_code in (200, 413)
    assert not list(Path(tmp_path).iterdir())
