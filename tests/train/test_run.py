"""Training through the command line: it learns, it survives kill -9, it reports what it skips."""

import itertools
import os
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lhotse import CutSet
from lhotse.utils import fastcopy
from safetensors.torch import load_file

import asr
from asr.bundle import Bundle
from asr.config import Config, load_config
from asr.data.manifest import load_cuts
from asr.data.sampling import plan_epoch
from asr.errors import ConfigError, DataError
from asr.evaluation.calibration import Calibration
from asr.evaluation.cer import ErrorCounts
from asr.train.checkpoints import Checkpoints
from asr.train.datamodule import SpeechDataModule
from asr.train.distributed import sole_run
from asr.train.progress import TrainingProgress
from asr.train.run import train
from asr.train.schedule import rate, warn_of_warmup
from tests.helpers import (
    learning_recipe,
    read_card,
    run_cli,
    speak,
    start_cli,
    tones_recipe,
    wait_for,
    write_recipe,
)


@pytest.mark.parametrize(
    ("rates", "wanted"),
    [
        ([97.7, 86.2, 77.8], [3]),  # the first epochs know nothing yet
        ([60.0, 20.0, 18.5, 18.0], [4, 3]),
        ([5.0, 0.9, 0.3, 0.0], [4, 3, 2]),
        ([40.0, 30.0, 31.0, 30.5, 33.0, 90.0], [2, 4, 3]),
    ],
)
def test_epochs_far_worse_than_the_best_are_not_in_the_mean(
    rates: list[float], wanted: list[int], tmp_path: Path
) -> None:
    config = Config.model_validate(tones_recipe(tmp_path, training={"average": 3}))
    module = SimpleNamespace(config=config, dev_metrics=("val_cer_percent",))
    data = SimpleNamespace()
    checkpoints = Checkpoints(tmp_path, module, data, lambda _: None)  # type: ignore[arg-type]
    for i, percent in enumerate(rates, 1):
        checkpoints.history.append({"epoch": i, "val_cer_percent": percent})
        (tmp_path / f"epoch{i}.safetensors").touch()
    assert [path.name for path in checkpoints.best] == [f"epoch{i}.safetensors" for i in wanted]


def test_the_bundle_has_the_confidence_threshold_of_its_best_epoch(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thresholds, edits = iter((0.1, 0.2, 0.3)), iter((90, 10, 50))
    monkeypatch.setattr(Calibration, "threshold", property(lambda _: next(thresholds)))
    monkeypatch.setattr(
        Calibration, "errors", lambda *_: ErrorCounts(next(edits), reference_length=100)
    )
    train(Config.model_validate(tones_recipe(tones, training={"epochs": 3})), tmp_path / "run")
    assert Bundle.load(tmp_path / "run").config.decoding.confidence_threshold == 0.2


@pytest.mark.costly
def test_a_larger_average_takes_what_a_run_has_kept(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = iter((21, 20, 19, 18))
    monkeypatch.setattr(
        Calibration, "errors", lambda *_: ErrorCounts(next(edits), reference_length=100)
    )
    values = tones_recipe(tones, training={"epochs": 3, "average": 1})
    train(Config.model_validate(values), tmp_path / "run")
    values["training"] = {**values["training"], "average": 3, "epochs": 4}
    train(Config.model_validate(values), tmp_path / "run", resume=True)
    kept = {path.name for path in (tmp_path / "run/training").glob("epoch*.safetensors")}
    assert {"epoch3.safetensors", "epoch4.safetensors"} <= kept and len(kept) <= 3, kept
    assert (tmp_path / "run/training/finished").is_file()


def test_it_recognizes_utterances_that_it_was_not_trained_on(learned: Path, tmp_path: Path) -> None:
    import soundfile as sf

    model = asr.load(learned)
    texts = ["四一五", "二二三", "五四三一", "三"]
    for i, text in enumerate(texts):
        sf.write(tmp_path / f"{i}.wav", speak(text, 1000 + i), 8000)
    found = [model.transcribe(tmp_path / f"{i}.wav") for i in range(len(texts))]
    assert [f.text for f in found] == texts
    assert all(f.nbest[0].text == f.text and f.nbest[0].score == f.score for f in found)
    assert any(len(f.nbest) > 1 for f in found)


def weights(bundle: Path) -> dict[str, torch.Tensor]:
    return load_file(bundle / "model.safetensors")


@pytest.fixture(scope="session")
def undisturbed(once, tones: Path) -> Path:
    config = Config.model_validate(tones_recipe(tones))
    return once("undisturbed", lambda folder: train(config, folder / "run")) / "run"


# A function, the step at which it kills, and the last epoch that the bundle that is left may be of:
# one that is no better than the first is not written.
KILLS = {
    "in the first epoch": ("t.SpeechModule.training_step", 3, 0),
    "in the second epoch": ("t.SpeechModule.training_step", 20, 1),
    "after an epoch's end": ("t.SpeechModule.on_train_batch_start", 15, 1),
    "in validation": ("t.SpeechModule.on_validation_epoch_end", 15, 0),
    "before the state that follows a bundle": ("r.write_cost", None, 1),
    "before the last bundle": ("t.SpeechModule.on_fit_end", None, 2),
}


@pytest.mark.costly
@pytest.mark.drawn(2)
@pytest.mark.parametrize("kill", KILLS)
def test_kill_9_then_resume_gives_the_weights_of_an_undisturbed_run(
    tones: Path, tmp_path: Path, undisturbed: Path, kill: str
) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", tones_recipe(tones))
    cut, (place, step, epochs) = tmp_path / "cut", KILLS[kill]

    killer = (
        "import os, signal; import asr.train.module as t; import asr.train.run as r\n"
        f"place = {place}\n"
        "def die(*args):\n"
        f"    if {step} in (None, getattr(args[0], 'global_step', None)):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return place(*args)\n"
        f"{place} = die"
    )
    killed = run_cli("train", recipe, "--out", cut, before=killer)
    assert killed.returncode == -signal.SIGKILL
    assert (cut / "training" / "last.ckpt").is_file()
    assert (cut / "model.safetensors").exists() == bool(epochs)
    if epochs:
        assert re.search(rf"\| unfinished: epoch [1-{epochs}] of 2 \|", read_card(cut))
        assert asr.load(cut, "cpu").transcribe(tones / "wav" / "dev0.wav").duration > 0
    resumed = run_cli("train", recipe, "--out", cut, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "unfinished" not in read_card(cut)
    expected, found = weights(undisturbed), weights(cut)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


def test_the_same_seed_gives_the_same_weights_and_another_does_not(
    tones: Path, tmp_path: Path
) -> None:
    values = tones_recipe(tones, training={"epochs": 1})
    same = [train(Config.model_validate(values), tmp_path / f"{i}") for i in range(2)]
    other = train(Config.model_validate({**values, "seed": 2}), tmp_path / "other")
    a, b, c = (weights(path) for path in (*same, other))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


def test_a_run_is_not_overwritten_and_a_finished_one_is_not_repeated(
    learned: Path, tones: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(learned, tmp_path / "run"))
    values = learning_recipe(tones)
    with pytest.raises(ConfigError, match="--resume"):
        train(Config.model_validate(values), run)
    before = (run / "model.safetensors").stat().st_mtime_ns
    train(Config.model_validate(values), run, resume=True)
    assert (run / "model.safetensors").stat().st_mtime_ns == before
    values["model"] = {**values["model"], "d_inner": 96}
    with pytest.raises(ConfigError, match="another model"):
        train(Config.model_validate(values), run, resume=True)
    for resume, name in ((False, "training/*.ckpt"), (True, "training"), (False, "training")):
        for left in run.glob(name):  # as to save room
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        with pytest.raises(ConfigError, match="holds a bundle already: give another folder"):
            train(Config.model_validate(values), run, resume=resume)
    assert (run / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("change", ["speeds", "pauses", "tempo", "dev", "frame", "nothing"])
def test_an_utterance_longer_than_the_attention_is_refused_before_the_first_step(
    change: str, tones: Path, tmp_path: Path
) -> None:
    """Or training would end in the middle, and again wherever it resumes."""
    attention = {"kind": "linformer", "rank": 5, "length": 13}  # 0.52 s
    values = tones_recipe(tones, model={"encoder": {"n_layers": 1, "attention": attention}})
    values["augment"] |= {
        "voices": {"tempo": 1.3} if change == "tempo" else None,
        "pauses": {"from_epoch": 2} if change == "pauses" else None,
    }
    values["data"]["speed_factors"] = [0.7, 1.0] if change == "speeds" else [1.0]
    if change in ("dev", "frame"):  # 0.55 s begin 56 frames, and so a step more than 13
        values["data"]["dev"] = str(tmp_path / "dev.jsonl.gz")
        first, *others = load_cuts(tones / "dev.jsonl.gz")
        seconds = 0.6 if change == "dev" else 0.55
        CutSet.from_cuts([first.pad(seconds), *others]).to_file(values["data"]["dev"])
    config = Config.model_validate(values)
    if change == "nothing":
        SpeechDataModule(config)
        return
    with pytest.raises(DataError, match=r"length 13 is 0\.52 s: set data\.max_seconds or shorter"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run/model.safetensors").exists()


def test_a_damaged_or_foreign_state_is_refused_in_a_sentence(tones: Path, tmp_path: Path) -> None:
    train(Config.model_validate(tones_recipe(tones, training={"epochs": 1})), tmp_path / "run")
    longer = Config.model_validate(tones_recipe(tones, training={"epochs": 2}))
    last = tmp_path / "run" / "training" / "last.ckpt"
    (last.parent / "previous.ckpt").unlink()
    last.write_bytes(last.read_bytes()[:2000])
    with pytest.raises(ConfigError, match="damaged"):
        train(longer, tmp_path / "run", resume=True)
    torch.save({"something": 1}, last)
    with pytest.raises(ConfigError, match="not the state of a training"):
        train(longer, tmp_path / "run", resume=True)


def test_a_run_goes_on_with_its_own_utterances_alone(tones: Path, tmp_path: Path) -> None:
    """Wherever they lie, but with other texts or another split it would be another run."""
    corpus = Path(shutil.copytree(tones, tmp_path / "corpus"))
    config = Config.model_validate(tones_recipe(corpus))
    train(config, tmp_path / "run", device="cpu")
    (tmp_path / "run/training/finished").unlink()
    moved = Config.model_validate(tones_recipe(Path(shutil.copytree(corpus, tmp_path / "moved"))))
    assert SpeechDataModule(moved).digest == SpeechDataModule(config).digest
    cuts = [fastcopy(cut, supervisions=[fastcopy(cut.supervisions[0], text="五一")])
            for cut in load_cuts(corpus / "dev.jsonl.gz")]  # fmt: skip
    CutSet.from_cuts(cuts).to_file(corpus / "dev.jsonl.gz")
    with pytest.raises(ConfigError, match=r"other utterances of data\.train, data\.dev or"):
        train(config, tmp_path / "run", resume=True, device="cpu")


def test_utterances_of_dev_in_training_are_told(
    tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dev = load_cuts(tones / "dev.jsonl.gz")
    both = [*load_cuts(tones / "train.jsonl.gz"), fastcopy(dev[0], id="another name")]
    CutSet.from_cuts(both).to_file(tmp_path / "train.jsonl.gz")
    names = {"train": str(tmp_path / "train.jsonl.gz"), "dev": str(tones / "dev.jsonl.gz")}
    SpeechDataModule(Config.model_validate(tones_recipe(tones, data=names)))
    assert f"1 of {len(dev)} utterances are of recordings and times" in caplog.text
    caplog.clear()
    longest = max(dev, key=lambda cut: cut.duration)
    cut = fastcopy(longest, id="a part", start=0.1, duration=longest.duration - 0.1)
    CutSet.from_cuts([*load_cuts(tones / "train.jsonl.gz"), cut]).to_file(Path(names["train"]))
    SpeechDataModule(Config.model_validate(tones_recipe(tones, data=names)))
    assert f"1 of {len(dev)} utterances are of recordings and times" in caplog.text
    caplog.clear()
    SpeechDataModule(Config.model_validate(tones_recipe(tones)))
    assert "in training too" not in caplog.text


@pytest.mark.parametrize("place", ["projection", "projections.feed_forward"])
def test_the_rate_of_the_product_is_of_adam_alone(place: str, tones: Path, tmp_path: Path) -> None:
    values = tones_recipe(tones, training={"optimizer": {"kind": "muon"}})
    path = write_recipe(tmp_path / "recipe.yaml", values)
    config = load_config(path, [f"model.{place}={{kind: low_rank, rank: 4, rate: product}}"])
    with pytest.raises(ConfigError, match="rate: product scales Adam's learning rate"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_its_own_optimizer_alone(tones: Path, tmp_path: Path) -> None:
    def recipe(epochs: int, **more: object) -> Config:
        return Config.model_validate(tones_recipe(tones, training={"epochs": epochs, **more}))

    muon = {"optimizer": {"kind": "muon"}}
    train(recipe(1, **muon), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"begun with another training\.optimizer"):
        train(recipe(2), tmp_path / "run", resume=True)
    train(recipe(2, **muon), tmp_path / "run", resume=True)
    assert "unfinished" not in read_card(tmp_path / "run")


def test_ctrl_c_says_how_to_go_on(tones: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "r.yaml", tones_recipe(tones, training={"epochs": 2000}))
    # Whoever runs the tests in the background has SIGINT ignored, and children inherit that.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    with start_cli("train", recipe, "--out", tmp_path / "run", before=listen) as run:
        wait_for((tmp_path / "run" / "training" / "last.ckpt").is_file, 60)
        for _ in range(6):  # Python drops an interrupt that falls into a destructor: press again
            os.kill(run.pid, signal.SIGINT)
            with suppress(AssertionError):
                wait_for(lambda: "--resume" in run.err.read_text("utf-8"), 10)
                break
        else:
            os.kill(run.pid, signal.SIGKILL)
            pytest.fail("Ctrl-C does not stop a run")
        process = run.result()
    assert process.returncode == 130
    assert "--resume" in process.stderr
    assert "Traceback" not in process.stderr


def test_an_epoch_holds_every_cut_once_in_another_order_each_time(tones: Path) -> None:
    cuts = load_cuts(tones / "train.jsonl.gz")
    epochs = [[c.id for batch in plan_epoch(cuts, 3.0, 1, e) for c in batch] for e in (0, 1, 0)]
    assert sorted(epochs[0]) == sorted(c.id for c in cuts)
    assert sorted(epochs[1]) == sorted(epochs[0])
    assert epochs[1] != epochs[0] == epochs[2]
    for batch in plan_epoch(cuts, 3.0, 1, 0):
        assert sum(c.duration for c in batch) <= 3.0


def test_a_bar_or_a_line_every_half_minute_tells_how_long_a_run_will_take(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    seconds = itertools.count(0, 5)  # between two looks at the clock
    real = TrainingProgress.__init__
    monkeypatch.setattr(
        TrainingProgress, "__init__", lambda self, c: real(self, c, lambda: next(seconds))
    )
    train(Config.model_validate(tones_recipe(tones)), tmp_path / "run")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch ")]
    pattern = r"epoch 1/2  step 6/30  loss \d+\.\d+  learning rate \d\.\d\de-0\d  0:02:00 left"
    assert re.fullmatch(pattern, lines[0]), lines[0]
    assert sum("left" in line for line in lines) > 2
    assert re.search(r"dev CER \d+\.\d\d %  step 30  ", lines[-1])
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    train(Config.model_validate(tones_recipe(tones)), tmp_path / "shown")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert re.search(r"epoch 1/2 .* loss \d+\.\d+ +0:0[0-2]:\d\d left", shown), shown


def test_the_utterances_are_counted_once_whatever_their_speeds(tones: Path, tmp_path: Path) -> None:
    data = {"speed_factors": [0.9, 1.0, 1.1]}
    recipe = tones_recipe(tones, data=data, training={"epochs": 1})
    path, wide = write_recipe(tmp_path / "r.yaml", recipe), "import os; os.environ['COLUMNS']='500'"
    result = run_cli("train", path, "--out", tmp_path / "run", before=wide)
    assert "120 utterances (0.0 h) x 3 speeds; 9 tokens" in result.stderr
    assert result.stderr.count(f"tensorboard --logdir {tmp_path}/run/training/curves") == 1
    assert list((tmp_path / "run" / "training" / "curves").glob("events.out.*"))
    assert "| 120 utterances (0.0 h) x 3 speeds from " in read_card(tmp_path / "run")


def test_a_bad_recording_is_skipped_and_reported(tones: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(tones, tmp_path / "data")
    cuts = load_cuts(tones / "train.jsonl.gz")
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"RIFF but nothing else")
    broken = next(iter(cuts))
    broken.recording.sources[0].source = str(bad)
    cuts.to_file(tmp_path / "train.jsonl.gz")
    values = tones_recipe(tones, training={"epochs": 1})
    values["data"]["train"] = str(tmp_path / "train.jsonl.gz")
    recipe = write_recipe(tmp_path / "r.yaml", values)
    result = run_cli("train", recipe, "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert f"skipped: {broken.id}" in " ".join(result.stderr.split())


def test_batches_without_one_readable_recording_are_skipped_too(
    tones: Path, tmp_path: Path
) -> None:
    import shutil

    cuts = load_cuts(tones / "train.jsonl.gz")
    longest = sorted(cuts, key=lambda c: c.duration)[-3:]  # batches of their own, at 1 s a batch
    for cut in longest:
        cut.recording.sources[0].source = str(tmp_path / "missing.wav")
    cuts.to_file(tmp_path / "train.jsonl.gz")
    shutil.copy(tones / "dev.jsonl.gz", tmp_path / "dev.jsonl.gz")
    data = {"train": str(tmp_path / "train.jsonl.gz"), "batch_seconds": 1.0}
    bundle = train(
        Config.model_validate(tones_recipe(tones, data=data, training={"epochs": 1})),
        tmp_path / "run",
    )
    assert "skipped as unreadable | 3" in read_card(bundle)


def test_a_diverging_run_stops_and_keeps_its_last_sound_state(tones: Path, tmp_path: Path) -> None:
    schedule = {"kind": "constant", "lr": 1e30}
    recipe = tones_recipe(tones, training={"schedule": schedule, "checkpoint_steps": 1})
    result = run_cli("train", write_recipe(tmp_path / "r.yaml", recipe), "--out", tmp_path / "run")
    assert result.returncode == 1
    assert "lower the learning rate" in " ".join(result.stderr.split())
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_unusable_manifests_are_named(tmp_path: Path, tones: Path) -> None:
    values = tones_recipe(tones)
    missing = tmp_path / "none.jsonl.gz"
    with pytest.raises(DataError, match=r"none\.jsonl\.gz: there is no such manifest"):
        load_cuts(missing)
    missing.write_bytes(b"not gzip at all")
    with pytest.raises(DataError, match=r"none\.jsonl\.gz: is not a lhotse manifest"):
        load_cuts(missing)
    with pytest.raises(DataError, match=r"a folder of `asr prepare`: .*/test\.jsonl\.gz"):
        load_cuts(tones)
    values["data"] = {**values["data"], "min_seconds": 9.0}
    with pytest.raises(DataError, match="no utterance has a text"):
        train(Config.model_validate(values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("new/deep/run", []),
        (".", []),
        ("empty", ["empty"]),
        ("link", ["empty", "link"]),
        ("mine", ["mine", "mine/notes.txt"]),
        ("written", ["written", "written/training", "written/training/lock", "written/training/x"]),
        ("removed", []),
    ],
)
def test_a_run_that_fails_leaves_the_folders_that_were_there_or_have_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, left: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if given in ("empty", "link", "mine"):
        Path(given.replace("link", "empty")).mkdir()
    if given == "link":
        Path("link").symlink_to("empty")
    if given == "mine":
        Path("mine/notes.txt").touch()
    with pytest.raises(DataError, match="refused"), sole_run(Path(given) / "training"):
        if given == "written":
            Path("written/training/x").touch()
        if given == "removed":
            shutil.rmtree(given)
        raise DataError("refused")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == left


def test_a_recipe_that_its_model_cannot_be_decoded_by_writes_nothing(
    tmp_path: Path, tones: Path
) -> None:
    values = tones_recipe(tones, decoding={"method": "ctc_sounds"})
    values["tokenizer"] = {"kind": "bpe", "vocab_size": 12}
    with pytest.raises(ConfigError, match="tokens of one character"):
        train(Config.model_validate(values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_schedules_are_what_they_say(tones: Path, caplog: pytest.LogCaptureFixture) -> None:
    noam = Config.model_validate(tones_recipe(tones)).training
    rates = [rate(step, noam, 32, 0) for step in range(1, 200)]
    assert max(rates) == rates[49] == pytest.approx(32**-0.5 * 50**-0.5)
    assert rates[0] == pytest.approx(rates[49] / 50)
    assert rates[198] == pytest.approx(32**-0.5 * 199**-0.5)
    linear = Config.model_validate(learning_recipe(tones)).training
    rates = [rate(step, linear, 32, 240) for step in range(1, 242)]
    assert rates[39] == pytest.approx(4e-3)
    assert rates[139] == pytest.approx(4e-3 * 101 / 200)
    assert rates[240] == 0
    caplog.clear()
    for steps in (240, 41, 40):
        warn_of_warmup(linear, steps)
    (warning,) = caplog.messages
    assert "40 are not over when the run of 40 steps ends" in warning and "set 4 or" in warning
