"""`asr finetune`: tokens are added, parts stay frozen, what is forgotten is measured."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
import torch
from lhotse import CutSet
from safetensors.torch import load_file

import asr.finetune.run as finetuning
from asr.bundle import Bundle, write_bundle_config
from asr.config import Config, load_config
from asr.data.cuts import origins
from asr.data.manifest import load_cuts
from asr.data.replay import Replay, canary_set
from asr.errors import AsrError, ConfigError, DataError
from asr.finetune.corpus import Corpus, check_fit, read_corpus
from asr.finetune.outcome import Rates, read_outcome
from asr.finetune.recipe import adapt, limits
from asr.finetune.run import Finetuning
from asr.model.factorization import apply_ranks
from asr.model.growth import copy_with_more_tokens
from asr.tokenizer import SPECIAL, Tokenizer, TokenizerConfig
from asr.train.datamodule import SpeechDataModule
from asr.train.module import SpeechModule
from asr.train.run import train
from asr.training_config import MuonConfig
from data_prep.corpus_writer import write_corpus
from data_prep.cuts import Utterance
from tests.helpers import (
    ENCODER,
    FREQS,
    RATE,
    VOCAB,
    build,
    read_card,
    run_cli,
    tiny,
    tones_recipe,
    write_manifest,
    write_tones,
)

PITCHES = {"一": 400, "五": 2400, "六": 550, "七": 3300}
SETS = [
    "training.epochs=6", "training.checkpoint_steps=2", "training.average=1",
    "data.batch_seconds=2",
]  # fmt: skip
ROWS = ("decoder.embed.weight", "decoder.output.weight", "decoder.output.bias",
        "ctc_head.weight", "ctc_head.bias")  # fmt: skip


@pytest.fixture(scope="session")
def more(once) -> Path:
    """A corpus of tones of which the bundle `learned` knows two, and two are new."""
    return once("more", lambda folder: write_tones(folder / "data", 60, 8, PITCHES)) / "data"


def arguments(learned: Path, more: Path, tones: Path, out: Path) -> list[str]:
    sets = [part for value in SETS for part in ("--set", value)]
    options = ["--replay", str(tones), "--freeze", "frontend", "--device", "cpu"]
    return ["finetune", str(learned), str(more), "--out", str(out), *options, *sets]


@pytest.fixture(scope="session")
def tuned(once, learned: Path, more: Path, tones: Path) -> Path:
    """The bundle `learned`, taught the new tones; what was printed is in `shown` and `printed`."""

    def fill(folder: Path) -> None:
        result = run_cli(*arguments(learned, more, tones, folder / "bundle"))
        assert result.returncode == 0, result.stderr
        (folder / "shown").write_text(result.stdout, "utf-8")
        (folder / "printed").write_text(result.stderr, "utf-8")

    return once("tuned", fill) / "bundle"


def weights(bundle: Path) -> dict[str, torch.Tensor]:
    return load_file(bundle / "model.safetensors")


def test_it_learns_new_characters_and_says_what_it_forgot(tuned: Path, learned: Path) -> None:
    outcome, before, after = read_outcome(tuned), Bundle.load(learned), Bundle.load(tuned)
    assert outcome and outcome.canary and outcome.dev.after and outcome.canary.after
    assert set(after.tokenizer.tokens()[before.tokenizer.vocab_size :]) == {"六", "七"}
    assert (outcome.new_tokens, outcome.canary.before.utterances) == (2, 8)
    assert outcome.canary.before.cer == 0 and outcome.dev.before.cer > 0.4
    assert outcome.dev.after.cer < 0.2 and outcome.canary.after.cer < 0.3
    shown = (tuned.parent / "shown").read_text("utf-8")
    assert shown == f"{outcome}\n{tuned}\n" and str(outcome) in (tuned / "README.md").read_text()
    printed = (tuned.parent / "printed").read_text("utf-8")
    assert "2 characters (" in printed and "are new to the model: they get tokens" in printed
    said = "60 utterances (0.0 h), and 30% of the audio from 120 synthetic ones; 11 tokens"
    assert said in printed
    assert "the recipe expects" not in printed


def test_the_training_begins_with_the_old_weights_and_leaves_the_frozen_ones(
    tuned: Path, learned: Path
) -> None:
    old, initial, new = (weights(path) for path in (learned, tuned / "initial", tuned))
    n_old = Bundle.load(learned).tokenizer.vocab_size
    for name, tensor in old.items():
        is_grown = name.removeprefix("model.") in ROWS
        assert len(initial[name]) == len(tensor) + 2 * is_grown, name
        assert torch.equal(initial[name][: len(tensor)], tensor), name
        is_frozen = name.startswith(("model.frontend.", "features."))
        assert torch.equal(new[name][: len(tensor)], tensor) == is_frozen, name
    bias_before, bias = (found["model.ctc_head.bias"][n_old:] for found in (initial, new))
    assert not torch.equal(bias, bias_before)
    before, after = Bundle.load(learned).config.model, Bundle.load(tuned).config.model
    assert before == after and after.projection.kind == "low_rank"


@pytest.mark.parametrize("ranks", [{}, {"decoder.output": 3, "ctc_head": 2}])
def test_new_tokens_change_no_old_one_and_are_improbable(ranks: dict[str, int]) -> None:
    old, n_new = build(tiny(ctc=0.3)), 50
    new = old.config.build(FREQS, VOCAB + n_new).eval()
    for network in (old, new):
        apply_ranks(network, ranks)
    with torch.no_grad():
        for bias in (p for name, p in old.named_parameters() if "bias" in name):
            bias.normal_()
    copy_with_more_tokens(old, new)
    given = torch.randn(2, 40, FREQS), torch.tensor([40, 32]), torch.tensor([[1, 5, 6]] * 2)
    with torch.no_grad():
        outputs = [network(*given)[:2] for network in (old, new)]
    for a, b in zip(*outputs, strict=True):
        assert a is not None and b is not None
        torch.testing.assert_close(b[..., :VOCAB], a, rtol=0, atol=1e-6)
        p = b.softmax(-1)
        assert (p[..., VOCAB:].sum(-1) <= p[..., len(SPECIAL) : VOCAB].mean(-1) + 1e-6).all()


TEXTS = ["the quick brown fox jumps over the lazy dog", "this thing there then other mother"]


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_a_grown_tokenizer_writes_more_and_splits_old_texts_as_before(kind: Any) -> None:
    config = TokenizerConfig(kind=kind, vocab_size=35, case="lower")
    old = Tokenizer.train(TEXTS, config)
    text = "thé 中 other"
    unknown = old.unknown([text, "中"])
    assert unknown == Counter({"é": 1, "中": 2})
    new = old.grown(unknown)
    assert new.tokens() == [*old.tokens(), "é", "中"] and new.model.startswith(old.model)
    assert all(new.encode(line) == old.encode(line) for line in [*TEXTS, "brother", "the the"])
    assert new.decode(new.encode(text)) == "thé中other" and not new.unknown([text])
    assert old.decode(old.encode(text)) != "thé中other"
    spaceless = Tokenizer.train(["好"], TokenizerConfig())
    assert spaceless.unknown(["a b"]) == Counter("A▁B")
    assert spaceless.grown("A▁B").decode(spaceless.grown("A▁B").encode("a b")) == "A B"


def corpus_of(rates: dict[int, float], unknown: str, n: int = 100) -> Corpus:
    return Corpus(Path("mine"), 9, rates, 3.0, 3.0, n, Counter(unknown))


@pytest.mark.parametrize(
    ("rates", "unknown", "said"),
    [
        ({16000: 1.0}, "中" * 98, "mine: does not fit exp: 98% of its characters, such as 中, are "
         "unknown to the model, which writes [一二三四五]{5}, and its recordings have 16000 Hz, "
         "the model is for 8000 Hz: fine-tune a model that knows them, or train one from nothing "
         "by `asr new`"),
        ({8000: 1.0}, "中" * 98, "writes [一二三四五]{5}: fine-tune a model that knows them"),
        ({4000: 1.0, 8000: 0.5}, "", "its recordings have 4000 and 8000 Hz, the model is for 8000 "
         "Hz: fine-tune a model of 4000 Hz or less"),
        ({2000: 0.1, 4000: 1.0}, "", "Hz: fine-tune a model of 4000 Hz or less"),
        ({4000: 0.4, 8000: 0.6}, "", None),
        ({16000: 1.0}, "中" * 90, None),
    ],
    ids=range(6),
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    learned: Path, rates: dict[int, float], unknown: str, said: str | None
) -> None:
    bundle = Bundle.load(learned)
    if said is None:
        check_fit(corpus_of(rates, unknown), bundle, Path("exp"))
        return
    with pytest.raises(DataError, match=said):
        check_fit(corpus_of(rates, unknown), bundle, Path("exp"))


def test_a_refusal_leaves_the_run_of_another_process(
    learned: Path, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are started at once: the other one has locked the folder and written no state yet."""
    out = tmp_path / "out"
    code = (
        "import sys, pathlib; from asr.runtime.files import lock_folder\n"
        f"file = lock_folder(pathlib.Path({str(out / 'training')!r}))\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()"
    )
    others = []

    def refuse(*_: object) -> None:
        other = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        others.append(other)
        assert other.stdout and other.stdout.readline() == b"locked\n"
        raise ConfigError("refused")

    monkeypatch.setattr(Finetuning, "_train", refuse)
    with pytest.raises(ConfigError, match="refused"):
        Finetuning(learned, more, out).run(device="cpu")
    assert (out / "training/lock").exists()
    others[0].communicate()


def test_kernels_are_kept_before_the_first_transcription(
    learned: Path, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)

    def transcribe(*_: object) -> None:
        raise ConfigError(f"{os.environ[name]} kernels")

    monkeypatch.setattr(finetuning, "_rates", transcribe)
    with pytest.raises(ConfigError, match="4096 kernels"):
        Finetuning(learned, more, tmp_path / "out").run(device="cpu")


def test_another_script_is_refused_though_it_has_the_same_spaces_and_signs(
    learned: Path, tones: Path, tmp_path: Path
) -> None:
    bundle = Bundle.load(learned)
    model = Tokenizer.train(["a few words, such as these."], TokenizerConfig(punctuation="keep"))
    english = replace(bundle, tokenizer=model)
    for name in ("train", "dev"):
        cuts = list(load_cuts(tones / "dev.jsonl.gz"))
        for cut in cuts:
            cut.supervisions[0].text = "да, я не он, и мы не вы."
        CutSet.from_cuts(cuts).to_file(tmp_path / f"{name}.jsonl.gz")
    corpus = read_corpus(tmp_path, english, bundle.config.data)
    with pytest.raises(DataError, match="100% of its characters, such as"):
        check_fit(corpus, english, Path("exp"))


def test_refusals_are_sentences_and_write_nothing(
    learned: Path, tuned: Path, more: Path, tones: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("train", "dev"):
        source = {"type": "file", "source": str(tmp_path / "x.wav")}
        lines = write_manifest(other / f"{name}.jsonl", source).read_bytes()
        (other / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines))
    silent = Path(shutil.copytree(more, tmp_path / "silent"))
    cuts = [cut.with_id(cut.id) for cut in load_cuts(silent / "dev.jsonl.gz")]
    for cut in cuts:
        cut.supervisions[0].text = ""
    CutSet.from_cuts(cuts).to_file(silent / "dev.jsonl.gz")
    cases: list[tuple[str, AsrError, dict[str, Any]]] = [
        ("100% of its characters, such as 好,", DataError, {"data": other}),
        ("has no train.jsonl.gz: give a folder that `asr prepare`", DataError, {"data": tmp_path}),
        ("training.freeze.0: Input should be 'frontend' or", ConfigError, {"freeze": ["decoder"]}),
        ("1 utterances are too few", DataError, {"replay": other / "dev.jsonl.gz"}),
        ("no such manifest", DataError, {"replay": tmp_path / "none"}),
        ("did you mean training.epochs", ConfigError, {"overrides": ["training.epoch=1"]}),
        ("replaces all its values", ConfigError, {"overrides": ["training={epochs: 20}"]}),
        ("data.dev: follows from DATA", ConfigError, {"overrides": ["data.dev=dev2.jsonl.gz"]}),
        ("init: follows from BUNDLE", ConfigError, {"overrides": ["training.init=null"]}),
        ("hop_ms: the features of the", ConfigError, {"overrides": ["features.hop_ms=20"]}),
        ("tokenizer of the bundle", ConfigError, {"overrides": ["tokenizer.case=lower"]}),
        ("d_model: the model of the", ConfigError, {"overrides": ["model.d_model=64"]}),
        ("data.train and data.dev have all of it", DataError, {"replay": more}),
        (r"dev\.jsonl\.gz: no utterance has a text", DataError, {"data": silent}),
        ("holds a bundle already", ConfigError, {"out": tuned / "initial"}),
        ("continue it by --resume", ConfigError, {"out": tuned}),
    ]  # fmt: skip
    for said, kind, changes in cases:
        given = {"source": learned, "data": more, "out": tmp_path / "out", **changes}
        with pytest.raises(kind, match=said):
            Finetuning(**given).run()
        assert not (tmp_path / "out").exists()
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="cuda"):
            Finetuning(learned, more, tmp_path / "out").run(device="cuda")
        assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match=r"a fine-tuning of .*, not of .* as it is now"):
        Finetuning(tuned, more, tuned).run(resume=True)
    with pytest.raises(ConfigError, match="the run of an `asr train`"):
        Finetuning(tuned, more, learned).run(resume=True)


def test_a_training_that_starts_from_other_tokens_is_refused(
    learned: Path, more: Path, tmp_path: Path
) -> None:
    values = Bundle.load(learned).config.model_dump(mode="json")
    values["data"] |= {"train": str(more / "train.jsonl.gz"), "dev": str(more / "dev.jsonl.gz")}
    values["training"]["init"] = str(learned)
    with pytest.raises(
        ConfigError,
        match=r"has no tokens for 2 characters of .*, such as (六七|七六): "
        "use `asr finetune`, which adds them",
    ):
        train(Config.model_validate(values), tmp_path / "run")
    values["tokenizer"] = {"kind": "bpe", "vocab_size": 8}
    with pytest.raises(ConfigError, match=r"tokenizer.kind is bpe, but char in training.init"):
        train(Config.model_validate(values), tmp_path / "run")


def test_a_training_that_starts_from_other_features_is_refused(
    learned: Path, tones: Path, tmp_path: Path
) -> None:
    """No tensor's shape would tell."""
    for part, name, factor in (("features", "hop_ms", 2), ("model", "n_heads", 2)):
        values = Bundle.load(learned).config.model_dump(mode="json")
        splits = {split: str(tones / f"{split}.jsonl.gz") for split in ("train", "dev")}
        values["data"] |= splits
        values["training"]["init"] = str(learned)
        values[part][name] = factor * values[part][name]
        with pytest.raises(ConfigError, match=r"not those of training\.init"):
            train(Config.model_validate(values), tmp_path / "run")


@pytest.mark.costly
def test_a_run_that_broke_off_resumes_to_the_weights_of_an_undisturbed_one(
    learned: Path, more: Path, tones: Path, tuned: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = Finetuning(learned, more, tmp_path / "cut", tones, ["frontend"], SETS)
    step = SpeechModule.training_step

    def die(self: SpeechModule, *args: Any) -> Any:
        if self.global_step == 20:
            raise ZeroDivisionError
        return step(self, *args)

    monkeypatch.setattr(SpeechModule, "training_step", die)
    with pytest.raises(ZeroDivisionError):
        run.run(device="cpu")
    monkeypatch.undo()
    assert (tmp_path / "cut/training/last.ckpt").is_file()
    assert run.run(resume=True, device="cpu") == read_outcome(tuned)
    expected, found = weights(tuned), weights(tmp_path / "cut")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_measurement_that_was_cut_off_is_made_and_a_finished_one_is_not_repeated(
    learned: Path, more: Path, tones: Path, tuned: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    copy = Path(shutil.copytree(tuned, tmp_path / "copy"))
    values = json.loads((copy / "finetune.json").read_text())
    done = read_outcome(copy)
    changes = {"result": None, "dev": {**values["dev"], "after": None}}
    (copy / "finetune.json").write_text(json.dumps({**values, **changes}))
    run = Finetuning(learned, more, copy, tones, ["frontend"], SETS)
    assert run.run(resume=True, device="cpu") == done == read_outcome(copy)
    assert read_card(copy).count("## Fine-tuning") == 1
    monkeypatch.setattr(finetuning, "_rates", None)
    assert run.run(resume=True, device="cpu") == done
    assert done
    (copy / "finetune.json").write_text(done.model_copy(update={"data": "other"}).model_dump_json())
    with pytest.raises(ConfigError, match="has changed since this run began"):
        run.run(resume=True, device="cpu")
    (copy / "finetune.json").write_text(done.model_dump_json())
    bare = Path(shutil.copytree(copy, tmp_path / "bare", ignore=lambda *_: ["training"]))
    with pytest.raises(ConfigError, match="bare: holds a bundle already"):
        Finetuning(learned, more, bare, tones, ["frontend"], SETS).run(resume=True, device="cpu")
    assert read_outcome(bare) == done
    other = Finetuning(learned, more, copy, tones, [], SETS)
    with pytest.raises(ConfigError, match=r"begun with another training.freeze"):
        other.run(resume=True, device="cpu")


def test_an_epoch_has_its_share_of_the_older_corpus_and_never_its_canary_set(
    tones: Path, more: Path
) -> None:
    replay = {"train": str(tones / "train.jsonl.gz"), "share": 0.25}
    values = tones_recipe(more, data={"replay": replay}, training={"init": "a bundle"})
    config = Config.model_validate(values)
    assert config.data.replay
    canary = {cut.id for cut in canary_set(config.data)}
    assert len(canary) == 12 and canary < {cut.id for cut in load_cuts(tones / "train.jsonl.gz")}
    data = SpeechDataModule(config)
    drawn = []
    for epoch in (0, 1, 0):
        cuts = [cut for batch in data.plan(epoch) for cut in batch]
        old = [cut for cut in cuts if cut.id.startswith("replay-")]
        assert len(cuts) - len(old) == 60
        assert not canary & {cut.id.removeprefix("replay-") for cut in old}
        share = sum(cut.duration for cut in old) / sum(cut.duration for cut in cuts)
        assert 0.25 <= share < 0.28
        drawn.append({cut.id for cut in old})
    assert drawn[0] == drawn[2] != drawn[1]
    assert not any(cut.id.startswith("replay-") for batch in data.plan(None) for cut in batch)
    none = config.model_copy(
        update={"data": config.data.model_copy(
            update={"replay": config.data.replay.model_copy(update={"share": 0.0})})}
    )  # fmt: skip
    assert config.data.replay and none.data.replay
    assert len(Replay(none, none.data.replay).with_share(data.train_cuts, 0)) == 60


def test_a_training_from_nothing_has_its_share_of_all_of_it_in_short_epochs_of_short_ones(
    tones: Path, more: Path
) -> None:
    replay = {"train": str(tones / "train.jsonl.gz"), "share": 0.5}
    curriculum = {"epochs": 1, "share": 0.3}
    values = tones_recipe(more, data={"replay": replay}, training={"curriculum": curriculum})
    data = SpeechDataModule(Config.model_validate(values))
    assert data.replay and len(data.replay.utterances) == len(load_cuts(tones / "train.jsonl.gz"))
    for epoch in (0, 1):
        cuts = [cut for batch in data.plan(epoch) for cut in batch]
        other = [cut.duration for cut in cuts if cut.id.startswith("replay-")]
        own = [cut.duration for cut in cuts if not cut.id.startswith("replay-")]
        assert 0.45 < sum(other) / (sum(other) + sum(own)) < 0.6
        assert epoch or max(other) <= max(own) < max(cut.duration for cut in data.replay.cuts)


def test_a_small_older_corpus_is_said_to_give_less_than_its_share(
    tones: Path, more: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few.jsonl.gz"
    load_cuts(tones / "dev.jsonl.gz").subset(first=2).to_file(few)
    replay = {"train": str(few), "dev": str(tones / "dev.jsonl.gz"), "share": 0.5}
    values = tones_recipe(more, data={"replay": replay}, training={"init": "a bundle"})
    data = SpeechDataModule(Config.model_validate(values))
    cuts = [cut for batch in data.plan(0) for cut in batch]
    old = sum(cut.duration for cut in cuts if cut.id.startswith("replay-"))
    assert f"and {old / sum(cut.duration for cut in cuts):.0%} of the audio" in str(data)


def test_a_recording_is_the_same_however_its_path_is_written(tones: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tones)
    one, two = (next(iter(load_cuts(tones / "train.jsonl.gz"))) for _ in range(2))
    path = Path(one.recording.sources[0].source)
    two.recording.sources[0].source = str(
        tmp_path / "link" / ".." / tones.name / path.relative_to(tones)
    )
    assert origins(two) == origins(one)


def test_the_same_audio_is_known_by_its_times(tones: Path, tmp_path: Path) -> None:
    """Neighbors share a few milliseconds, and the two sides of a call all of their times."""
    wave = np.random.default_rng(1).normal(0, 0.1, (20 * RATE, 2))
    for name in ("call", "other"):
        sf.write(tmp_path / f"{name}.wav", wave, RATE)
    spans = {
        "a": (0.0, 2.0, 0), "b": (2.0, 3.0, 0), "c": (6.0, 1.0, 0),  # new
        "later": (4.97, 1.06, 0), "side": (0.0, 5.0, 1),  # other audio
        "part": (4.9, 1.0, 0), "whole": (0.0, 20.0, 0), "both": (6.5, 0.4, None),
    }  # fmt: skip
    parts = [
        Utterance(name, tmp_path / "call.wav", "一", "", start, seconds, channel)
        for name, (start, seconds, channel) in spans.items()
    ]
    elsewhere = Utterance("elsewhere", tmp_path / "other.wav", "一", "", 0.0, 2.0, 0)
    write_corpus(
        {"train": parts[:3], "dev": [elsewhere], "test": parts[3:]}, tmp_path, corpus="call"
    )
    replay = {"train": str(tones / "train.jsonl.gz"), "dev": str(tmp_path / "test.jsonl.gz")}
    names = {name: str(tmp_path / f"{name}.jsonl.gz") for name in ("train", "dev")}
    values = tones_recipe(tmp_path, data=names | {"replay": replay}, training={"init": "a bundle"})
    canary = canary_set(Config.model_validate(values).data)
    assert {cut.id for cut in canary} == {"later", "side"}


def test_what_is_new_is_neither_replayed_nor_a_canary(tones: Path) -> None:
    """The new corpus holds the recordings of the old one's dev, and of train for its own dev."""
    replay = {"train": str(tones / "train.jsonl.gz"), "dev": str(tones / "dev.jsonl.gz")}
    data = {"train": replay["dev"], "dev": replay["train"], "replay": replay}
    config = Config.model_validate(tones_recipe(tones, data=data, training={"init": "a bundle"}))
    assert config.data.replay and canary_set(config.data) == []
    with pytest.raises(DataError, match=r"data.train and data.dev have all of it"):
        Replay(config, config.data.replay)


def test_what_was_not_measured_has_its_reason(tuned: Path) -> None:
    outcome = read_outcome(tuned)
    assert outcome and outcome.replayed and not outcome.had_lm
    assert "language model" not in str(outcome) and "not measured" not in str(outcome)
    unmeasured = outcome.model_copy(update={"canary": None})
    assert "is in the new recordings" in str(unmeasured) and "--replay" not in str(unmeasured)
    assert "--replay OLD_CORPUS" in str(unmeasured.model_copy(update={"replayed": False}))


@pytest.mark.parametrize("has_dev", [True, False])
def test_a_canary_set_that_the_bundle_was_trained_on_is_told(
    has_dev: bool, tiny_bundle: Path, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetuning, "check_fit", lambda *_: None)
    monkeypatch.setattr(finetuning, "train", lambda *_: None)
    rates = Rates(cer=0.1, utterances=8)
    monkeypatch.setattr(finetuning, "_rates", lambda *_: (rates, rates))
    older = tones if has_dev else tones / "train.jsonl.gz"
    cuts = list(load_cuts(tones / "test.jsonl.gz"))
    for name in ("train", "dev"):
        CutSet.from_cuts(cuts).to_file(tmp_path / f"{name}.jsonl.gz")
    bundle = Bundle.load(tiny_bundle)
    run = Finetuning(tiny_bundle, tmp_path, tmp_path / "out", older)
    outcome = run._train(bundle, "digest", None, False, "cpu")
    assert outcome.canary_of_train == (not has_dev) and outcome == read_outcome(tmp_path / "out")
    assert "this training did not see" in str(outcome)
    assert ("its rate before is too low to compare)." in str(outcome)) == (not has_dev)


def test_a_bundle_with_a_language_model_loses_it_and_says_so(
    learned: Path, more: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(learned, tmp_path / "with_lm"))
    (folder / "words.txt").write_text("一\n五\n一五\n", "utf-8")
    made = run_cli("train-lm", str(learned), "--words", str(folder / "words.txt"), "--order", "2",
                   "--out", str(folder / "lm.arpa"))  # fmt: skip
    assert made.returncode == 0, made.stderr
    bundle = Bundle.load(learned)
    decoding = {"method": "ctc_beam", "lm": folder / "lm.arpa", "lm_weight": 0.3}
    options = bundle.config.decoding.model_copy(update=decoding)
    write_bundle_config(folder, bundle.config.model_copy(update={"decoding": options}))
    assert Bundle.load(folder).config.decoding.lm_weight == 0.3
    outcome = Finetuning(
        tmp_path / "with_lm", more, tmp_path / "out", overrides=["training.epochs=1"]
    ).run(device="cpu")
    assert outcome.had_lm and "without the language model of the old tokens" in str(outcome)
    for folder in ("out", "out/initial"):
        assert Bundle.load(tmp_path / folder).config.decoding.lm is None


def test_frozen_sparse_maps_are_not_rewired(tones: Path, tmp_path: Path) -> None:
    values = tones_recipe(
        tones,
        model={"projection": {"kind": "set_sparse", "epsilon": 2}},
        training={
            "epochs": 2,
            "freeze": ["encoder"],
            "average": 1,
            "checkpoint_steps": 1000,
        },
    )
    bundle = train(Config.model_validate(values), tmp_path / "run")
    previous, last = (
        torch.load(bundle / "training" / f"{name}.ckpt", weights_only=True)["state_dict"]
        for name in ("previous", "last")
    )
    moved = {name for name in last if not torch.equal(last[name], previous[name])}
    assert moved and not any(".encoder." in name for name in moved)


@pytest.mark.parametrize("kind", ["routing", "performer"])
def test_a_frozen_kernel_of_attention_stays(kind: str, tones: Path, tmp_path: Path) -> None:
    attention = {"kind": kind} | ENCODER[kind]
    model = {"encoder": {"n_layers": 1, "attention": attention}}
    for freeze in ([], ["encoder"]):
        training = {"epochs": 1, "average": 1, "freeze": freeze}
        config = Config.model_validate(tones_recipe(tones, model=model, training=training))
        torch.manual_seed(1)
        texts = ["一二三四五"]
        module = SpeechModule(Bundle.create(config, Tokenizer.train(texts, config.tokenizer)), 1)
        assert bool(module._kernels) == (not freeze)


def test_amount_of_data_decides_how_long_and_values_can_be_set(
    learned: Path, more: Path, tmp_path: Path
) -> None:
    bundle = Bundle.load(learned)
    epochs = []
    for hours in (0.02, 1.0, 50.0):
        config = adapt(bundle.config, corpus_of({8000: hours}, ""), tmp_path, None, [], [])
        epochs.append(config.training.epochs)
        assert config.model == bundle.config.model and config.features == bundle.config.features
        assert config.decoding.confidence_threshold is None and config.training.init == tmp_path
        assert config.decoding.chunk_seconds == 3.0 > bundle.config.decoding.chunk_seconds
    longer = replace(corpus_of({8000: 1.0}, ""), longest=18.0, p99=12.34)
    chunk = adapt(bundle.config, longer, tmp_path, None, [], []).decoding.chunk_seconds
    assert chunk == 12.3 and bundle.config.decoding.chunk_seconds < chunk
    assert epochs == sorted(epochs, reverse=True) and epochs[0] > epochs[2] >= 4
    by_muon = bundle.config.training.model_copy(update={"optimizer": MuonConfig(kind="muon")})
    by_muon_config = bundle.config.model_copy(update={"training": by_muon})
    config = adapt(by_muon_config, corpus_of({8000: 1.0}, ""), tmp_path, None, [], [])
    assert config.training.optimizer.kind == "adam"  # the learning rate is one for Adam
    for n, wanted in ((1, 32), (2, 32), (64 / 30, 30)):  # batches of a step of 64 s by Muon
        training = by_muon.model_copy(update={"accumulate": 2 if n == 2 else 1})
        data = bundle.config.data.model_copy(update={"batch_seconds": 64.0 / n})
        of_n = bundle.config.model_copy(update={"training": training, "data": data})
        config = adapt(of_n, corpus_of({8000: 1.0}, ""), tmp_path, None, [], [])
        assert config.data.batch_seconds == wanted
    few = ("data.batch_seconds=480", "training.accumulate=2")
    hour = corpus_of({8000: 1.0}, "")
    for sets in ([], few[:1], few):
        config = adapt(bundle.config, hour, tmp_path, None, [], list(sets))
        audio = 3600 * len(config.data.speed_factors)
        batch = config.data.batch_seconds * config.training.accumulate
        steps = config.training.epochs * -(-audio // batch)
        assert config.training.schedule.kind == "linear"
        assert config.training.schedule.warmup_steps <= steps / 10 + 1
    sets = ["training.epochs=3", "training.schedule={kind: constant, lr: 1.0e-5}", "seed=7"]
    config = adapt(
        bundle.config,
        read_corpus(more, bundle, bundle.config.data),
        tmp_path,
        None,
        ["encoder"],
        sets,
    )
    assert (config.training.epochs, config.seed, config.training.freeze) == (3, 7, ("encoder",))
    assert config.training.schedule.kind == "constant" and config.training.average == 3
    config = adapt(bundle.config, hour, tmp_path, None, [], ["model.dropout=0.3"])
    assert config.model.dropout == 0.3
    speeds = [len(bundle.config.data.speed_factors), 3]
    minutes = corpus_of({8000: 0.03}, "")
    passes = [
        n * adapt(bundle.config, minutes, tmp_path, None, [], list(sets)).training.epochs
        for n, sets in zip(speeds, [(), ("data.speed_factors=[0.9, 1.0, 1.1]",)], strict=True)
    ]
    assert passes[0] == pytest.approx(passes[1], rel=0.2), "three speeds, a third of the epochs"


def test_a_wrong_value_is_told_by_the_option_that_gave_it(tiny_bundle: Path) -> None:
    config, corpus = load_config(tiny_bundle / "config.yaml"), corpus_of({16000: 1.0}, "")
    named = "--set data.replay: names no older corpus: give --replay OLD_CORPUS, and set one"
    for freeze, sets, replay, said in (
        (["decoder"], [], None, "--set or --freeze: training.freeze.0: Input should be 'frontend'"),
        ([], ["training.epochs=x"], None, "--set or --freeze: training.epochs: "),
        ([], ["data.replay.share=0.1"], None, named),
        ([], ["data.replay={share: 0.1}"], Path("old"), named),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
            adapt(config, corpus, Path("out/initial"), replay, freeze, sets)
    sets = ["data.replay={train: old, share: 0.1}"]
    assert adapt(config, corpus, Path("out/initial"), None, [], sets).data.replay
    assert adapt(config, corpus, Path("i"), Path("old"), [], ["data.replay.share=0.1"]).data.replay


@pytest.mark.parametrize(("has_head", "said"), [(True, "a CTC head: leave it above 0"),
                                                (False, "no CTC head: leave it at 0")])  # fmt: skip
def test_a_head_that_the_bundle_lacks_is_refused_at_once(
    has_head: bool, said: str, learned: Path, tmp_path: Path
) -> None:
    config = Bundle.load(learned).config
    weight, other = (0.3, 0) if has_head else (0.0, 0.3)
    decoding = config.decoding.model_copy(update={"ctc_weight": weight, "method": "joint"})
    model = config.model.model_copy(update={"ctc_weight": weight})
    config = config.model_copy(update={"model": model, "decoding": decoding})
    sets = [f"model.ctc_weight={other}", f"decoding.ctc_weight={other}"]
    with pytest.raises(ConfigError, match=f"--set model.ctc_weight: the bundle has {said}"):
        adapt(config, corpus_of({8000: 0.5}, ""), tmp_path, None, [], sets)


def test_unknown_characters_are_those_of_the_utterances_that_will_train(
    learned: Path, more: Path
) -> None:
    """With limits that are set, not those of the bundle's recipe."""
    bundle, cuts = Bundle.load(learned), load_cuts(more / "train.jsonl.gz")
    shortest = min(float(cut.duration) for cut in cuts)
    data = bundle.config.data.model_copy(update={"max_seconds": shortest + 0.01})
    config = bundle.config.model_copy(update={"data": data})
    own = read_corpus(more, bundle, limits(config, []))
    wider = read_corpus(more, bundle, limits(config, ["data.max_seconds=30", "training.epochs=2"]))
    assert own.utterances < wider.utterances == len(cuts)
    assert own.unknown.total() < wider.unknown.total() and wider.longest > own.longest
    for wrong in ("data.max_seconds=long", "data.min_seconds=-1"):
        with pytest.raises(ConfigError, match=r"--set: data\.m.._seconds"):
            limits(config, [wrong])
