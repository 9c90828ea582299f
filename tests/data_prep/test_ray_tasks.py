"""Ray as the engine of a preparation: order, losses, and the manifests of a machine without Ray."""

import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import soundfile as sf

from asr.errors import AsrError, DataError
from data_prep.cuts import Utterance, make_lines
from data_prep.ray_tasks import RayTasks
from tests.helpers import RATE, run_cli, speak

N = 40
# Ray leaves files open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class FakeRay(ModuleType):
    """Ray in this process: a task is done when its result is asked for."""

    def __init__(self, cores: int) -> None:
        super().__init__("ray")
        self.cores, self.running, self.most, self.cancelled = cores, 0, 0, 0
        self.exceptions = ModuleType("ray.exceptions")
        self.exceptions.RayError = type("RayError", (Exception,), {})  # type: ignore[attr-defined]
        of_task = type("RayTaskError", (self.exceptions.RayError,), {})
        self.exceptions.RayTaskError = of_task  # type: ignore[attr-defined]

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cores}

    def put(self, value: object) -> object:
        return value

    def remote(self, **_: object) -> Any:
        def given(function: Any) -> SimpleNamespace:
            def start(*args: object) -> Any:
                self.running += 1
                self.most = max(self.most, self.running)
                return lambda: function(*args)

            return SimpleNamespace(remote=start)

        return given

    def get(self, task: Any) -> object:
        self.running -= 1
        try:
            return task()
        except Exception as error:
            found = self.exceptions.RayTaskError("Traceback\nValueError: of the node")
            found.cause = error
            raise found from None

    def cancel(self, _: object) -> None:
        self.cancelled += 1


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay(cores=3)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.exceptions", fake.exceptions)
    return fake


@pytest.mark.parametrize(("jobs", "most"), [(None, 6), (1, 1), (4, 4), (100, N)])
def test_results_are_in_order_and_few_tasks_wait(ray: FakeRay, jobs: int | None, most: int) -> None:
    numbers = iter(range(N + 1))
    found = RayTasks("ray", jobs).map(lambda n: n * n, itertools.islice(numbers, N))
    assert next(found) == 0 and next(numbers) == most, "no more is read than is given out"
    assert list(found) == [n * n for n in range(1, N + 1) if n != most]
    assert ray.most == most and ray.running == ray.cancelled == 0


def test_what_fails_on_a_node_is_told_and_ends_the_others(ray: FakeRay) -> None:
    def fail(n: int) -> int:
        if n == 5:
            raise DataError("storage does not answer")
        if n == 8:
            raise ValueError("of the node")
        return n

    with pytest.raises(DataError, match="storage does not answer"):
        list(RayTasks("ray", 4).map(fail, range(N)))
    assert ray.running == ray.cancelled == 3
    with pytest.raises(AsrError, match="a node of Ray: ValueError: of the node: install the same"):
        list(RayTasks("ray", 4).map(fail, range(6, N)))


def test_a_node_that_does_not_see_a_recording_ends_the_work() -> None:
    class Blind:
        def map(self, _: object, tasks: Iterator[list[Utterance]]) -> Iterator[list[str]]:
            return (["missing" for _ in task] for task in tasks)

    with pytest.raises(DataError, match=r"a/1.wav: a node of the cluster does not see it"):
        list(make_lines([Utterance("1", Path("a/1.wav"), "one", "ann")], False, None, Blind()))  # type: ignore[arg-type]


def test_what_is_wrong_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "takes").mkdir()
    for engine, before, sentence in (
        ("spark", "", "--engine spark: give ray, or ray://HOST:PORT"),
        ("ray", "import sys; sys.modules['ray'] = None",
         "asr prepare --engine ray needs the extra 'ray': pip install 'lrt-asr[ray]'"),
    ):  # fmt: skip
        args: list[str | Path] = ["prepare", "table", tmp_path / "takes", "t.csv", tmp_path / "out"]
        done = run_cli(*args, "--engine", engine, before=before)
        assert done.returncode == 2 and sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "out").exists()


def slow_square(n: int) -> tuple[int, int]:
    time.sleep(0.2)
    return os.getpid(), n * n


@pytest.mark.slow
def test_a_node_that_is_lost_costs_its_tasks_alone(cluster: Any) -> None:
    import ray

    ray.init(cluster.cluster.address, log_to_driver=False)
    try:
        processes, squares = set[int](), []
        for process, square in RayTasks("ray", None).map(slow_square, range(N)):
            processes.add(process)
            squares.append(square)
            if len(squares) == N // 4:
                cluster.cluster.remove_node(cluster.nodes.pop(), allow_graceful=False)
    finally:
        ray.shutdown()
    assert squares == [n * n for n in range(N)]
    assert len(processes) >= 3, "all nodes had tasks"


@pytest.mark.slow
def test_a_cluster_writes_what_one_machine_writes(cluster: Any, tmp_path: Path) -> None:
    rows = ["audio,text,speaker"]
    (tmp_path / "takes").mkdir()
    for i in range(N):
        sf.write(tmp_path / f"takes/{i}.wav", speak("一二三四五"[: 1 + i % 5], i), RATE)
        rows.append(f"{i}.wav,{'一二三四五'[: 1 + i % 5]},{i % 10}")
    (tmp_path / "takes/7.wav").write_bytes(b"RIFF no audio")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    for place in (f"file://{tmp_path}/takes", os.path.relpath(tmp_path / "takes")):
        args: list[str | Path] = ["prepare", "table", place, tmp_path / "t.csv"]
        plain = run_cli(*args, tmp_path / "plain")
        by_ray = run_cli(*args, tmp_path / "ray", "--engine", cluster.address)
        assert plain.returncode == by_ray.returncode == 0, by_ray.stderr
        left_out = (tmp_path / "ray/left_out.tsv").read_text()
        assert "7.wav\tunreadable" in left_out and left_out.count("\n") == 2
        for name in ("train.jsonl.gz", "dev.jsonl.gz", "test.jsonl.gz", "report.json"):
            written = (tmp_path / "ray" / name).read_bytes()
            assert written == (tmp_path / "plain" / name).read_bytes()
