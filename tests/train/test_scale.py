"""Several processes, several batches per step, corpora in shards, and failures of a run."""

import csv
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lhotse import CutSet
from safetensors.torch import load_file
from torch.nn.functional import ctc_loss

from asr.config import Config
from asr.data.dataset import SpeechDataset
from asr.data.manifest import load_cuts, read_wave
from asr.data.sampling import plan_epoch
from asr.decoding.ctc_prefix import steps_needed
from asr.errors import AsrError, ConfigError, DataError
from asr.runtime.devices import has_bfloat16
from asr.train import datamodule
from asr.train.datamodule import SpeechDataModule
from asr.train.module import SpeechModule
from asr.train.run import train
from asr.train.step import MOST_SKIPPED
from tests.helpers import read_card, run_cli, start_cli, tones_recipe, write_recipe


def history(run: Path) -> list[dict[str, float]]:
    with (run / "training" / "history.csv").open() as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def without_randomness(tones: Path, seconds: float, **training: Any) -> dict[str, Any]:
    """Three epochs that depend on nothing but what the steps hold."""
    values = tones_recipe(
        tones, data={"batch_seconds": seconds}, model={"dropout": 0.0},
        training={"epochs": 3, **training},
    )  # fmt: skip
    return {**values, "augment": None}


def assert_same_run(one: Path, other: Path) -> None:
    """The same loss curve.

    Not the same weights: the gradient of some is nothing but rounding (a key's bias moves all
    scores alike), which Adam scales up.
    """
    pairs = list(zip(history(one), history(other), strict=True))
    assert [row["epoch"] for row, _ in pairs] == [1, 2, 3]
    for a, b in pairs:
        assert a["train_loss"] == pytest.approx(b["train_loss"], abs=1e-4)
        assert a["val_loss"] == pytest.approx(b["val_loss"], abs=1e-4)
        assert a["val_cer_percent"] == b["val_cer_percent"]


@pytest.fixture(scope="session")
def in_one(once, tones: Path) -> Path:
    """One process, 8 s a step."""
    config = Config.model_validate(without_randomness(tones, 8))
    return once("in_one", lambda folder: train(config, folder / "run")) / "run"


def test_accumulated_batches_are_one_batch(tones: Path, in_one: Path, tmp_path: Path) -> None:
    values = without_randomness(tones, 2, accumulate=4)
    assert_same_run(train(Config.model_validate(values), tmp_path / "run"), in_one)


def torchrun(script: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*map(str, [*launcher, "--nproc-per-node", "2", script, *args])],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip


PLACE = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


def two_processes(*args: str | Path) -> list[subprocess.CompletedProcess[str]]:
    """What torchrun starts, by its variables alone, which spares three starts of torch."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ExitStack() as runs:
        started = []
        for rank in ("0", "1"):
            variables = {**PLACE, "MASTER_PORT": str(port), "RANK": rank, "LOCAL_RANK": rank}
            before = f"import os; os.environ.update({variables})"
            started.append(runs.enter_context(start_cli(*args, before=before)))
        return [run.result() for run in started]


@pytest.mark.costly
def test_two_processes_are_one_and_survive_the_death_of_either(
    tones: Path, in_one: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path / "r.yaml", without_randomness(tones, 4))
    killer = tmp_path / "killer.py"
    killer.write_text(
        "import os, signal; import asr.train.module as t\n"
        "step = t.SpeechModule.training_step\n"
        "def die(self, *args):\n"
        "    if os.environ['RANK'] == '1' and self.global_step == 11:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return step(self, *args)\n"
        "t.SpeechModule.training_step = die\n"
        "from asr.cli import main; main()"
    )
    killed = torchrun(killer, "train", recipe, "--out", tmp_path / "run")
    assert killed.returncode == 1
    survivor = [line for line in killed.stderr.splitlines() if line.startswith("asr: ")]
    assert len(survivor) == 1 and "another process of this run has ended" in survivor[0]
    assert "SIGKILL" in killed.stderr.partition("Root Cause")[2]  # torchrun's own words
    assert "| unfinished: epoch 1 of 3 |" in read_card(tmp_path / "run")
    resumed = two_processes("train", recipe, "--out", tmp_path / "run", "--resume")
    assert [run.returncode for run in resumed] == [0, 0], resumed[0].stderr
    assert_same_run(tmp_path / "run", in_one)


def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        place = {**PLACE, "MASTER_PORT": str(port), "RANK": "0"}
        code = (
            f"import os, torch; os.environ.update({place})\n"
            "from asr.train.distributed import init_distributed\n"
            "with init_distributed(torch.device('cpu')): pass"
        )
        result = run_cli("--version", before=code)
    assert f"ConfigError: the processes of the run cannot meet at 127.0.0.1:{port}" in result.stderr
    assert "--standalone" in result.stderr


@contextmanager
def process(number: int, of: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datamodule, "rank", lambda: number)
        patch.setattr(datamodule, "world_size", lambda: of)
        yield


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    world=st.integers(1, 9), turns=st.integers(1, 4), seconds=st.floats(0.3, 20.0),
    epoch=st.sampled_from([None, 0, 3]), seed=st.integers(0, 99),
)  # fmt: skip
def test_every_cut_is_in_one_place_and_all_processes_make_as_many_steps(
    tones: Path, world: int, turns: int, seconds: float, epoch: int | None, seed: int
) -> None:
    values = tones_recipe(tones, data={"batch_seconds": seconds}, training={"accumulate": turns})
    config, shares = Config.model_validate({**values, "seed": seed}), []
    for number in range(world):
        with process(number, world):
            datamodule = SpeechDataModule(config)
            shares.append(datamodule._steps(epoch))
            planned = [sorted(c.id for c in batch) for batch in datamodule.plan(epoch)]
    assert {len(steps) for steps in shares} == {len(planned)}
    assert all(len(parts) == turns for steps in shares for parts in steps)
    together = [
        sorted(cut.id for steps in shares for part in steps[i] for cut in part)
        for i in range(len(planned))
    ]
    assert together == planned
    wanted = datamodule.dev_cuts if epoch is None else datamodule.train_cuts
    assert sorted(i for step in together for i in step) == sorted(c.id for c in wanted)
    longest = max(cut.duration for cut in wanted)
    for part in (part for steps in shares for parts in steps for part in parts):
        assert sum(cut.duration for cut in part) <= seconds + longest


def test_a_run_does_not_resume_with_steps_of_another_size(tones: Path, tmp_path: Path) -> None:
    config = Config.model_validate(tones_recipe(tones, training={"epochs": 1}))
    train(config, tmp_path / "run")
    more = tones_recipe(tones, training={"epochs": 2, "accumulate": 3})
    with pytest.raises(ConfigError, match=r"a step held 4 s of audio, it would now hold 12 "):
        train(Config.model_validate(more), tmp_path / "run", resume=True)
    halved = tones_recipe(tones, data={"batch_seconds": 2}, training={"epochs": 2, "accumulate": 2})
    train(Config.model_validate(halved), tmp_path / "run", resume=True)
    assert [row["epoch"] for row in history(tmp_path / "run")] == [1, 2]


def test_a_step_that_is_not_finite_is_skipped_and_counted(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, step = SpeechDataset._read, SpeechModule.training_step
    bad = next(iter(load_cuts(tones / "train.jsonl.gz"))).id
    skips = []

    def poisoned(self: SpeechDataset, cut: Any) -> torch.Tensor | None:
        feats = read(self, cut)
        return feats * torch.nan if cut.id == bad and feats is not None else feats

    def state(module: SpeechModule) -> list[torch.Tensor]:
        adam = module.trainer.optimizers[0]
        moments = [v for s in adam.state.values() for v in s.values()]
        return [t.detach().clone() for t in (*module.parameters(), *moments)]

    def watched(self: SpeechModule, batch: Any, batch_idx: int) -> Any:
        before, skipped, done = state(self), self.counters.skipped, self.global_step
        result = step(self, batch, batch_idx)
        if self.counters.skipped > skipped:
            assert bad in [name for part in batch.batches for name in part.ids]
            assert self.global_step == done
            assert all(map(torch.equal, before, state(self)))
            skips.append(done)
        return result

    monkeypatch.setattr(SpeechDataset, "_read", poisoned)
    monkeypatch.setattr(SpeechModule, "training_step", watched)
    out = train(Config.model_validate(tones_recipe(tones)), tmp_path / "run")
    assert len(skips) == 2  # the utterance's step in each of two epochs
    assert "steps skipped as not finite | 2" in read_card(out)
    assert "skipped, not finite: loss nan" in caplog.text and bad in caplog.text
    assert all(t.isfinite().all() for t in load_file(out / "model.safetensors").values())


def test_a_run_of_nothing_but_bad_steps_ends(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, seen = SpeechModule.losses, []

    def poisoned(self: SpeechModule, *args: Any) -> torch.Tensor:
        seen.append(self.counters.skipped)
        return losses(self, *args) * torch.inf

    monkeypatch.setattr(SpeechModule, "losses", poisoned)
    with pytest.raises(AsrError, match=rf"{MOST_SKIPPED} steps in a row: lower the learning rate"):
        train(Config.model_validate(tones_recipe(tones)), tmp_path / "run")
    assert seen[-1] == MOST_SKIPPED - 1


def test_the_largest_batches_come_first_and_memory_gives_out_before_a_step(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, areas = SpeechModule.losses, []

    def measured(self: SpeechModule, batch: Any, feats_BTF: torch.Tensor) -> torch.Tensor:
        areas.append((self.training, self.global_step, feats_BTF.shape[0] * feats_BTF.shape[1]))
        return losses(self, batch, feats_BTF)

    monkeypatch.setattr(SpeechModule, "losses", measured)
    values = tones_recipe(tones, training={"epochs": 1})
    train(Config.model_validate(values), tmp_path / "a")
    first, second = areas[:2]
    assert first[:2] == (True, 0) and second[:2] == (False, 0)
    assert first[2] == max(area for training, _, area in areas[2:] if training)
    assert second[2] == max(area for training, _, area in areas[2:] if not training)

    def too_large(self: SpeechModule, batch: Any, feats_BTF: torch.Tensor) -> torch.Tensor:
        assert self.global_step == 0
        if not self.training:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return losses(self, batch, feats_BTF)

    monkeypatch.setattr(SpeechModule, "losses", too_large)
    fix = "data.batch_seconds=2 --set training.accumulate=2"
    with pytest.raises(AsrError, match=f"data.batch_seconds 4 is more .* {fix}"):
        train(Config.model_validate(values), tmp_path / "b")
    monkeypatch.setattr(SpeechModule, "losses", losses)
    train(Config.model_validate(values), tmp_path / "b")  # nothing is left of the failed run


@pytest.mark.costly
def test_a_run_without_progress_stops_early_and_stays_so(tones: Path, tmp_path: Path) -> None:
    schedule = {"kind": "constant", "lr": 1e-12}
    values = tones_recipe(tones, training={"epochs": 9, "patience": 2, "schedule": schedule})
    out = train(Config.model_validate(values), tmp_path / "run")
    assert len(history(out)) == 3
    assert "| epochs | 3 |" in read_card(out)
    (out / "training" / "finished").unlink()  # as if it had been cut off before the bundle
    train(Config.model_validate(values), out, resume=True)
    assert len(history(out)) == 3


@pytest.mark.costly
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("number", "place"), [(signal.SIGTERM, "validation_step"), (signal.SIGINT, "training_step")]
)
def test_a_signal_saves_the_very_step(
    tones: Path, tmp_path: Path, number: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.model_validate(tones_recipe(tones, training={"checkpoint_steps": 1000}))
    real = getattr(SpeechModule, place)

    def ask(self: SpeechModule, *args: Any) -> Any:
        if place == "validation_step" or self.global_step == 5:
            os.kill(os.getpid(), number)
        return real(self, *args)

    # Whoever runs the tests in the background has SIGINT ignored.
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as stopped:
        patch.setattr(SpeechModule, place, ask)
        train(config, tmp_path / "run")
    assert stopped.value.args == (number,)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for n, handler in handlers.items():
        signal.signal(n, handler)
    state = torch.load(tmp_path / "run" / "training" / "last.ckpt", weights_only=True)
    n_steps = len(SpeechDataModule(config).plan(0))
    assert state["global_step"] == (6 if place == "training_step" else n_steps)
    train(config, tmp_path / "run", resume=True)
    whole = train(config, tmp_path / "whole")
    expected, found = (load_file(run / "model.safetensors") for run in (whole, tmp_path / "run"))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert [row["epoch"] for row in history(tmp_path / "run")] == [1, 2]
    for a, b in zip(history(whole), history(tmp_path / "run"), strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


def test_sigterm_is_exit_code_143(tones: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal; import asr.train.module as t\n"
        "step = t.SpeechModule.training_step\n"
        "def ask(*args):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return step(*args)\n"
        "t.SpeechModule.training_step = ask"
    )
    recipe = write_recipe(tmp_path / "r.yaml", tones_recipe(tones))
    stopped = run_cli("train", recipe, "--out", tmp_path / "run", before=code)
    assert stopped.returncode == 143, stopped.stderr
    assert "--resume" in stopped.stderr and "Traceback" not in stopped.stderr


NOT_YET_SEEN_DEAD = (
    "import torch.utils.data.dataloader as loader\n"
    "Iterator = loader._MultiProcessingDataLoaderIter\n"
    "get = Iterator._try_get_data\n"
    "def early(self, *args, **kwargs):\n"
    "    try:\n"
    "        return get(self, *args, **kwargs)\n"
    "    except RuntimeError:\n"
    "        raise ConnectionResetError(104, 'Connection reset by peer')\n"
    "Iterator._try_get_data = early\n"
)


@pytest.mark.costly
@pytest.mark.drawn(1)
@pytest.mark.parametrize("noticed", ["", NOT_YET_SEEN_DEAD], ids=["dead", "broken pipe"])
def test_the_death_of_a_reading_process_names_what_it_read(
    tones: Path, tmp_path: Path, noticed: str
) -> None:
    values = tones_recipe(tones, data={"num_workers": 1})
    recipe = write_recipe(tmp_path / "r.yaml", values)
    code = noticed + (
        "import os, signal; import asr.data.dataset as d\n"
        "read = d.read_wave\n"
        "def die(cut, *args):\n"
        "    if cut.id == 'train7' and d.get_worker_info():\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return read(cut, *args)\n"
        "d.read_wave = die"
    )
    result = run_cli("train", recipe, "--out", tmp_path / "run", before=code)
    assert result.returncode == 1
    assert "while train7 was read" in result.stderr and "num_workers=0" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_full_disk_and_an_unwritable_place_are_found_before_training(
    tones: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path / "r.yaml", tones_recipe(tones))
    small = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (100_000, r.RLIM_INFINITY))"
    full = run_cli("train", recipe, "--out", tmp_path / "full", before=small)
    assert full.returncode == 1
    assert "no room for the " in full.stderr and "epoch" not in full.stderr
    assert not (tmp_path / "full").exists()
    with pytest.raises(OSError) as unwritable:  # which the command line reports in a sentence
        train(Config.model_validate(tones_recipe(tones)), recipe / "run")
    assert str(recipe) in str(unwritable.value)


def test_where_a_processor_lacks_bfloat16_a_recipe_with_it_trains_in_float32(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False})
    for precision in ("float32", "bfloat16"):
        values = tones_recipe(tones, training={"precision": precision, "epochs": 1})
        train(Config.model_validate(values), tmp_path / precision, device="cpu")
        warned = "bfloat16 is for a GPU that computes in it, or a processor with" in caplog.text
        assert warned == (precision == "bfloat16")
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("float32", "bfloat16")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.skipif(not has_bfloat16(torch.device("cpu")), reason="needs such a processor")
def test_a_processor_trains_in_bfloat16(tones: Path, tmp_path: Path) -> None:
    """The losses of the first epoch are those of float32, nearly; the weights stay float32."""
    losses = {}
    for precision in ("float32", "bfloat16"):
        values = tones_recipe(tones, training={"precision": precision, "epochs": 1})
        out = train(Config.model_validate(values), tmp_path / precision, device="cpu")
        losses[precision] = history(out)[0]["val_loss"]
        weights = load_file(out / "model.safetensors").values()
        assert {weight.dtype for weight in weights} <= {torch.float32, torch.long}
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.integers(1, 12))
@settings(deadline=None)
def test_steps_needed_is_what_ctc_can_place(labels: list[int], n_steps: int) -> None:
    padded = torch.tensor([[*labels, 0, 0]])
    needed = int(steps_needed(padded, torch.tensor([len(labels)])))
    logp = torch.full((n_steps, 1, 4), 0.25).log()
    loss = ctc_loss(logp, padded, torch.tensor([n_steps]), torch.tensor([len(labels)]))
    assert bool(loss.isfinite()) == (needed <= n_steps)


def test_more_text_than_ctc_can_place_is_counted_and_does_no_harm(
    tones: Path, tmp_path: Path
) -> None:
    cuts = load_cuts(tones / "train.jsonl.gz")
    for cut in list(cuts)[:3]:
        cut.supervisions[0].text = "一" * 40
    cuts.to_file(tmp_path / "train.jsonl.gz")
    data = {"train": str(tmp_path / "train.jsonl.gz")}
    values = tones_recipe(tones, data=data, training={"epochs": 1})
    out = train(Config.model_validate(values), tmp_path / "run")
    card = read_card(out)
    assert "utterances with more text than CTC can place | 3" in card
    assert "steps skipped as not finite | 0" in card


@pytest.fixture(scope="module")
def shar(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training cuts in nine shards; the last cut is a part of its recording."""
    folder = tmp_path_factory.mktemp("shar")
    *cuts, last = load_cuts(tones / "train.jsonl.gz")
    part = last.truncate(offset=0.1, duration=0.2, preserve_id=True)
    CutSet.from_cuts([*cuts, part]).to_shar(folder, fields={"recording": "flac"}, shard_size=14)
    return folder


def test_shards_hold_what_the_manifest_holds(tones: Path, shar: Path) -> None:
    plain, sharded = load_cuts(tones / "train.jsonl.gz"), load_cuts(shar)
    assert [cut.id for cut in sharded] == [cut.id for cut in plain]
    *whole, part = zip(plain, sharded, strict=True)
    for a, b in whole:
        assert torch.equal(read_wave(a, 8000), read_wave(b, 8000))
        assert a.supervisions[0].text == b.supervisions[0].text
    expected = read_wave(part[0].truncate(offset=0.1, duration=0.2), 8000)
    torch.testing.assert_close(read_wave(part[1], 8000), expected)


def test_shards_are_read_a_few_at_a_time_in_another_order_each_epoch(shar: Path) -> None:
    cuts = load_cuts(shar)
    plans = {e: [c.id for b in plan_epoch(cuts, 3.0, 1, e) for c in b] for e in (0, 1)}
    assert sorted(plans[0]) == sorted(plans[1]) == sorted(c.id for c in cuts)
    shard = {c.id: i // 14 for i, c in enumerate(cuts)}
    last = [shard[plans[e][-1]] for e in plans]  # nine shards, eight at a time: one is left
    for e, alone in zip(plans, last, strict=True):
        places = [i for i, name in enumerate(plans[e]) if shard[name] == alone]
        assert places == list(range(len(cuts) - len(places), len(cuts)))
    assert last[0] != last[1]


def test_a_corpus_in_shards_trains(tones: Path, shar: Path, tmp_path: Path) -> None:
    values = tones_recipe(
        tones, data={"train": str(shar), "speed_factors": [0.9, 1.0]}, training={"epochs": 1}
    )
    out = train(Config.model_validate(values), tmp_path / "run")
    assert "skipped as unreadable | 0" in read_card(out)


def test_broken_shards_are_named(shar: Path, tmp_path: Path) -> None:
    import shutil

    broken = Path(shutil.copytree(shar, tmp_path / "broken"))
    (broken / "recording.000003.tar").unlink()
    with pytest.raises(DataError, match=r"broken: .*recording\.000003\.tar"):
        load_cuts(broken)
    shutil.copy(shar / "recording.000002.tar", broken / "recording.000003.tar")
    with pytest.raises(DataError, match=r"recording\.000003\.tar has train28"):
        load_cuts(broken)
    whole = (shar / "recording.000003.tar").read_bytes()
    (broken / "recording.000003.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="broken: is not a lhotse manifest"):
        load_cuts(broken)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: holds no utterances"):
        load_cuts(tmp_path / "empty")
