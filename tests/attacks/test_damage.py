"""Damaged files of a run's folder give a sentence or do no harm; two runs do not share a folder."""

import errno
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from asr.bundle import Bundle
from asr.config import Config
from asr.decoding.options import DecodingOptions
from asr.errors import AsrError, BundleError, ConfigError
from asr.evaluation.records import Evaluation
from asr.reporting.comparison import read_run
from asr.reporting.cost import Cost, write_cost
from asr.reporting.results import write_evaluation
from asr.runtime.files import lock_folder
from asr.runtime.tensors import read_tensors
from asr.train.language_model import train_lm
from asr.train.run import train
from tests.helpers import tones_recipe, wait_for

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def recipe(tones: Path) -> Config:
    """A run of few steps, with a state after each."""
    return Config.model_validate(
        tones_recipe(
            tones,
            data={"batch_seconds": 30},
            model={"d_model": 16, "d_inner": 32},
            training={"epochs": 2, "checkpoint_steps": 1},
        )
    )


@pytest.fixture(scope="module")
def finished(recipe: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run's folder, with all files that one may have."""
    out = train(recipe, tmp_path_factory.mktemp("runs") / "run", device="cpu")
    result = Evaluation(
        cer=0.5, substitutions=1, insertions=0, deletions=0, reference_length=2, mean_length=2.0,
        rtf=0.1, audio_seconds=1.0, utterances=1, skipped=0, device="cpu",
        decoding=DecodingOptions(), worst=(),
    )  # fmt: skip
    write_evaluation(out, Path("test.jsonl.gz"), result)
    write_cost(out, Cost(seconds=3.0, operations=1e9, grid="XX"))
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def flips(path: Path, n: int) -> Iterator[None]:
    """Change a byte at each of n places, the first and last ones among them, and restore it."""
    whole, rng = path.read_bytes(), random.Random(path.name)
    places = {0, 8, len(whole) // 2, len(whole) - 1, *rng.choices(range(len(whole)), k=n)}
    for place in sorted(places):
        damaged = bytearray(whole)
        damaged[place] ^= rng.choice((0x01, 0x20, 0x80, 0xFF))
        path.write_bytes(damaged)
        yield
    path.write_bytes(whole)


def sentence(error: AsrError, path: Path) -> None:
    assert str(path.parent) in str(error) and "\n" not in str(error)


def same_state(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.model", "config.yaml", "README.md"]
)
def test_a_flipped_byte_of_a_bundle_is_reported_or_harmless(run: Path, name: str) -> None:
    """M3: weights have a checksum, and name their tokenizer's; a configuration is validated."""
    whole, refused = Bundle.load(run), 0
    for _ in flips(run / name, 2 if name == "README.md" else 30):
        try:
            loaded = Bundle.load(run)
        except BundleError as error:
            sentence(error, run / name)
            refused += 1
            continue
        assert loaded.tokenizer.model == whole.tokenizer.model
        if name != "config.yaml":  # a person may edit it: another valid value is no damage
            assert same_state(loaded.parts.state_dict(), whole.parts.state_dict())
            assert loaded.config == whole.config
    assert refused >= {"README.md": 0, "config.yaml": 5}.get(name, 30)


def test_weights_without_a_checksum_are_those_of_older_versions(run: Path) -> None:
    """M3: they load as before."""
    from safetensors.torch import load_file, save_file

    weights, whole = run / "model.safetensors", Bundle.load(run)
    save_file(load_file(weights), weights, {"tokenizer": whole.tokenizer.digest})
    assert same_state(Bundle.load(run).parts.state_dict(), whole.parts.state_dict())


def test_a_flipped_byte_of_an_epochs_weights_is_reported(run: Path) -> None:
    """M3: they are averaged into the bundle."""
    path = run / "training" / "epoch2.safetensors"
    whole = {name: tensor.clone() for name, tensor in read_tensors(path).items()}
    for _ in flips(path, 20):
        with pytest.raises(BundleError) as caught:
            assert same_state(read_tensors(path), whole)
            raise BundleError(f"{path}: harmless")
        sentence(caught.value, path)


@pytest.mark.parametrize("name", ["evaluation.json", "cost.json", "training/history.csv"])
def test_a_flipped_byte_of_a_runs_records_is_reported_or_harmless(run: Path, name: str) -> None:
    """M3: `asr report` reads them."""
    refused = 0
    for _ in flips(run / name, 12):
        try:
            read_run(run)
        except BundleError as error:
            sentence(error, run / name)
            refused += 1
    assert refused, "the first byte is one of them"


def test_a_flipped_byte_of_the_state_is_found(run: Path) -> None:
    """M4: torch does not look at the checksums in a state."""
    from asr.train.trainer import _sound_state

    path = run / "training" / "last.ckpt"
    whole, refused = torch.load(path, weights_only=True)["state_dict"], 0
    for _ in flips(path, 30):
        try:
            _sound_state([path])
        except ConfigError as error:
            sentence(error, path)
            refused += 1
        else:
            state = torch.load(path, weights_only=True)["state_dict"]
            assert same_state(state, whole)
    assert refused > 15


def test_a_damaged_state_falls_back_to_the_one_before(
    run: Path, recipe: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """M4: the run ends with the same weights, and says what happened."""
    expected, state = Bundle.load(run).parts.state_dict(), run / "training"
    (state / "finished").unlink()
    (run / "model.safetensors").unlink()
    last = state / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-2000])
    train(recipe, run, resume=True, device="cpu")
    assert "last.ckpt: damaged" in caplog.text
    assert "continues from previous.ckpt" in caplog.text
    assert same_state(Bundle.load(run).parts.state_dict(), expected)


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign"])
def test_without_a_whole_state_the_run_ends_in_a_sentence(
    run: Path, recipe: Config, damage: str
) -> None:
    """M4: it is no traceback, and the exit code is not 0."""
    (run / "training" / "finished").unlink()
    for name in ("last.ckpt", "previous.ckpt"):
        path = run / "training" / name
        content = path.read_bytes()
        path.write_bytes({"truncated": content[:5000], "empty": b""}.get(damage, b"PK\3\4" * 99))
    with pytest.raises(ConfigError, match=r"previous\.ckpt: damaged, .*: give another") as caught:
        train(recipe, run, resume=True, device="cpu")
    assert caught.value.exit_code == 2


def test_a_run_does_not_continue_with_other_tokens(run: Path, recipe: Config) -> None:
    """M3: a flipped byte of the run's own tokenizer is found too."""
    (run / "training" / "finished").unlink()
    for _ in flips(run / "training" / "tokenizer.model", 0):
        with pytest.raises(ConfigError, match=r"damaged|other tokens"):
            train(recipe, run, resume=True, device="cpu")


@pytest.mark.parametrize("removed", ["lock", "folder", "lock, ten times"])
def test_a_folder_is_locked_though_another_run_has_just_removed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    folder, lockf, calls = tmp_path / "run", fcntl.lockf, []

    def remove_and_lock(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 1 or removed == "lock, ten times":
            (folder / "lock").unlink()
            if removed == "folder":
                folder.rmdir()
        lockf(*args)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", remove_and_lock)
        if removed == "lock, ten times":
            with pytest.raises(ConfigError, match="another process is at work there"):
                lock_folder(folder)
            return
        with lock_folder(folder) as file:
            assert os.path.samestat(os.fstat(file.fileno()), (folder / "lock").stat())
    assert len(calls) == 2


def test_a_folder_that_cannot_be_locked_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr(fcntl, "lockf", Mock(side_effect=error))
    with lock_folder(tmp_path):
        assert "start no second run there" in caplog.text


def test_a_second_run_in_one_folder_is_refused(run: Path, recipe: Config, tmp_path: Path) -> None:
    """M10: the kernel frees the lock of a killed run, though a process that it forked lives on."""
    lm = tmp_path / "lm"
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from asr.runtime.files import lock_folder\n"
        "files = [lock_folder(Path(name)) for name in sys.argv[1:]]\n"
        "child = os.fork() or time.sleep(60)\n"
        "print(child, flush=True); time.sleep(60)"
    )
    folders = [str(folder / "training") for folder in (run, lm)]
    with subprocess.Popen(
        [sys.executable, "-c", code, *folders], stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            child = int(other.stdout.readline())
            with pytest.raises(ConfigError, match=r"another process is at work .*another folder"):
                train(recipe, run, resume=True, device="cpu")
            with pytest.raises(ConfigError, match="another process is at work there"):
                train_lm(Bundle.load(run), [], lm, 1, resume=True, device=CPU)
        finally:
            other.kill()
    try:
        wait_for(lambda: lock_folder(run / "training").close() is None)
        assert train(recipe, run, resume=True, device="cpu") == run
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_run_that_resumes_needs_no_room_for_a_whole_one(
    run: Path, recipe: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S11: its files are there; a new run is refused before anything is reserved."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    (run / "training" / "finished").unlink()
    assert train(recipe, run, resume=True, device="cpu") == run
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2, 1, 1))
    monkeypatch.setattr(os, "posix_fallocate", pytest.fail)
    with pytest.raises(AsrError, match=r"no room for .* No space left|no room for"):
        train(recipe, tmp_path / "new", device="cpu")


def test_a_recipe_with_a_language_model_elsewhere_is_not_trained(
    recipe: Config, tmp_path: Path
) -> None:
    """S9: its bundle could not name the model; it is said before the first step."""
    decoding = DecodingOptions(lm=tmp_path / "lm.arpa", lm_weight=0.3)
    with pytest.raises(ConfigError, match=r"decoding\.lm: .* is not in .*--lm"):
        train(recipe.model_copy(update={"decoding": decoding}), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_run_removes_what_killed_ones_left_half_written(run: Path, recipe: Config) -> None:
    """M10, M11: under the lock no other writes there; a bundle's is removed after a day."""
    state = run / "training"
    for left in (state / ".asr-1.tmp", run / ".asr-1.tmp", run / ".asr-2.tmp"):
        left.touch()
    os.utime(run / ".asr-1.tmp", (0, 0))
    train(recipe, run, resume=True, device="cpu")
    assert [p.name for p in run.rglob(".*.tmp")] == [".asr-2.tmp"]
