"""One run by two hosts: network namespaces that a cable joins stand in for them."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
import torch
from safetensors.torch import load_file

from asr.train.mirror import Mirror
from tests.helpers import tones_recipe, write_recipe

STEPS = 2  # between two states
LOST_AT = 11  # of 24 steps, the fourth of the second epoch

# Notes each step, and at one of them kills all processes of its host. argv: host, notes.
LOSE = f"""
import os, signal, subprocess, sys
from pathlib import Path
import asr.train.module as module
host, notes = sys.argv.pop(1), Path(sys.argv.pop(1))
step = module.SpeechModule.training_step

def noted(self, *args):
    lost = notes.with_suffix(".lost")
    if host == os.environ.get("LOSE") and self.global_step == {LOST_AT} and not lost.exists():
        lost.touch()
        found = subprocess.run(["ip", "netns", "pids", host], capture_output=True, check=True)
        for pid in sorted(map(int, found.stdout.split()), key=lambda pid: pid == os.getpid()):
            os.kill(pid, signal.SIGKILL)
    with notes.open("a") as file:
        print(self.global_step, file=file)
    return step(self, *args)

module.SpeechModule.training_step = noted
from asr.cli import main; main()
"""


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    """Two hosts, 10.77.0.1 and 10.77.0.2, each with a network of its own; their names."""
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2")
    names = [f"asr{secrets.token_hex(3)}{i}" for i in (1, 2)]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made: {error.stderr.decode().strip()}")
        ip("link", "add", "v1", "netns", names[0], "type", "veth",
           "peer", "name", "v2", "netns", names[1])  # fmt: skip
        for i, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{i}/24", "dev", f"v{i}")
            for device in ("lo", f"v{i}"):
                ip("-n", name, "link", "set", device, "up")
            resolver = Path("/etc/netns", name, "resolv.conf")  # else each start waits for a name
            resolver.parent.mkdir(parents=True)
            resolver.write_text("")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)


def start(
    hosts: list[str], i: int, folder: Path, out: str = "run", **environment: str
) -> subprocess.Popen[str]:
    """One host's torchrun, in a folder of its own, with the recipe beside it."""
    name, own = hosts[i], folder / str(i)
    own.mkdir(exist_ok=True)
    (folder / "lose.py").write_text(LOSE)
    launcher = [
        "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29500", "--max-restarts", "3",
        "--rdzv-conf", f"is_host={1 - i}", "--local-addr", f"10.77.0.{i + 1}",
    ]  # fmt: skip
    command = [folder / "lose.py", name, own / "steps", "train", folder / "r.yaml"]
    command += ["--out", out, "--resume"]
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # see docs/train.md
    return subprocess.Popen(
        ["ip", "netns", "exec", name, sys.executable, *map(str, [*launcher, *command])],
        cwd=own, stdout=PIPE, stderr=PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def finish(*runs: subprocess.Popen[str]) -> list[int]:
    try:
        for run in runs:
            print(run.communicate(timeout=300)[1][-3000:])
    finally:
        for run in runs:
            run.kill()
    return [run.returncode for run in runs]


def state(run: Path) -> dict[str, torch.Tensor]:
    found = torch.load(run / "training" / "last.ckpt", weights_only=True)
    return {"step": torch.tensor(found["global_step"]), **found["state_dict"]}


def assert_same(one: Path, other: Path, tolerance: float) -> None:
    pairs = [(load_file(run / "model.safetensors"), state(run)) for run in (one, other)]
    for a, b in zip(*pairs, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=0, atol=tolerance)


def steps(folder: Path, i: int) -> list[int]:
    return [int(line) for line in (folder / str(i) / "steps").read_text().split()]


def folder_with_recipe(folder: Path, tones: Path) -> Path:
    folder.mkdir()
    training = {"epochs": 3, "checkpoint_steps": STEPS}
    write_recipe(folder / "r.yaml", tones_recipe(tones, training=training))
    return folder


@pytest.mark.slow
def test_two_hosts_are_one_and_survive_the_loss_of_either(
    hosts: list[str], tones: Path, tmp_path: Path
) -> None:
    calm = folder_with_recipe(tmp_path / "calm", tones)
    assert finish(start(hosts, 0, calm), start(hosts, 1, calm)) == [0, 0]
    assert steps(calm, 0) == steps(calm, 1) == list(range(24))
    assert not (calm / "1" / "run").exists(), "the second host needs and writes no file"
    alone = folder_with_recipe(tmp_path / "alone", tones)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "asr.cli", "train", str(alone / "r.yaml"), "--out", str(alone / "run")]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    assert_same(calm / "0" / "run", alone / "run", 1e-4)

    second = folder_with_recipe(tmp_path / "second", tones)  # the one without the files is lost
    first, lost = start(hosts, 0, second), start(hosts, 1, second, LOSE=hosts[1])
    assert finish(lost) == [-9]
    assert finish(start(hosts, 1, second), first) == [0, 0]
    done = steps(second, 0)
    assert done[: LOST_AT + 1] == list(range(LOST_AT + 1))
    assert LOST_AT - STEPS <= done[LOST_AT + 1] <= LOST_AT
    assert done[LOST_AT + 1 :] == list(range(done[LOST_AT + 1], 24))
    assert_same(calm / "0" / "run", second / "0" / "run", 0)

    first = folder_with_recipe(tmp_path / "first", tones)  # where all meet: both start again
    out = f"file://{tmp_path}/storage/run"
    lost, left = start(hosts, 0, first, out, LOSE=hosts[0]), start(hosts, 1, first, out)
    assert finish(lost, left) == [-9, 1]
    assert finish(start(hosts, 0, first, out), start(hosts, 1, first, out)) == [0, 0]
    done = steps(first, 0)
    assert LOST_AT - STEPS <= done[LOST_AT] <= LOST_AT
    mirror = Mirror(out, tmp_path / "found")
    mirror.load()
    assert_same(calm / "0" / "run", mirror.folder, 0)
