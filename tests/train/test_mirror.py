"""Runs whose folder is in object storage: real processes against a server of S3, killed."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from asr.config import Config
from asr.errors import AsrError, ConfigError
from asr.runtime import storage
from asr.runtime.stores import Folder
from asr.train.mirror import Mirror
from asr.train.run import train
from tests.helpers import read_card, run_cli, tones_recipe, with_keys, write_recipe

# Kills the process before an object that it would create, by number.
KILL = """
import os, signal
from asr.runtime.stores import Folder
create, created = Folder._create, []
def killed(self, name, content):
    created.append(name)
    if len(created) == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    create(self, name, content)
Folder._create = killed
"""


class Killed(BaseException):
    """The end of a process."""


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.mark.costly
def test_a_killed_run_goes_on_from_the_storage(s3: Any, tones: Path, tmp_path: Path) -> None:
    values = tones_recipe(tones, training={"epochs": 1})
    whole = train(Config.model_validate(values), tmp_path / "whole")
    recipe, done = write_recipe(tmp_path / "r.yaml", values), []
    command = ["train", recipe, "--out", "s3://job/run", "--resume"]
    here = f"{with_keys()}; import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
    for at in (9, 12):  # among the objects of a state, the list of which is not yet written
        ended = run_cli(*command, before=here + KILL.format(at=at))
        assert ended.returncode == -9, ended.stderr
        (left,) = tmp_path.glob("asr-*")
        reached = torch.load(left / "run/training/last.ckpt", weights_only=True)["global_step"]
        shutil.rmtree(left)
        found = Mirror("s3://job/run", tmp_path / f"found{at}")
        found.load()
        state = torch.load(found.folder / "training/last.ckpt", weights_only=True)
        assert 0 <= reached - state["global_step"] <= values["training"]["checkpoint_steps"]
        done.append(state["global_step"])
    assert 0 < done[0] < done[1]
    refused = run_cli(*command[:-1], before=with_keys())
    assert refused.returncode == 2 and "s3://job/run: holds a run already" in refused.stderr
    assert run_cli(*command, before=here).returncode == 0
    assert not list(tmp_path.glob("asr-*")), "no copy is left"

    s3.get("job/run/", str(tmp_path / "bundle"), recursive=True)
    whole_bytes = (tmp_path / "bundle/model.safetensors").read_bytes()
    expected, weights = (
        load_file(run / "model.safetensors") for run in (whole, tmp_path / "bundle")
    )
    assert expected.keys() == weights.keys()
    assert all(torch.equal(expected[name], weights[name]) for name in expected)
    assert "unfinished" not in read_card(tmp_path / "bundle")
    s3.rm_file("job/run/model.safetensors")  # as if the last kill had come before it
    again = run_cli(*command, before=with_keys())
    assert again.returncode == 0 and "nothing is left to do" in again.stderr
    assert s3.cat_file("job/run/model.safetensors") == whole_bytes


@settings(max_examples=60)
@given(
    sessions=st.lists(
        st.tuples(st.lists(st.binary(max_size=2), min_size=1, max_size=4), st.integers(1, 12)),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_a_state_is_stored_whole_or_not_at_all(
    sessions: list[tuple[list[bytes], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each session writes states until a request fails as if its process had been killed."""
    root = tmp_path_factory.mktemp("states")
    url, possible, number = f"memory://{root.name}", [{}], 0
    for states, n_requests in sessions:
        mirror = Mirror(url, root / f"{(number := number + 1)}")
        mirror.load()
        assert files(mirror.folder) in possible
        possible = [files(mirror.folder)]
        with pytest.MonkeyPatch.context() as patch:
            _die_after(patch, n_requests)
            try:
                for content in states:
                    for name in ("model", "training/last.ckpt"):
                        (mirror.folder / name).parent.mkdir(parents=True, exist_ok=True)
                        (mirror.folder / name).write_bytes(name.encode() + content)
                    possible.append(files(mirror.folder))
                    mirror.save(True)
                    possible = possible[-1:]
            except Killed:
                pass
    mirror = Mirror(url, root / "last")
    mirror.load()
    assert files(mirror.folder) in possible
    mirror.save(True)
    store, kept = Folder(url), files(mirror.folder)
    assert all(store.read(name) == kept[name] for name in kept if "/" not in name)
    assert len(store.list("training")) <= 2
    assert len(store.list("training/objects")) <= 4


def _die_after(patch: pytest.MonkeyPatch, n_requests: int) -> None:
    left = n_requests
    for name in ("create", "replace", "remove"):
        real = getattr(Folder, name)

        def request(self: Folder, *args: Any, real: Any = real) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real(self, *args)

        patch.setattr(Folder, name, request)


def test_the_later_of_two_processes_has_the_run(tmp_path: Path) -> None:
    first, second = (Mirror("memory://two", tmp_path / name) for name in "ab")
    for mirror in (first, second):
        mirror.load()
        mirror.folder.mkdir()
        (mirror.folder / "state").write_text(mirror.folder.name)
    first.save(True)
    second.load()
    second.save(True)
    with pytest.raises(ConfigError, match="memory://two: another process has continued this run"):
        first.save(False)
    second.save(True)


def test_one_that_wakes_up_late_overwrites_nothing(tmp_path: Path) -> None:
    """The number of its list is free again: the other process has removed its old ones."""
    late, other = (Mirror("memory://late", tmp_path / name) for name in "ab")
    for mirror, n_states in ((late, 1), (other, 4)):
        mirror.load()
        mirror.folder.mkdir(exist_ok=True)
        for number in range(n_states):
            (mirror.folder / "model").write_text(f"{mirror.folder.name}{number}")
            mirror.save(True)
    (late.folder / "model").write_text("late")
    with pytest.raises(ConfigError, match="another process has continued this run"):
        late.save(True)
    assert Folder("memory://late").read("model") == b"b3"
    other.save(True)


@pytest.mark.parametrize("damage", [b"[1]", b'{"model": "%064d"}' % 0, b"{"])
def test_a_run_without_a_whole_state_is_refused_each_time(tmp_path: Path, damage: bytes) -> None:
    """A launcher that starts again must not begin a new run in the place of a damaged one."""
    store, mirror = (
        Folder(f"memory://{tmp_path.name}"),
        Mirror(f"memory://{tmp_path.name}", tmp_path),
    )
    store.replace("training/00000007.json", damage)
    store.replace("training/notes.json", b"{}")  # of somebody else
    for _ in range(2):
        with pytest.raises(ConfigError, match="damaged, it cannot be continued"):
            mirror.load()
    assert store.exists("training/00000007.json")


def test_a_run_that_was_copied_there_is_not_begun_anew(tmp_path: Path) -> None:
    Folder("memory://copied").replace("training/last.ckpt", b"")
    with pytest.raises(ConfigError, match="memory://copied: holds a run that was copied there"):
        Mirror("memory://copied", tmp_path).load()


def test_a_bundle_whose_run_is_gone_is_not_replaced(tmp_path: Path) -> None:
    Folder("memory://bundle").replace("model.safetensors", b"")
    with pytest.raises(ConfigError, match="memory://bundle: holds a bundle already"):
        Mirror("memory://bundle", tmp_path).load()


def test_damage_is_noticed_and_names_lead_nowhere_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, mirror = Folder("memory://damage"), Mirror("memory://damage", tmp_path / "a")
    mirror.folder.mkdir()
    for content in ("one", "two"):
        (mirror.folder / "state").write_text(content)
        mirror.save(True)
    (digest,) = (
        d for d in store.list("training/objects") if store.read(f"training/objects/{d}") == b"two"
    )
    store.replace(f"training/objects/{digest}", b"tw")
    mirror = Mirror("memory://damage", tmp_path / "b")
    mirror.load()
    assert files(mirror.folder) == {"state": b"one"} and "00000002.json is damaged" in caplog.text
    mirror.save(True)
    store.replace(
        "training/00000003.json",
        b'{"../x": "%s"}' % next(iter(store.list("training/objects"))).encode(),
    )
    with pytest.raises(ConfigError, match=r"lists \.\./x, which leads out"):
        Mirror("memory://damage", tmp_path / "c").load()


def test_storage_that_does_not_answer_is_named(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    mirror = Mirror("memory://away", tmp_path)
    monkeypatch.setattr(storage, "_PAUSE", 0.001)
    monkeypatch.setattr(type(mirror._store.system), "pipe_file", unreachable)
    mirror.save(False)
    assert "(no route)): check the URL and the key; the next state tries again" in caplog.text
    with pytest.raises(AsrError, match=r"memory://away: cannot be written .*no route"):
        train(Config.model_validate(tones_recipe(tones)), "memory://away")
