"""What several tests need: a tiny corpus of tones and a recipe that learns it in seconds."""

import fcntl
import gc
import itertools
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import soundfile as sf
import torch
from hypothesis import settings

import asr
from asr.bundle import Bundle
from asr.config import Config
from asr.runtime import storage
from asr.tokenizer import Tokenizer
from asr.transcription.recognizer import Recognizer
from data_prep.corpus_writer import write_corpus
from data_prep.cuts import Utterance
from tests.helpers import (
    MAX_BYTES,
    MAX_SECONDS,
    RATE,
    Service,
    learning_recipe,
    running,
    say,
    write_tones,
)

Once = Callable[[str, Callable[[Path], object]], Path]

# A busy machine is no failure.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw some of the tests that are costly, and some cases of each that is marked `drawn`.

    All of pytest's processes draw the same. `-m slow` takes all of them, and so does no `-m` at
    all; tests that are asked for by file or name are not left out for being costly.
    """
    wanted = config.option.markexpr
    groups: dict[str, list[pytest.Item]] = {}
    costly: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        if item.get_closest_marker("drawn"):
            groups.setdefault(name, []).append(item)
        if item.get_closest_marker("costly"):
            costly.setdefault(name, []).append(item)
    for item in itertools.chain(*groups.values(), *costly.values()) if wanted == "slow" else ():
        item.add_marker("slow")
    if wanted != "not slow":
        return
    rng = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
    left_out: set[pytest.Item] = set()
    for cases in groups.values():
        n = cases[0].get_closest_marker("drawn").args[0]  # type: ignore[union-attr]
        left_out.update(rng.sample(cases, max(0, len(cases) - n)))
    is_whole = [Path(arg).absolute() for arg in config.args] == [Path(__file__).parent]
    if is_whole and not config.option.keyword:
        for name in rng.sample(sorted(costly), len(costly) * 7 // 8):
            left_out.update(costly[name])
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking at all that is loaded, again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Return a folder that a function has filled, once for all of pytest's processes.

    Nothing may be written into it afterwards.
    """
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        folder, done = root / name, root / f"{name}.done"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder

    return make


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A server of S3 in a process of its own, by the environment; yields its file system."""
    pytest.importorskip("moto")
    s3fs = pytest.importorskip("s3fs")
    code = (
        "import logging, time; logging.getLogger('werkzeug').setLevel(logging.ERROR)\n"
        "from moto.server import ThreadedMotoServer as S\n"
        "s = S(ip_address='127.0.0.1', port=0, verbose=False); s.start()\n"
        "print(s.get_host_and_port()[1], flush=True); time.sleep(3600)"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert server.stdout
    port = server.stdout.readline().strip()
    patch = pytest.MonkeyPatch()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }.items():  # fmt: skip
        patch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()  # of the server of another module
    storage._file_system.cache_clear()
    try:
        system = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
        system.mkdir("job")
        yield system
    finally:
        patch.undo()
        server.kill()
        server.communicate()


@pytest.fixture(scope="session")
def tones(once: Once) -> Path:
    """The tone corpus."""
    return once("tones", lambda folder: write_tones(folder / "data")) / "data"


@pytest.fixture(scope="session")
def learned(once: Once, tones: Path) -> Path:
    """A bundle that has learned the tones."""
    return (
        once("learned", lambda folder: _train(learning_recipe(tones), folder / "bundle")) / "bundle"
    )


@pytest.fixture(scope="session")
def trained_bundle(once: Once) -> Path:
    """A bundle that has learned tones with pauses between them."""
    return once("paused", _train_with_pauses) / "model"


def _write_with_pauses(root: Path) -> Path:
    splits: dict[str, list[Utterance]] = {"train": [], "dev": [], "test": []}
    for split, n in (("train", 160), ("dev", 6), ("test", 6)):
        for i in range(n):
            wave, spoken = say(1 + i % 8, len(split) * 1000 + i)
            path = root / f"{split}{i}.wav"
            sf.write(path, wave, RATE)
            text = "".join(token for token, _, _ in spoken)
            splits[split].append(Utterance(f"{split}{i}", path, text, "tone"))
    write_corpus(splits, root / "data", corpus="paused tones", synthetic=True, jobs=1)
    return root / "data"


def _train_with_pauses(root: Path) -> None:
    recipe = learning_recipe(_write_with_pauses(root))
    recipe["training"]["epochs"] = 5
    recipe.setdefault("decoding", {})["chunk_seconds"] = 20
    _train(recipe, root / "model")


def _train(recipe: dict[str, Any], out: Path) -> None:
    from asr.train.run import train  # most tests need no training, whose import takes seconds

    train(Config.model_validate(recipe), out)


@pytest.fixture(scope="session")
def trained_service(trained_bundle: Path) -> Iterator[Service]:
    """A service of that bundle, under the name of `tiny`."""
    with running(trained_bundle) as found:
        yield found


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with random weights, of a model as small as can be."""
    config = Config.model_validate(
        {
            "data": {"train": "train.jsonl.gz", "dev": "dev.jsonl.gz"},
            "features": {"kind": "log_mel", "n_mels": 40},
            "model": {
                "d_model": 32, "d_inner": 64, "n_heads": 2, "ctc_weight": 0.3,
                "projection": {"kind": "low_rank", "rank": 8},
                "frontend": {"kind": "vgg", "channels": [4, 4]},
            },
            # A random model guesses.
            "decoding": {
                "beam_size": 2, "ctc_weight": 0.5, "confidence_threshold": 0, "chunk_seconds": 20,
            },
        }
    )  # fmt: skip
    tokenizer = Tokenizer.train(["今天天气很好我们去公园", "打开窗户三点十分"], config.tokenizer)
    folder = tmp_path_factory.mktemp("exp") / "tiny"
    torch.manual_seed(4)
    Bundle.create(config, tokenizer).save(folder, "a card")
    return folder


@pytest.fixture(scope="session")
def library(tiny_bundle: Path) -> Recognizer:
    """The same model without a service."""
    return asr.load(tiny_bundle, "cpu")


@pytest.fixture(scope="session")
def service(tiny_bundle: Path) -> Iterator[Service]:
    """A service for all tests that only talk to it, or end its engine process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serve.engine.client._HEALTHY_SECONDS", 0.0)  # no pause is a long one
        with running(tiny_bundle, max_bytes=MAX_BYTES, max_seconds=MAX_SECONDS) as service:
            yield service


@pytest.fixture(scope="session")
def streaming_bundle(once: Once) -> Path:
    """A bundle with a streaming encoder that has learned tones with pauses between them."""
    return once("streaming", _train_streaming) / "model"


def _train_streaming(root: Path) -> None:
    recipe = learning_recipe(_write_with_pauses(root))
    recipe["features"] = {
        "kind": "fbank", "normalize": "corpus", "sample_rate": RATE, "n_mels": 20,
    }  # fmt: skip
    streaming = {"chunk": 8, "left_chunks": 4}
    recipe["model"]["encoder"] = {"n_layers": 1, "convolution": 5, "streaming": streaming}
    recipe["training"]["epochs"] = 4
    recipe.setdefault("decoding", {})["chunk_seconds"] = 20
    _train(recipe, root / "model")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of three nodes on this machine, of a core each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # else 15, which waits for all other tests
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20}
        head = {**node, "ray_client_server_port": port}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        nodes = [cluster.add_node(**node) for _ in range(2)]
        cluster.wait_for_nodes()
        try:
            yield SimpleNamespace(
                cluster=cluster, nodes=nodes,
                address=f"ray://{cluster.head_node.node_ip_address}:{port}",
            )  # fmt: skip
        finally:
            cluster.shutdown()
