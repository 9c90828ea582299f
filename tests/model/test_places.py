"""Test projections by place: which map has which kind, and what is refused."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from asr.config import Config, dump_config, load_config
from asr.errors import ConfigError
from asr.lm.transformer import LanguageTransformer, LmConfig
from asr.model.places import PATHS
from asr.model.projection import LowRank
from asr.model.transformer import ModelConfig
from tests.helpers import ENCODER as ENCODER_KINDS
from tests.helpers import tones_recipe, write_recipe

SIZES = {
    "d_model": 16,
    "d_inner": 24,
    "n_heads": 2,
    "frontend": {"kind": "vgg", "channels": [2, 4]},
}
ENCODER = {"n_layers": 2, "convolution": 3}


def low_rank(rank: int) -> dict:
    return {"kind": "low_rank", "rank": rank}


def network(projections: dict[str, int]) -> nn.Module:
    """Return a network of dense maps with low rank at places."""
    places = {place: low_rank(rank) for place, rank in projections.items()}
    values = {**SIZES, "encoder": ENCODER, "projection": {"kind": "dense"}, "projections": places}
    return ModelConfig.model_validate(values).build(8, 9)


def ranks(model: nn.Module) -> dict[str, int]:
    """Return the rank of each LED, by its name without its layer."""
    return {
        ".".join(part for part in name.split(".") if part != "layers" and not part.isdigit()): (
            module.E.out_features
        )
        for name, module in model.named_modules()
        if isinstance(module, LowRank)
    }


def expected(projections: dict[str, int]) -> dict[str, int]:
    """Choose by brute force: of all sub-sequences of a path, the last one from its end inwards."""
    found = {}
    for path in PATHS:
        best, chosen = (), None
        for bits in range(1, 1 << len(path)):
            names = [name for i, name in enumerate(path) if bits >> i & 1]
            order = tuple(i for i in reversed(range(len(path))) if bits >> i & 1)
            if ".".join(names) in projections and order > best:
                best, chosen = order, projections[".".join(names)]
        if chosen is not None:
            name = ".".join(n for n in path if n != "attention")
            found["frontend.project" if path == ("frontend",) else name] = chosen
    return found


@pytest.mark.parametrize(
    "projections",
    [
        {"attention": 1},
        {"encoder": 1, "frontend": 2},
        {"encoder": 1, "feed_forward": 2, "encoder.feed_forward": 3, "outer": 4},
        {"query": 1, "encoder.attention": 2, "encoder.query": 3, "decoder": 4},
        {"decoder.cross_attention": 5, "attention": 1, "self_attention": 2, "encoder.output": 3},
        {"attention.query": 1, "encoder.query": 2, "decoder.attention.query": 3, "convolution": 4},
    ],
)
def test_each_map_has_the_kind_of_its_most_specific_place(projections: dict[str, int]) -> None:
    found = ranks(network(projections))
    assert found == expected(projections) != {}


def test_without_places_a_network_draws_the_same_weights_under_the_same_names() -> None:
    sizes = {**SIZES, "encoder": ENCODER}
    named = {path[0]: low_rank(3) for path in PATHS}
    states = []
    for values in (
        {"projection": low_rank(3)},
        {"projection": {"kind": "dense"}, "projections": named},
    ):
        torch.manual_seed(0)
        states.append(ModelConfig.model_validate({**sizes, **values}).build(8, 9).state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_ranks_by_module_are_above_places() -> None:
    found = ModelConfig.model_validate(
        {
            **SIZES,
            "projection": {"kind": "dense"},
            "projections": {"feed_forward": low_rank(2), "decoder": {"kind": "set_sparse"}},
            "ranks": {
                "encoder.layers.0.feed_forward.inner": 5,
                "encoder.layers.1.self_attention.key": 6,
            },
        }
    ).build(8, 9)
    of_layers = {n: m.E.out_features for n, m in found.named_modules() if isinstance(m, LowRank)}
    others = {k: v for k, v in of_layers.items() if v != 2}
    assert others == found.config.ranks
    assert len(of_layers) - len(others) == 2 * (2 + 4) - 1


def test_a_language_model_has_the_decoders_maps() -> None:
    places = {"decoder.self_attention": low_rank(2), "encoder": low_rank(3)}
    config = ModelConfig.model_validate(
        {**SIZES, "projection": {"kind": "dense"}, "projections": places}
    )
    found = ranks(LanguageTransformer(LmConfig(vocab_size=9, model=config)))
    assert found == {f"self_attention.{name}": 2 for name in ("query", "key", "value", "output")}


@pytest.mark.parametrize(
    "place", ["encoder.atention", "decoder.convolution", "query.encoder", "", "frontend.query"]
)
def test_a_place_without_maps_is_refused_in_a_sentence(tmp_path: Path, place: str) -> None:
    values = tones_recipe(tmp_path, model={"projections": {place: {"kind": "dense"}}})
    with pytest.raises(ConfigError, match="no linear map") as error:
        load_config(write_recipe(tmp_path / "recipe.yaml", values))
    assert f"model: projections names '{place}'" in str(error.value)


def test_a_place_of_what_the_network_lacks_or_a_rank_too_large_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"no layer has a convolution"):
        ModelConfig.model_validate({"projections": {"convolution": {"kind": "dense"}}})
    with pytest.raises(ValidationError, match=r"projections\.encoder\.rank 600 is above"):
        ModelConfig.model_validate({"projections": {"encoder": low_rank(600)}})


@pytest.mark.parametrize("kind", ENCODER_KINDS)
def test_a_kind_of_attention_names_the_maps_that_it_has(kind: str) -> None:
    encoder = {"attention": {"kind": kind, **ENCODER_KINDS[kind]}}
    values = {**SIZES, "projection": {"kind": "dense"}, "encoder": encoder}
    config = ModelConfig.model_validate(values)
    unit = config.build(8, 9).encoder.layers[0].self_attention
    names = ("query", "key", "value", "output")
    built = [n for n in names if not isinstance(getattr(unit, n, nn.Identity()), nn.Identity)]
    assert list(config.encoder.attention.maps) == built
    for name in names:
        values["projections"] = {f"encoder.self_attention.{name}": low_rank(2)}
        if name in built:
            ModelConfig.model_validate(values)
        else:
            with pytest.raises(ValidationError, match=f"of kind {kind} has no linear map"):
                ModelConfig.model_validate(values)


def test_a_place_that_the_attention_lacks_is_refused_in_a_sentence(tmp_path: Path) -> None:
    lacking, system = {"kind": "dense_synthesizer"}, {"kind": "s4d"}
    model = {"encoder": {"attention": lacking}, "decoder": {"attention": system}}
    accepted = ("key", "decoder.key", "encoder.attention", "cross_attention.key")
    for place in (*accepted, "self_attention.key", "encoder.key", "decoder.self_attention.query"):
        values = tones_recipe(tmp_path, model={**model, "projections": {place: {"kind": "dense"}}})
        path = write_recipe(tmp_path / "recipe.yaml", values)
        if place in accepted:
            load_config(path)
            continue
        with pytest.raises(ConfigError) as error:
            load_config(path)
        part = "decoder" if place.startswith("decoder") else "encoder"
        kind, has = ("s4d", "") if part == "decoder" else ("dense_synthesizer", "query, ")
        assert (
            f"projections names {place}, but {part}.attention of kind {kind} has no linear map but "
            f"{has}value, output: choose another kind of attention, or remove it"
        ) in str(error.value)


def test_a_configuration_with_places_is_written_and_read_back(tmp_path: Path) -> None:
    places = {"encoder.attention": low_rank(2), "frontend": {"kind": "dense"}}
    config = Config.model_validate(tones_recipe(tmp_path, model={"projections": places}))
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), "utf-8")
    assert load_config(path) == config
