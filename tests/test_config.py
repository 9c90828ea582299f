"""Recipes: values only, all mistakes reported at once by key, the papers' models of their size."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from asr.bundle import load_bundle_config
from asr.cli import app
from asr.config import Config, apply_override, dump_config, load_config, positive_number
from asr.errors import BundleError, ConfigError
from tests.helpers import tones_recipe, write_recipe

ROOT = Path(__file__).parent.parent
RECIPES = sorted(ROOT.glob("recipes/*/*.yaml"))


def wrong(tmp_path: Path, changes: dict, overrides: list[str] | None = None) -> str:
    values = tones_recipe(tmp_path)
    values.update(changes)
    with pytest.raises(ConfigError) as caught:
        load_config(write_recipe(tmp_path / "recipe.yaml", values), overrides)
    message = str(caught.value)
    assert "recipe.yaml" in message or "--set" in message
    assert "\n" not in message
    return message


def test_an_unknown_key_is_named_with_its_nearest(tmp_path: Path) -> None:
    message = wrong(tmp_path, {"model": {"d_modle": 32}})
    assert "model.d_modle: unknown key (did you mean model.d_model?)" in message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.encoder.attention={kind: linformer, ranks: 3}",
         "model.encoder.attention.ranks: unknown key (did you mean model.encoder.attention.rank?)"),
        ("model.encoder.attention={kind: linear, rank: 3}",
         "model.encoder.attention.rank: unknown key of kind linear, remove it"),
        ("model.projection={kind: set_sparse, eps: 3}", "did you mean model.projection.epsilon?"),
        ("model.encoder.attention=linear", "attention: holds keys, not a value: write {kind: line"),
        ("model.ranks=5", "ranks: holds keys, not a value: write {name: value}"),
        ("training.curriculum=5", "curriculum: holds keys, not a value: write {epochs: …}"),
        ("model.encoder.attention={kind: linformer, rank: 1000000000000}", "equal to 65536"),
        ("model.encoder.attention={kind: linformer, length: 9}", "length 9 is 0.36 s of audio"),
    ],
)  # fmt: skip
def test_the_suggestion_is_of_the_chosen_kind(tmp_path: Path, override: str, message: str) -> None:
    assert message in wrong(tmp_path, {}, [override])


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("trainning.epochs", "training"),
        ("training.warmup_steps", "training.schedule.warmup_steps"),
        ("beam_size", "decoding.beam_size"),
        ("decoding.beem_size", "decoding.beam_size"),
        ("model.projection.xyz", None),
    ],
)
def test_the_nearest_key_is_beside_the_unknown_one_or_has_its_name(
    tmp_path: Path, key: str, suggestion: str | None
) -> None:
    message = wrong(tmp_path, {}, [f"{key}=3"])
    assert "unknown key" in message
    assert (f"(did you mean {suggestion}?)" if suggestion else "remove it") in message


OLD_KEYS = {
    "search.beam_size": "decoding.beam_size",
    "search.piece_seconds": "decoding.chunk_seconds",
}


def test_an_old_key_gets_its_new_name_in_a_recipe_and_in_overrides(tmp_path: Path) -> None:
    for key, new in (*OLD_KEYS.items(), ("decoding.piece_seconds", "decoding.chunk_seconds")):
        assert f"{key}: is now {new}" in wrong(tmp_path, {}, [f"{key}=2"])
    old = {"search": {"beam_size": 2, "piece_seconds": 9.0, "nonsense": 1}, "seed": "x"}
    message = wrong(tmp_path, old)
    assert all(f"{key}: is now {new}" in message for key, new in OLD_KEYS.items())
    assert "search.nonsense: unknown key" in message and "seed: " in message
    assert "search: is now decoding" in wrong(tmp_path, {"search": 3})


def test_an_old_key_in_a_bundle_is_an_error_of_the_bundle(tmp_path: Path) -> None:
    values = tones_recipe(tmp_path)
    values["search"] = values.pop("decoding") | {"piece_seconds": 9.0}
    write_recipe(tmp_path / "config.yaml", values)
    with pytest.raises(BundleError, match=r"search\.piece_seconds: is now decoding\.chunk_seconds"):
        load_bundle_config(tmp_path)


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    message = wrong(
        tmp_path,
        {
            "seed": "one",
            "training": {"epochs": -1, "schedule": {"kind": "noam", "warmup": 5}},
            "features": {"kind": "log_mell"},
        },
    )
    for expected in ("seed:", "'one'", "training.epochs:", "-1", "training.schedule.warmup:"):
        assert expected in message
    assert "features" in message and "log_mell" in message


def test_sizes_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    assert "n_heads 5" in wrong(tmp_path, {"model": {"d_model": 32, "n_heads": 5}})
    projection = {"kind": "low_rank", "rank": 99}
    for heads in (2, 5):
        sizes = {"d_model": 32, "d_inner": 64, "n_heads": heads, "projection": projection}
        message = wrong(tmp_path, {"model": sizes})
        assert "rank 99 is above" in message and "full rank is 32" in message
        assert ("n_heads 5" in message) == (heads == 5)
    full = {"kind": "low_rank", "rank": 32}
    values = {**tones_recipe(tmp_path), "model": {"d_model": 32, "d_inner": 64, "projection": full}}
    del values["decoding"]
    load_config(write_recipe(tmp_path / "recipe.yaml", values))
    assert "model.ctc_weight" in wrong(tmp_path, {"model": {}, "decoding": {"ctc_weight": 0.3}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.d_model", -4), ("model.d_inner", 5.5), ("model.projection.rank", 0),
        ("model.dropout", 1), ("model.encoder.n_layers", "two"), ("training.clip_norm", -1),
        ("training.epochs", None), ("data.batch_seconds", "nan"), ("decoding.beam_size", [8]),
        ("features.sample_rate", -8000), ("data.speed_factors", []), ("seed", 2**40),
        ("model.d_inner", 1 << 30),
    ],
)  # fmt: skip
def test_a_value_out_of_range_or_of_another_type_is_named_by_its_key(
    tmp_path: Path, key: str, value: object
) -> None:
    message = wrong(tmp_path, {}, [f"{key}={yaml.safe_dump(value).removesuffix('...')}"])
    assert f"recipe.yaml: {key}: " in message and "given: " in message
    assert ";" not in message


def test_a_choice_without_its_kind_is_an_error(tmp_path: Path) -> None:
    message = wrong(tmp_path, {"model": {"projection": {"rank": 5}}})
    assert "model.projection: has no kind" in message


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    assert "format 2 is newer" in wrong(tmp_path, {"format": 2})


def test_overrides_are_yaml_and_are_checked_like_the_file(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", tones_recipe(tmp_path))
    overrides = ["training.epochs=7", "model.projection={kind: dense}", "augment=null"]
    config = load_config(recipe, overrides)
    assert config.training.epochs == 7
    assert config.model.projection.kind == "dense"
    assert config.augment is None
    assert "unknown key" in wrong(tmp_path, {}, ["training.epoch=7"])
    assert "key.key=value" in wrong(tmp_path, {}, ["training.epochs"])
    assert "seed is a value" in wrong(tmp_path, {"seed": 3}, ["seed.more=1"])


def test_yaml_holds_no_code(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("seed: !!python/object/apply:os.system ['touch /tmp/lrt_asr_owned']\n")
    with pytest.raises(ConfigError, match="not YAML"):
        load_config(recipe)
    assert not Path("/tmp/lrt_asr_owned").exists()


@pytest.mark.parametrize("content", ["", "[1, 2]", "a: [", "\xff"])
def test_what_is_no_recipe_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "recipe.yaml").write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"recipe\.yaml"):
        load_config(tmp_path / "recipe.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "other.yaml")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_shipped_recipe_is_valid_and_survives_a_round_trip(
    recipe: Path, tmp_path: Path
) -> None:
    config = load_config(recipe)
    copy = tmp_path / "copy.yaml"
    copy.write_text(dump_config(config), "utf-8")
    assert load_config(copy) == config
    command = f"asr train recipes/{recipe.parent.name}/{recipe.name}"
    assert command in recipe.read_text("utf-8").splitlines()[0]


def test_info_tells_the_size_of_a_recipes_model() -> None:
    """All of the thesis's: tests/model/test_sizes_of_the_papers.py."""
    recipe = ROOT / "recipes/aishell1/lrt_r100.yaml"
    result = CliRunner().invoke(app, ["info", str(recipe), "--format", "json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["parameters"] / 1e6 == pytest.approx(12.51, rel=0.01)
    assert sum(facts["parts"].values()) == facts["parameters"]
    assert facts["vocab_size"] == 4364


@pytest.mark.parametrize("corpus", ["aishell1", "hkust"])
def test_the_best_recipe_is_low_rank_and_within_13_million(corpus: str) -> None:
    recipe = ROOT / "recipes" / corpus / "best.yaml"
    result = CliRunner().invoke(app, ["info", str(recipe), "--format", "json"])
    assert 10e6 < json.loads(result.stdout)["parameters"] <= 13e6
    assert load_config(recipe).model.projection.kind == "low_rank"


def test_a_ctc_head_decodes_with_its_share_of_training() -> None:
    def share(**values: Any) -> float:
        data = {"train": "a.jsonl.gz", "dev": "b.jsonl.gz"}
        return Config.model_validate({"data": data, **values}).decoding.ctc_weight

    assert share() == 0.0
    assert share(model={"ctc_weight": 0.7}) == 0.7
    assert share(model={"ctc_weight": 0.7}, decoding={"beam_size": 3}) == 0.7
    assert share(model={"ctc_weight": 0.7}, decoding={"ctc_weight": 0}) == 0.0


def test_the_default_model_is_the_papers_r100() -> None:
    values = yaml.safe_load((ROOT / "recipes/aishell1/lrt_r100.yaml").read_text("utf-8"))
    del values["model"]
    assert (
        Config.model_validate(values).model
        == load_config(ROOT / "recipes/aishell1/lrt_r100.yaml").model
    )


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("3", 3),
        ("2.5", 2.5),
        ("0", None),
        (".inf", None),
        (".nan", None),
        ("yes", None),
        ("a", None),
    ],
)
def test_a_number_that_is_set_is_found_where_it_is_one(given: str, found: float | None) -> None:
    values: dict[str, Any] = {}
    apply_override(values, f"training.epochs={given}")
    assert positive_number(values, "training", "epochs") == found
    assert positive_number(values, "training", "epochs", "more") is None
    assert positive_number(values, "data", "epochs") is None


def test_a_part_that_is_switched_off_takes_values() -> None:
    values: dict[str, Any] = {"augment": None, "seed": 1}
    apply_override(values, "augment.time_masks=2")
    assert values["augment"] == {"time_masks": 2}
    with pytest.raises(ConfigError, match="seed is a value, it has no keys below it"):
        apply_override(values, "seed.x=2")
