"""The language model: steps equal the whole, fusion equals brute force, a killed run resumes."""

import csv
import functools
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asr.bundle import Bundle, write_bundle_config
from asr.config import Config, load_config
from asr.data.manifest import load_cuts, load_training_cuts, text_of
from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_prefix import CtcPrefixScorer
from asr.decoding.options import DecodingOptions
from asr.decoding.scorers import JointScorer
from asr.errors import BundleError, ConfigError
from asr.evaluation.evaluate import evaluate
from asr.evaluation.tune import tune, write_decoding
from asr.lm.transformer import LanguageTransformer, LmConfig
from asr.tokenizer import EOS, SOS, Tokenizer
from asr.train.language_model import LanguageModule, TextDataModule, train_lm
from asr.training_config import TrainingConfig
from asr.transcription.recognizer import Recognizer
from tests.helpers import (
    METHODS,
    WORD_COUNTS,
    Table,
    TableState,
    V,
    all_texts,
    attention_logp,
    ctc_logp,
    run_cli,
    same,
    step_of,
    texts_of,
    tiny_model,
    tones_recipe,
)

CPU = torch.device("cpu")


NETWORK = {"d_model": 16, "d_inner": 32, "n_heads": 2}


def tiny_lm() -> LanguageTransformer:
    torch.manual_seed(3)
    model = {**NETWORK, "projection": {"kind": "low_rank", "rank": 4}}
    lm = LanguageTransformer(LmConfig.model_validate({"vocab_size": V, "model": model})).eval()
    torch.nn.init.normal_(lm.output.weight, std=0.5)
    return lm


@torch.no_grad()
def lm_logp(lm: LanguageTransformer, text: tuple[int, ...]) -> float:
    logp_UV = lm(torch.tensor([[SOS, *text]])).log_softmax(-1)[0]
    return sum(float(logp_UV[u, token]) for u, token in enumerate((*text, EOS)))


@pytest.mark.parametrize("seed", range(2))
def test_fusion_of_all_three_equals_brute_force(seed: int) -> None:
    table, lm, weight = Table([seed]), tiny_lm(), 0.7
    torch.manual_seed(seed)
    logp_SV = (torch.randn(3, V) * 2).log_softmax(-1)
    config = DecodingOptions(beam_size=40, ctc_weight=0.4, lm="lm", lm_weight=weight, n_best=20)
    ctc = CtcPrefixScorer(logp_SV[None], torch.tensor([3]), 40)
    models = JointScorer(step_of(table), TableState(table, 40), ctc, lm.start(1, 40, CPU))
    found = BeamSearch(config, WORD_COUNTS)(models, torch.tensor([3]))[0]
    expected = {
        text: 0.6 * attention_logp(table, seed, text) + 0.4 * ctc_logp(logp_SV, text)
        + weight * lm_logp(lm, text) + 0.1 * math.sqrt(len(text))
        for text in all_texts(3)
    }  # fmt: skip
    assert found[0].tokens == max(expected, key=lambda text: expected[text])
    for h in found:
        assert h.score == pytest.approx(expected[h.tokens], abs=1e-3)
        assert h.lm_log_prob == pytest.approx(lm_logp(lm, h.tokens), abs=1e-3)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "ctc_greedy"])
def test_a_fused_text_does_not_depend_on_its_batch_mates(method: str) -> None:
    model, lm = tiny_model(), tiny_lm()
    feats = [torch.randn(n, 8) for n in (31, 9, 22, 40, 12)]
    config = DecodingOptions(
        method=method, beam_size=3, ctc_weight=0.3, lm="lm", lm_weight=0.5, confidence_threshold=0.0
    )
    together = texts_of(model, feats, config, padding=7, lm=lm)
    for f, found in zip(feats, together, strict=True):
        same(found, texts_of(model, [f], config, lm=lm)[0])
        assert found[0].lm_log_prob == pytest.approx(lm_logp(lm, found[0].tokens), abs=1e-3)


@pytest.fixture(scope="module")
def fresh(tones: Path) -> Bundle:
    """A recognizer of tones with random weights."""
    config = Config.model_validate(tones_recipe(tones))
    tokenizer = Tokenizer.train(map(text_of, load_training_cuts(config.data)), config.tokenizer)
    torch.manual_seed(0)
    return Bundle.create(config, tokenizer)


def losses(run: Path) -> list[list[str]]:
    """Read epoch, training loss and dev loss from a history."""
    with (run / "training" / "history.csv").open() as file:
        return [row[:3] for row in list(csv.reader(file))[1:]]


def test_a_resumed_run_ends_with_the_same_weights(
    fresh: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "asr.train.language_model.TrainingConfig",
        functools.partial(TrainingConfig, checkpoint_steps=2),
    )
    (tmp_path / "text").write_text("一二三四五\n" * 2000, "utf-8")
    text = [tmp_path / "text"]
    train_lm(fresh, text, tmp_path / "one", 2, False, CPU)
    assert float(losses(tmp_path / "one")[1][1]) < float(losses(tmp_path / "one")[0][1]) - 0.1
    with pytest.raises(ConfigError, match="--resume"):
        train_lm(fresh, text, tmp_path / "one", 2, False, CPU)
    shutil.copytree(tmp_path / "one", tmp_path / "bare")
    for name in ("training/*.ckpt", "training"):  # as to save room
        for left in (tmp_path / "bare").glob(name):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        with pytest.raises(ConfigError, match="bare: holds a model already"):
            train_lm(fresh, text, tmp_path / "bare", 2, True, CPU)

    n_steps = len(TextDataModule(fresh.config, [[1, 4, 5, 6, 7, 8, 2]] * 2000, [[1, 2]]).train)
    step = LanguageModule.training_step

    def crash(self: LanguageModule, *args: Any) -> Any:
        return step(self, *args) if self.global_step < stop else 1 / 0

    for stop in (4, n_steps + 1):  # the loss of a resumed epoch includes its part before the kill
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(LanguageModule, "training_step", crash)
            train_lm(fresh, text, tmp_path / f"{stop}", 2, False, CPU)
        assert (tmp_path / f"{stop}" / "model.safetensors").is_file() == (stop > n_steps)
        with pytest.raises(ConfigError, match="was begun with 2 epochs, not 1: "):
            train_lm(fresh, text, tmp_path / f"{stop}", 1, True, CPU)
        train_lm(fresh, text, tmp_path / f"{stop}", None, True, CPU)
        assert losses(tmp_path / f"{stop}") == losses(tmp_path / "one")
    one, *resumed = (
        LanguageTransformer.load(tmp_path / name, fresh.tokenizer).state_dict()
        for name in ("one", "4", f"{n_steps + 1}")
    )
    assert all(torch.equal(value, state[name]) for state in resumed for name, value in one.items())


def test_the_best_epoch_is_kept_and_other_data_are_refused(
    fresh: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("一二三四五\n" * 100, "utf-8")
    (tmp_path / "other").write_text("五四三二一\n" * 100, "utf-8")
    text, out = [tmp_path / "text"], tmp_path / "run"
    monkeypatch.setattr(
        LanguageModule,
        "validate",
        lambda self, _: torch.tensor([[3.0, 1.0, 2.0][self.current_epoch]]),
    )
    train_lm(fresh, text, out, 3, False, CPU)
    assert [path.name for path in (out / "training").glob("epoch*")] == ["epoch2.safetensors"]
    kept = load_file(out / "training" / "epoch2.safetensors")
    found = load_file(out / "model.safetensors")
    assert all(torch.equal(kept[name], found[name]) for name in found)
    with pytest.raises(ConfigError, match="begun with other texts: continue"):
        train_lm(fresh, [tmp_path / "other"], out, 4, True, CPU)
    assert (out / "training" / "begun_with.txt").read_text() == "3\n"
    stranger = Bundle.create(
        fresh.config, Tokenizer.train(["一二三四六七"], fresh.config.tokenizer)
    )
    with pytest.raises(ConfigError, match="other tokenizer and texts and dev texts: continue"):
        train_lm(stranger, text, out, 4, True, CPU)
    with pytest.raises(BundleError, match="another recognizer's tokens"):
        LanguageTransformer.load(out, stranger.tokenizer)
    (out / "model.safetensors").write_bytes(b"no")
    with pytest.raises(BundleError, match="safetensors"):
        LanguageTransformer.load(out, fresh.tokenizer)


def test_tune_finds_what_evaluate_confirms(fresh: Bundle, tones: Path, tmp_path: Path) -> None:
    fresh.save(tmp_path / "b", "card")
    recognizer, dev = Recognizer(fresh, "cpu"), load_cuts(tones / "dev.jsonl.gz")
    start = fresh.config.decoding.model_copy(update={"beam_size": 2})
    trials = tune(recognizer, dev, start, limit=100)
    assert len(trials) > 10
    assert [t.cer for t in trials] == sorted(t.cer for t in trials)
    assert {t.decoding.lm_weight for t in trials} == {0.0}, "there is no language model to weigh"
    for trial in (trials[0], trials[-1]):
        assert evaluate(recognizer, dev, trial.decoding).cer == pytest.approx(trial.cer)
    write_decoding(tmp_path / "b", trials[0].decoding)
    after = load_config(tmp_path / "b" / "config.yaml")
    assert after.decoding == trials[0].decoding.model_copy(update={"n_best": start.n_best})
    assert after.model_copy(update={"decoding": start}) == fresh.config.model_copy(
        update={"decoding": start}
    )


def save_with_n_gram(bundle: Bundle, folder: Path) -> None:
    """Write a bundle, and an n-gram of its tokens in it as `lm.arpa`."""
    bundle.save(folder, "card")
    (folder / "texts").write_text("一二\n二三\n", "utf-8")
    made = run_cli("train-lm", folder, folder / "texts", "--order", "2")
    assert made.returncode == 0, made.stderr


def test_tuning_weighs_the_bonus_of_an_n_gram_alone(
    fresh: Bundle, tones: Path, tmp_path: Path
) -> None:
    folder, network = tmp_path / "b", tmp_path / "network"
    save_with_n_gram(fresh, folder)
    model = {**NETWORK, "projection": {"kind": "dense"}}
    config = LmConfig.model_validate({"vocab_size": fresh.tokenizer.vocab_size, "model": model})
    LanguageTransformer(config).save(network, fresh.tokenizer)
    recognizer, dev = Recognizer(fresh, "cpu"), load_cuts(tones / "dev.jsonl.gz")

    def bonuses(method: str, lm: Path, bonus: float = 3.0) -> set[float]:
        start = fresh.config.decoding.model_copy(
            update={"beam_size": 2, "lm": lm, "method": method, "lm_bonus": bonus}
        )
        trials = tune(recognizer, dev, start, limit=2)
        assert len({t.decoding.lm_weight for t in trials}) > 3
        write_decoding(folder, trials[-1].decoding)
        assert load_config(folder / "config.yaml").decoding.lm_bonus == trials[-1].decoding.lm_bonus
        return {t.decoding.lm_bonus for t in trials}

    for method in ("ctc_beam", "rescore"):
        assert len(bonuses(method, folder / "lm.arpa")) > 3
    assert bonuses("joint", folder / "lm.arpa") == bonuses("rescore", network) == {0.0}


def test_a_greedy_path_refuses_a_language_model() -> None:
    fused = DecodingOptions(ctc_weight=0.5, lm="lm", lm_weight=0.5)
    with pytest.raises(ConfigError, match="--lm-weight 0"):
        fused.changed({"method": "ctc_greedy"})
    assert fused.changed({"method": "ctc_greedy", "lm_weight": 0.0}).method == "ctc_greedy"


@pytest.mark.parametrize("changes", [{"method": "joint"}, {"lm_weight": 0.0}])
def test_a_bonus_that_would_have_no_effect_is_refused(changes: dict[str, Any]) -> None:
    fused = DecodingOptions(method="ctc_beam", lm="lm", lm_weight=0.5)
    assert fused.changed({"lm_bonus": 3.0}).lm_bonus == 3.0
    with pytest.raises(ConfigError, match="--method ctc_beam or rescore"):
        fused.changed({"lm_bonus": 3.0} | changes)


def test_tuning_a_greedy_path_lays_the_language_model_aside(
    fresh: Bundle, tones: Path, tmp_path: Path
) -> None:
    """And the bundle that it writes can be used."""
    folder, dev = tmp_path / "b", tones / "dev.jsonl.gz"
    save_with_n_gram(fresh, folder)
    recipe = load_config(folder / "config.yaml")
    fused = recipe.decoding.model_copy(update={"lm": folder / "lm.arpa", "lm_weight": 0.5})
    write_bundle_config(folder, recipe.model_copy(update={"decoding": fused}))
    result = run_cli("tune", folder, dev, "--method", "ctc_greedy", "--write")
    assert result.returncode == 0, result.stderr
    assert load_config(folder / "config.yaml").decoding.lm_weight == 0.0
    assert run_cli("evaluate", folder, dev, "--method", "ctc_greedy").returncode == 0
    refused = run_cli("tune", folder, dev, "--method", "ctc_greedy", "--lm", folder / "lm.arpa")
    assert refused.returncode == 2 and "has no language model: use ctc_beam" in refused.stderr
