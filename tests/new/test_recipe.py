"""The recipe that `asr new` chooses: any corpus gets one, and its file holds the same values."""

import itertools
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.config import Config, check_config, load_config
from asr.errors import ConfigError
from asr.export.sherpa import kind_of
from asr.model.size import count_parameters
from asr.model.transformer import ModelConfig
from asr.new import recipe as recipe_module
from asr.new.commented import HEAD, as_yaml
from asr.new.measure import CorpusMeasures, SplitSize
from asr.new.recipe import choose
from asr.training_config import TrainingConfig


def corpus_of(hours: float, **changes) -> CorpusMeasures:
    values = {
        "utterances": 100, "speakers": 4, "characters": 500, "words": 700,
        "seconds_per_character": 0.25, "shortest": 1.0, "longest": 5.0, "silence": 0.1,
        "sample_rates": {16000: hours},
        "splits": {"dev": SplitSize(utterances=9, speakers=1, is_unseen=True)},
    }  # fmt: skip
    return CorpusMeasures(hours=hours, **{**values, **changes})


HOURS = st.floats(1 / 60, 1000)
CORPORA = st.builds(
    corpus_of,
    HOURS,
    speakers=st.integers(0, 10_000),
    characters=st.integers(1, 8000),
    words=st.integers(1, 500_000),
    seconds_per_character=st.floats(0.001, 60),
    shortest=st.floats(0.05, 2),
    longest=st.floats(2, 30),
    silence=st.floats(0, 1),
    sample_rates=st.dictionaries(
        st.sampled_from([8000, 11025, 16000, 22050, 44100, 48000]), st.floats(0.01, 500), min_size=1
    ),
    too_long=st.integers(0, 1000),
    latin=st.floats(0, 1),
)
EPOCHS = st.none() | st.integers(1, 300)


@settings(deadline=None)  # the machine may be busy
@given(CORPORA, EPOCHS, st.text(st.characters(codec="utf-8"), max_size=12))
def test_any_corpus_gets_a_recipe_whose_file_holds_the_same_values(
    corpus: CorpusMeasures, epochs: int | None, name: str
) -> None:
    overrides = [] if epochs is None else [f"training.epochs={epochs}"]
    recipe = choose(corpus, Path("/") / name, overrides)
    config = Config.model_validate(recipe.values)
    assert epochs in (None, config.training.epochs)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(f"{HEAD}\n{as_yaml(recipe)}", "utf-8")
        assert load_config(path) == config


@settings(deadline=None, max_examples=40)
@given(CORPORA, st.booleans())
def test_a_live_model_of_any_corpus_streams_here_and_in_sherpa_onnx(
    corpus: CorpusMeasures, has_bfloat16: bool
) -> None:
    live, other = (
        Config.model_validate(choose(corpus, Path("/data"), None, has_bfloat16, is_live).values)
        for is_live in (True, False)
    )
    assert kind_of(live) == "zipformer2_ctc" and not live.features.streaming_problem
    assert not other.model.encoder.streaming
    with torch.device("meta"):
        live.model.build(live.features.n_freqs, 50)
    assert live.training == other.training and live.tokenizer == other.tokenizer


@cache
def parameters(model: str) -> int:
    """The size of a network, whose configuration is JSON."""
    with torch.device("meta"):
        return count_parameters(ModelConfig.model_validate_json(model).build(40, 500))


@settings(deadline=None)
@given(HOURS, HOURS)
def test_a_larger_corpus_never_gets_a_smaller_model(one: float, other: float) -> None:
    chosen = (values_of(corpus_of(hours)).model for hours in sorted((one, other)))
    smaller, larger = (parameters(model.model_dump_json()) for model in chosen)
    assert smaller <= larger


@settings(deadline=None)
@given(CORPORA)
def test_a_run_has_steps_enough_and_not_too_many(corpus: CorpusMeasures) -> None:
    config = Config.model_validate(choose(corpus, Path("/data")).values)
    audio = corpus.hours * 3600 * len(config.data.speed_factors)
    steps = audio * config.training.epochs / config.data.batch_seconds / config.training.accumulate
    assert 300 <= steps <= 500_000
    assert config.data.batch_seconds >= corpus.longest


def values_of(corpus: CorpusMeasures) -> Config:
    return Config.model_validate(choose(corpus, Path("/data")).values)


def test_values_follow_the_measurements() -> None:
    telephone = values_of(corpus_of(3, sample_rates={8000: 2.0, 16000: 1.0}))
    assert telephone.features.sample_rate == 8000
    assert values_of(corpus_of(3, sample_rates={44100: 3.0})).features.sample_rate == 16000
    slow, fast = (values_of(corpus_of(3, seconds_per_character=s)) for s in (0.25, 0.08))
    hops = [
        values_of(corpus_of(3, chinese=share, seconds_per_character=0.18)).features.hop_ms
        for share in (0.0, 1.0)
    ]
    assert hops == [20, 10]  # a Mandarin character is two sounds, its initial and its final
    assert (slow.features.hop_ms, fast.features.hop_ms) == (20, 10)
    rates = ({16000: 3.0}, {8000: 3.0})
    bins = [values_of(corpus_of(3, chinese=1.0, sample_rates=r)).features for r in rates]
    assert [each.n_freqs for each in bins] == [80, 64]  # tones are in the pitch
    assert values_of(corpus_of(1.0, chinese=1.0)).features.n_freqs == 40
    english = {"characters": 40, "words": 20_000, "seconds_per_character": 0.07}
    assert [values_of(corpus_of(h, **english)).tokenizer.kind for h in (3, 50)] == ["char", "bpe"]
    assert values_of(corpus_of(50)).tokenizer.kind == "char"
    cases = [values_of(corpus_of(3, chinese=share)).tokenizer.case for share in (0.0, 0.03, 1.0)]
    assert cases == ["lower", "lower", "upper"]  # a foreign name makes no Chinese corpus
    cases = [values_of(corpus_of(3, turkish=share)).tokenizer.case for share in (0.001, 0.05)]
    assert cases == ["lower", "lower_tr"]
    marks = [values_of(corpus_of(h, marks=m)).tokenizer.punctuation for h, m in
             ((3, 0.1), (3, 0.0), (50, 0.1))]  # fmt: skip
    assert marks == ["remove", "keep", "keep"]  # little speech does not teach where a comma is
    assert values_of(corpus_of(3, seconds_per_character=0.03)).model.ctc_weight == 0.3
    large = values_of(corpus_of(50))  # decoded with the share that it has in training
    assert large.decoding.ctc_weight == large.model.ctc_weight == 0.5
    tight, loose = (values_of(corpus_of(3, silence=s)).augment for s in (0.05, 0.5))
    assert tight and loose and tight.pauses and loose.pauses
    assert tight.pauses.padded > loose.pauses.padded
    assert values_of(corpus_of(3, longest=1.2)).training.curriculum is None
    few, more = (values_of(corpus_of(h)) for h in (1.5, 3))
    assert few.augment and few.augment.voices and few.data.speed_factors == (1.0,)
    assert more.augment and not more.augment.voices and len(more.data.speed_factors) == 3
    config = values_of(corpus_of(2.8))
    assert config.training.curriculum and config.training.curriculum.epochs < config.training.epochs


def test_what_learned_sentences_is_chosen_for_them() -> None:
    recorded = load_config(Path("benchmarks/recipes/commonvoice_zh.yaml"))
    sizes = {"characters": 3300, "longest": 7.0, "seconds_per_character": 0.25}
    corpus = corpus_of(9.5, chinese=1.0, **sizes)
    chosen = Config.model_validate(choose(corpus, Path("/data"), has_bfloat16=True).values)
    model = recorded.model.model_dump() | {"encoder": chosen.model.encoder.model_dump()}
    assert chosen.model.model_dump() == model
    assert chosen.model.encoder.convolution == recorded.model.encoder.convolution
    assert chosen.model.encoder.n_layers == recorded.model.encoder.n_layers
    assert chosen.training.schedule == recorded.training.schedule
    assert chosen.training.optimizer == recorded.training.optimizer
    assert chosen.training.accumulate == recorded.training.accumulate
    assert chosen.data.batch_seconds == recorded.data.batch_seconds
    assert chosen.features == recorded.features
    few, many = (values_of(corpus_of(1.4, characters=n)).model for n in (50, 2600))
    assert few.d_model < many.d_model == 192
    large = values_of(corpus_of(150)).model.projection
    assert large.kind == "low_rank" and large.init == "spectral"


def test_mandarin_is_learned_by_its_sounds_where_pinyin_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recipe_module, "has_pinyin", lambda: True)
    for hours, layers in itertools.product((0.5, 5, 50, 500), (None, 1, 2, 12)):
        overrides = [] if layers is None else [f"model.encoder.n_layers={layers}"]
        corpus = corpus_of(hours, chinese=0.97)
        config = Config.model_validate(choose(corpus, Path("/data"), overrides).values)
        sounds, syllables = config.model.encoder.conditioning, config.training.intermediate
        assert (sounds is None) == (layers == 1) == (not syllables)
        assert config.training.shared_sounds == (layers != 1)
        if sounds:
            assert sounds.layer <= syllables[0].layer <= config.model.encoder.n_layers
    words = {"chinese": 0.97, "longest": 1.2}
    for layers, below in ((None, 3), (2, None), (6, 4)):
        overrides = [] if layers is None else [f"model.encoder.n_layers={layers}"]
        config = Config.model_validate(choose(corpus_of(1.5, **words), Path("d"), overrides).values)
        head = config.model.encoder.sounds
        assert (head and head.layer) == below and bool(head) != bool(config.training.intermediate)
    cantonese = choose(corpus_of(1.5, language="yue", **words), Path("d")).values
    assert "conditioning" not in cantonese["model"]["encoder"]
    assert "sounds" not in cantonese["model"]["encoder"]
    assert "shared_sounds" not in cantonese["training"]
    same = choose(corpus_of(1.5, language="cmn", **words), Path("d")).values
    assert same == choose(corpus_of(1.5, **words), Path("d")).values
    assert cantonese["features"] == same["features"], "it has tones too"
    pieces = choose(corpus_of(1.5, **words), Path("d"), ["tokenizer.kind=bpe"])
    assert Config.model_validate(pieces.values).model.encoder.sounds is None
    others = corpus_of(5, chinese=0.5)
    assert values_of(others).model.encoder.conditioning is None
    monkeypatch.setattr(recipe_module, "has_pinyin", lambda: False)
    assert values_of(corpus_of(5, chinese=1.0)).model.encoder.conditioning is None


def test_few_words_are_learned_by_their_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    def layer_of(hours: float = 1.0, **changes) -> int | None:
        conditioning = values_of(corpus_of(hours, **changes)).model.encoder.conditioning
        return conditioning.layer if conditioning else None

    monkeypatch.setattr(recipe_module, "has_pinyin", lambda: False)
    assert layer_of(latin=1.0) == 2
    assert layer_of(latin=0.5) is None, "the units have no letters of other alphabets"
    assert layer_of(latin=1.0, seconds_per_character=0.01) is None, "there is no time for CTC"
    assert layer_of(latin=1.0, hours=5) is None
    assert layer_of(latin=0.6, chinese=0.4) is None
    monkeypatch.setattr(recipe_module, "has_pinyin", lambda: True)
    assert layer_of(latin=0.6, chinese=0.4) == 2


@pytest.mark.parametrize("name", ["\x85", "\u2028", "\u3000中", "a: b", "x #y", "'"])
def test_a_folder_may_have_any_name(name: str, tmp_path: Path) -> None:
    recipe, path = choose(corpus_of(1.0), Path("/") / name), tmp_path / "recipe.yaml"
    path.write_text(as_yaml(recipe), "utf-8")
    assert load_config(path).data.train == (Path("/") / name / "train.jsonl.gz",)


def test_a_processor_that_is_faster_in_bfloat16_uses_it() -> None:
    corpus = corpus_of(1.0)
    values = [choose(corpus, Path("/data"), has_bfloat16=fast).values for fast in (True, False)]
    found = [Config.model_validate(value).training.precision for value in values]
    assert found == ["bfloat16", "auto"]


def test_muon_is_chosen_where_it_was_measured() -> None:
    def trained(hours: float, fast: bool) -> TrainingConfig:
        chosen = choose(corpus_of(hours), Path("/data"), has_bfloat16=fast)
        return Config.model_validate(chosen.values).training

    kinds = {h: [trained(h, fast).optimizer.kind for fast in (True, False)] for h in (1, 3, 9, 50)}
    adam = ["adam", "adam"]
    assert kinds == {1: adam, 3: ["muon", "adam"], 9: ["muon", "adam"], 50: adam}
    assert trained(3, True).epochs < trained(3, False).epochs


def test_every_choice_has_its_reason_in_the_file() -> None:
    recipe = choose(corpus_of(0.4), Path("/data"), ["model.projection={kind: dense}", "seed=3"])
    lines = as_yaml(recipe).splitlines()
    for key, reason in recipe.reasons.items():
        start, end = f"{key.rpartition('.')[2]}:", f"  # {reason}"
        assert any(line.strip().startswith(start) and line.endswith(end) for line in lines), key
    chosen = {
        "data.batch_seconds", "data.speed_factors", "data.max_seconds", "features.sample_rate",
        "features.hop_ms", "augment.freq_masks", "augment.pauses.padded", "tokenizer.kind",
        "augment.pauses.from_epoch", "model.d_model", "model.ctc_weight", "training.epochs",
        "training.curriculum",
    }  # fmt: skip
    assert chosen <= recipe.reasons.keys()
    assert {"seed: 3  # given by --set", "  projection:  # given by --set"} <= set(lines)
    assert "    kind: dense" in lines  # without the reason of what was chosen
    assert Config.model_validate(recipe.values).model.projection.kind == "dense"


@pytest.mark.parametrize("override", ["training.epochs=0", "training=3", "model.d_modle=4"])
def test_a_wrong_override_is_a_sentence(override: str) -> None:
    with pytest.raises(ConfigError, match=r"x\.yaml: training|d_model"):
        check_config(choose(corpus_of(1), Path("/data"), [override]).values, Path("x.yaml"))
