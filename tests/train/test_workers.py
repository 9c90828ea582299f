"""A process beside the training reads recordings and draws voices."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asr.config import Config
from asr.data.sampling import EpochSteps, loader
from asr.train import datamodule
from asr.train.datamodule import SpeechDataModule
from tests.helpers import run_cli, start_cli, tones_recipe, wait_for, write_recipe

VOICES = {"voices": {"pitch": 1.2, "formants": 1.1, "tempo": 1.2, "noise": 0.5, "rooms": 0.3}}
NOTING = """
import os
import asr.data.dataset as d
read = d.read_wave
def note(cut, *args):
    with open("reads", "a") as file:
        print(os.getpid(), cut.id, file=file)
    return read(cut, *args)
d.read_wave = note
"""


def recipe(tones: Path, workers: int | None, **augment: object) -> dict[str, object]:
    data = {} if workers is None else {"num_workers": workers}
    epochs = {"epochs": 3, "curriculum": {"epochs": 1, "share": 0.5}}
    return tones_recipe(tones, data=data, augment=VOICES | augment, training=epochs)


@pytest.mark.costly
def test_one_process_reads_each_recording_once_for_all_epochs_and_the_weights_are_the_same(
    tones: Path, tmp_path: Path
) -> None:
    weights = []
    for workers in (0, 2, 1):
        folder = tmp_path / str(workers)
        folder.mkdir()
        path = write_recipe(folder / "r.yaml", recipe(tones, workers))
        args = ("--threads", "1", "train", path, "--out", folder / "run")
        result = run_cli(*args, before=NOTING, cwd=folder)
        assert result.returncode == 0, result.stderr
        weights.append((folder / "run/model.safetensors").read_bytes())
    assert weights[0] == weights[1] == weights[2]
    reads = [line.split() for line in (tmp_path / "1/reads").read_text().splitlines()]
    trained = {cut.id for cut in SpeechDataModule(config(recipe(tones, 1))).train_cuts}
    by_process = {
        pid: [name for i, name in reads if i == pid] for pid, name in reads if name in trained
    }
    assert len(by_process) == 2, "the training reads its largest batch, and a process reads all"
    all_read = max(by_process.values(), key=len)
    assert sorted(all_read) == sorted(trained)


@pytest.mark.costly
@pytest.mark.parametrize("workers", [1, 2])
def test_a_training_killed_in_an_epoch_resumes_to_the_same_weights(
    tones: Path, tmp_path: Path, workers: int
) -> None:
    path = write_recipe(tmp_path / "r.yaml", recipe(tones, workers))
    plain = ("--threads", "1", "train", path, "--out")
    assert run_cli(*plain, tmp_path / "whole").returncode == 0
    die = (
        "import os, signal; import asr.train.module as t\n"
        "step = t.SpeechModule.training_step\n"
        "def die(self, batch, number):\n"
        "    if self.current_epoch == 1 and number == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return step(self, batch, number)\n"
        "t.SpeechModule.training_step = die"
    )
    assert run_cli(*plain, tmp_path / "cut", before=die).returncode == -9
    resumed = run_cli(*plain, tmp_path / "cut", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    whole, cut = (tmp_path / name / "model.safetensors" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["AsrError", "OSError"])
def test_an_error_of_the_storage_is_one_sentence(tones: Path, tmp_path: Path, kind: str) -> None:
    path = write_recipe(tmp_path / "r.yaml", recipe(tones, 1))
    lost = (
        "import asr.data.dataset as d; from asr.errors import AsrError\n"
        "read = d.read_wave\n"
        "def lose(cut, *args):\n"
        "    if d.get_worker_info():\n"
        f"        raise {kind}('s3://lost does not answer: look whether it is there')\n"
        "    return read(cut, *args)\n"
        "d.read_wave = lose"
    )
    result = run_cli("train", path, "--out", tmp_path / "run", before=lost)
    assert result.returncode == 1 and "s3://lost does not answer" in result.stderr
    assert "Traceback" not in result.stderr and "Caught" not in result.stderr


class Numbers:
    """A dataset that tells which steps were asked for, and by how many processes."""

    def __init__(self) -> None:
        self.asked = multiprocessing.SimpleQueue()

    def __getitem__(self, step: int) -> int:
        self.asked.put(step)
        return step


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where there is one processor
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_steps_of_later_epochs_are_read_once_each(workers: int) -> None:
    numbers, steps = Numbers(), EpochSteps(list(range(6)), 2)
    reader = loader(numbers, steps, workers, stays=True)  # type: ignore[arg-type]
    iter(reader)
    assert list(reader) == [2, 3, 4, 5]
    steps.renew([10, 11, 12])
    iter(reader), iter(reader)
    assert list(reader) == [10, 11, 12]
    steps.renew([20, 21], 1)
    assert list(reader) == [21]
    steps.renew([30, 31, 32])
    assert next(iter(reader)) == 30
    steps.renew([40, 41])
    assert list(reader) == [40, 41]
    if workers:
        asked = [numbers.asked.get() for _ in range(13)]
        assert sorted(asked) == [2, 3, 4, 5, 10, 11, 12, 21, 30, 31, 32, 40, 41]
        assert numbers.asked.empty()


HANGING = """
import sys, time
from asr.data.sampling import EpochSteps, loader
class Steps:
    def __getitem__(self, step):
        time.sleep(1000 * (step and len(sys.argv) > 1))
        return step
reader = loader(Steps(), EpochSteps([0, 1, 2]), 1, stays=True)
print(next(iter(reader)), flush=True)
"""


@pytest.mark.costly
@pytest.mark.parametrize("hangs", [[], ["hangs"]])
def test_python_ends_though_a_process_reads(hangs: list[str]) -> None:
    command = [sys.executable, "-c", HANGING, *hangs]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (found.stdout, found.stderr) == ("0\n", "")


@pytest.mark.costly
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_signal_to_the_group_of_both_processes_ends_the_training_as_it_should(
    tones: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    values = recipe(tones, 1)
    values["training"] = {**values["training"], "epochs": 2000}  # type: ignore[dict-item]
    path, out = write_recipe(tmp_path / "r.yaml", values), tmp_path / "run"
    own_group = (
        "import os, signal; os.setpgrp()\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
    )
    with start_cli("train", path, "--out", out, before=own_group) as run:
        wait_for((out / "training/last.ckpt").is_file, 60)
        for _ in range(6):  # Python drops an interrupt that falls into a destructor: press again
            # The kernel ends a killed group at once, so the process that reads is left alone there.
            (os.kill if number == signal.SIGKILL else os.killpg)(run.pid, number)
            if run.ends(20):
                break
        ended = run.result()
    assert ended.returncode == code
    assert number == signal.SIGKILL or "--resume" in ended.stderr
    assert "Traceback" not in ended.stderr
    wait_for(lambda: not group_lives(run.pid), 20)


def group_lives(group: int) -> bool:
    """Whether a process is left in it."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def config(values: dict[str, object]) -> Config:
    return Config.model_validate(values)


@pytest.mark.parametrize(
    ("processors", "asked", "augment", "local", "expected"),
    [
        (2, None, {}, 1, 1), (1, None, {}, 1, 0), (2, None, {}, 2, 0), (16, None, {}, 8, 1),
        (16, 0, {}, 1, 0), (1, 3, {}, 1, 3), (16, None, {"voices": None}, 1, 0),
    ],
)  # fmt: skip
def test_voices_are_drawn_by_a_process_where_there_is_a_processor_for_it(
    tones: Path, monkeypatch: pytest.MonkeyPatch,
    processors: int, asked: int | None, augment: dict[str, None], local: int, expected: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(datamodule, "usable_cpus", lambda: processors)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(0, 0, 2**26))
    assert SpeechDataModule(config(recipe(tones, asked, **augment))).n_workers == expected
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(0, 0, 9000))
    assert SpeechDataModule(config(recipe(tones, asked, **augment))).n_workers == (asked or 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(0, 0, 2**26))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert SpeechDataModule(config(recipe(tones, asked, **augment))).n_workers == (asked or 0)
