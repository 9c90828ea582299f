"""Ray as an engine: a cluster of three nodes, of which one is lost and another comes."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import soundfile as sf

from asr.cli import shared
from asr.errors import ConfigError
from asr.transcription import jobs
from asr.transcription.shared import Work, transcribe_shared, work_on
from asr.transcription.shares import plan
from tests.helpers import RATE, run_cli, speak, start_cli, wait_for

N, SHARE = 60, 4
# Ray leaves files open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("in")
    for i in range(N):
        sf.write(root / f"{i:02}.wav", speak("一二三四五"[: 1 + i % 5], i), RATE)
    return root


@pytest.mark.slow
def test_a_node_that_is_lost_costs_its_shares_alone(
    cluster: Any, recordings: Path, tiny_bundle: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import ray

    from asr.transcription.ray_engine import RayCrew

    monkeypatch.setattr(jobs, "_SHARE_FILES", SHARE)

    def work(out: Path) -> Work:
        job = plan([str(recordings)], f"file://{out}", "json", {})
        return Work(job, f"file://{out}", "json", tiny_bundle, "cpu", False, {}, 1)

    asyncio.run(work_on(work(tmp_path / "calm"), 0, lambda _: None))
    found = work(tmp_path / "out")
    hook = {
        "worker_process_setup_hook": "tests.transcription.ray_actors.prepare",
        "env_vars": {"DECODED": str(tmp_path / "log")},
    }
    ray.init(cluster.cluster.address, runtime_env=hook, log_to_driver=False)

    def disturb(n_done: float) -> None:
        if n_done >= N / 4 and len(cluster.nodes) == 2:
            cluster.cluster.remove_node(cluster.nodes.pop(), allow_graceful=False)
        elif n_done >= N / 2 and len(cluster.nodes) == 1:
            cluster.nodes += [None, cluster.cluster.add_node(num_cpus=1)]

    try:
        crew = RayCrew(found, str(tiny_bundle), "ray", None)
        assert transcribe_shared(found, crew, disturb) == []
    finally:
        ray.shutdown()
    assert len(cluster.nodes) == 3, "one was removed, and one added"
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.json")}
    assert len(written) == N
    assert written == {p.name: p.read_bytes() for p in (tmp_path / "calm").glob("*.json")}
    told = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len({process for process, _ in told}) == 4, "actors on the nodes, the new one included"
    decoded = Counter(name for _, names in told for name in names)
    assert len(decoded) == N
    assert 0 < sum(n > 1 for n in decoded.values()) <= SHARE, "the share that the node held"


@pytest.mark.slow
def test_ray_and_a_plain_machine_work_on_one_job(
    cluster: Any, tiny_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for i in range(N):
        sf.write(tmp_path / "in" / f"{i}.wav", speak("一二三四五" * 30, i), RATE)
    out = tmp_path / "out"
    args = ["transcribe", tiny_bundle, tmp_path / "in", "--out", f"file://{out}"]
    before = "from asr.transcription import jobs; jobs._SHARE_FILES = 1"
    with start_cli(*args, "--engine", cluster.address, "--jobs", "1", before=before) as by_ray:
        wait_for(lambda: by_ray.ends(0.001) or list(out.rglob("*.lease.1")), 300)
        plain = run_cli(*args, before=before)
        done = by_ray.result(), plain
    assert [each.returncode for each in done] == [0, 0], done
    assert all(f"{N} are in file://{out}, 0 failed" in each.stderr for each in done)
    assert len(list(out.glob("*.txt"))) == N
    leased = list((out / ".asr").glob("*/*/*.lease.1"))
    assert len(leased) == N and len({path.read_text().split()[0] for path in leased}) == 2


def test_what_is_wrong_is_told_in_a_sentence(
    recordings: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    args = ["transcribe", tiny_bundle, recordings, "--out"]
    url = f"file://{tmp_path}/out"
    for out, engine, before, sentence in (
        (tmp_path, "ray", "", "--engine ray is for --out URL"),
        (url, "spark", "", "--engine spark: give ray, or ray://HOST:PORT"),
        (url, "ray", "import sys; sys.modules['ray'] = None",
         "asr transcribe --engine ray needs the extra 'ray': pip install 'lrt-asr[ray]'"),
    ):  # fmt: skip
        done = run_cli(*args, out, "--engine", engine, before=before)
        assert done.returncode == 2 and sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_actors_get_whole_paths_and_the_job_of_machines_without_ray(
    recordings: Path, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor has another working directory than the command."""
    monkeypatch.chdir(tmp_path)
    found: list[Work] = []

    def crew(work: Work, *_: object) -> None:
        found.append(work)
        raise ConfigError("enough")

    monkeypatch.setattr(shared, "_crew", crew)
    for engine in ("ray", None):
        arguments, changes = [str(tiny_bundle), str(recordings)], {"lm": Path("lm.arpa")}
        with pytest.raises(ConfigError, match="enough"):
            shared.transcribe_shared(
                arguments, f"file://{tmp_path}/out", "txt", "cpu", False, changes, 1, engine, 1
            )
    by_ray, plain = found
    assert by_ray.changes["lm"] == tmp_path / "lm.arpa" and by_ray.job.name == plain.job.name


@pytest.mark.slow
def test_an_address_that_does_not_answer(
    recordings: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    url = f"file://{tmp_path}/out"
    args = ["transcribe", tiny_bundle, recordings, "--out", url]
    done = run_cli(*args, "--engine", "ray://127.0.0.1:9")
    assert done.returncode == 2 and "ray://127.0.0.1:9: no Ray cluster answers" in done.stderr
    assert len(done.stderr.splitlines()) == 1
