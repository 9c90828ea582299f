"""The language model: steps equal the whole, fusion equals brute force, a killed run resumes."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import asr.train.language_model
from asr.bundle import Bundle
from asr.config import Config, load_config
from asr.data.manifest import load_cuts, text_of
from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_prefix import CtcPrefixScorer
from asr.decoding.options import DecodingOptions
from asr.decoding.scorers import JointScorer
from asr.errors import BundleError, ConfigError
from asr.evaluation.evaluate import evaluate
from asr.evaluation.tune import tune, write_weights
from asr.lm.transformer import LanguageTransformer, LmConfig
from asr.tokenizer import EOS, SOS, Tokenizer
from asr.train.language_model import train_lm
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
    same,
    step_of,
    texts_of,
    tiny_model,
    tones_recipe,
)

CPU = torch.device("cpu")


def tiny_lm() -> LanguageTransformer:
    torch.manual_seed(3)
    model = {
        "d_model": 16,
        "d_inner": 32,
        "n_heads": 2,
        "projection": {"kind": "low_rank", "rank": 4},
    }
    lm = LanguageTransformer(LmConfig.model_validate({"vocab_size": V, "model": model})).eval()
    torch.nn.init.normal_(lm.output.weight, std=0.5)
    return lm


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


@pytest.mark.parametrize("method", METHODS)
def test_a_fused_text_does_not_depend_on_its_batch_mates(method: str) -> None:
    model, lm = tiny_model(), tiny_lm()
    feats = [torch.randn(n, 8) for n in (31, 9, 22, 40, 12)]
    config = DecodingOptions(
        method=method, beam_size=3, ctc_weight=0.3, lm="lm", lm_weight=0.5, confidence_threshold=0.0
    )
    together = texts_of(model, feats, config, padding=7, lm=lm)
    for f, found in zip(feats, together, strict=True):
        same(found, texts_of(model, [f], config, lm=lm)[0])
        if method != "ctc_greedy":
            h = found[0]
            assert h.lm_log_prob == pytest.approx(lm_logp(lm, h.tokens), abs=1e-3)


@pytest.fixture(scope="module")
def fresh(tones: Path) -> Bundle:
    """A recogniser of tones with random weights."""
    config = Config.model_validate(tones_recipe(tones))
    tokenizer = Tokenizer.train(map(text_of, load_cuts(config.data.train)), config.tokenizer)
    torch.manual_seed(0)
    return Bundle.create(config, tokenizer)


def test_a_run_that_goes_on_ends_with_the_same_weights(
    fresh: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asr.train.language_model._SAVE_STEPS", 2)
    losses: list[tuple[int, float, float]] = []
    (tmp_path / "text").write_text("一二三四五\n" * 2000, "utf-8")
    text = [tmp_path / "text"]
    train_lm(fresh, text, tmp_path / "one", 2, False, CPU, lambda *row: losses.append(row))
    assert losses[1][1] < losses[0][1] - 0.1, "it learns"

    def die(epoch: int, *_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_lm(fresh, text, tmp_path / "two", 2, False, CPU, die)
    with pytest.raises(ConfigError, match="--resume"):
        train_lm(fresh, text, tmp_path / "two", 2, False, CPU)
    train_lm(fresh, text, tmp_path / "two", 2, True, CPU)

    def die_in_mid_epoch(path: Path, *state: Any) -> None:
        keep(path, *state)
        if state[-1]["batch"] == 4:
            raise KeyboardInterrupt

    keep = asr.train.language_model._keep
    monkeypatch.setattr("asr.train.language_model._keep", die_in_mid_epoch)
    with pytest.raises(KeyboardInterrupt):
        train_lm(fresh, text, tmp_path / "three", 2, False, CPU)
    monkeypatch.setattr("asr.train.language_model._keep", keep)
    # The loss told is that of the whole epoch, its part before the kill included.
    train_lm(fresh, text, tmp_path / "three", 2, True, CPU, lambda *row: losses.append(row))
    assert losses[2:] == [pytest.approx(row) for row in losses[:2]]
    (tmp_path / "other").write_text("五四三二一\n" * 2000, "utf-8")
    with pytest.raises(ConfigError, match="other texts: go on"):
        train_lm(fresh, [tmp_path / "other"], tmp_path / "two", 3, True, CPU)
    stranger = Bundle.create(fresh.config, Tokenizer.train(["一二三四六"], fresh.config.tokenizer))
    with pytest.raises(ConfigError, match="other tokenizer and texts"):
        train_lm(stranger, text, tmp_path / "two", 3, True, CPU)
    one, two, three = (
        LanguageTransformer.load(tmp_path / name, fresh.tokenizer).state_dict()
        for name in ("one", "two", "three")
    )
    for name, value in one.items():
        torch.testing.assert_close(two[name], value)
        torch.testing.assert_close(three[name], value)
    with pytest.raises(BundleError, match="another recogniser's tokens"):
        LanguageTransformer.load(
            tmp_path / "one", Tokenizer.train(["一二三四六"], fresh.config.tokenizer)
        )
    (tmp_path / "one" / "model.safetensors").write_bytes(b"no")
    with pytest.raises(BundleError, match="safetensors"):
        LanguageTransformer.load(tmp_path / "one", fresh.tokenizer)


def test_tune_finds_what_evaluate_confirms(fresh: Bundle, tones: Path, tmp_path: Path) -> None:
    fresh.save(tmp_path / "b", "card")
    recognizer, dev = Recognizer(fresh, "cpu"), load_cuts(tones / "dev.jsonl.gz")
    start = fresh.config.decoding.model_copy(update={"beam_size": 2})
    trials = tune(recognizer, dev, start, most=100)
    assert len(trials) > 10
    assert [t.cer for t in trials] == sorted(t.cer for t in trials)
    assert {t.decoding.lm_weight for t in trials} == {0.0}, "there is no language model to weigh"
    for trial in (trials[0], trials[-1]):
        assert evaluate(recognizer, dev, trial.decoding).cer == pytest.approx(trial.cer)
    write_weights(tmp_path / "b", trials[0].decoding)
    after = load_config(tmp_path / "b" / "config.yaml")
    assert after.decoding == trials[0].decoding.model_copy(update={"n_best": start.n_best})
    assert after.model_copy(update={"decoding": start}) == fresh.config.model_copy(
        update={"decoding": start}
    )


def test_a_greedy_path_refuses_a_language_model() -> None:
    fused = DecodingOptions(ctc_weight=0.5, lm="lm", lm_weight=0.5)
    with pytest.raises(ConfigError, match="--lm-weight 0"):
        fused.changed({"method": "ctc_greedy"})
    assert fused.changed({"method": "ctc_greedy", "lm_weight": 0.0}).method == "ctc_greedy"
