"""Weights in 8 bits: near the original ones, the same when stored again, a quarter of the size."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import asr
from asr.bundle import Bundle
from asr.config import load_config
from asr.data.manifest import load_cuts, read_wave
from asr.errors import BundleError
from asr.model.size import count_parameters
from asr.runtime.int8 import from_int8, to_int8, without_scales
from tests.helpers import RATE, run_cli

HERE = Path("model.safetensors")
RECIPE = Path(__file__).parents[2] / "recipes/digits/lrt.yaml"


def test_each_weight_is_half_a_step_away_at_most_and_a_step_is_of_its_row() -> None:
    torch.manual_seed(1)
    weight = torch.randn(40, 5, 3, 3) * torch.logspace(-4, 3, 40)[:, None, None, None]
    weight[7] = 0.0
    stored = to_int8({"w": weight})
    assert stored["w"].dtype == torch.int8 and without_scales(
        {name: tuple(t.shape) for name, t in stored.items()}
    ) == {"w": (40, 5, 3, 3)}
    found = from_int8(stored, HERE)["w"]
    steps = weight.flatten(1).abs().amax(1) / 127
    assert ((found - weight).flatten(1).abs().amax(1) <= steps / 2 * 1.0001).all()
    assert (found[7] == 0).all()
    again = from_int8(to_int8({"w": found}), HERE)["w"]
    torch.testing.assert_close(again, found, rtol=1e-6, atol=0)


def test_small_tensors_vectors_and_numbers_stay() -> None:
    places = torch.arange(900).view(30, 30)
    tensors = {"bias": torch.randn(4000), "small": torch.randn(5, 5), "places": places}
    stored = to_int8(tensors)
    assert all(stored[name] is tensor for name, tensor in tensors.items()) and len(stored) == 3
    # A tensor whose name only looks like that of scales is one of the model's.
    alone = {"x.int8_scale": torch.ones(3)}
    assert from_int8(alone, HERE) == alone


def test_a_recipe_s_model_is_little_more_than_a_byte_a_weight() -> None:
    model = load_config(RECIPE).model.build(40, 14)
    stored = to_int8(model.state_dict())
    size = sum(t.numel() * t.element_size() for t in stored.values())
    assert size < 1.25 * count_parameters(model) < 1_000_000


@pytest.mark.costly
def test_a_bundle_in_8_bits_transcribes_the_same(
    learned: Path, tones: Path, tmp_path: Path
) -> None:
    out = tmp_path / "int8"
    cuts = tones / "dev.jsonl.gz"
    made = run_cli("compress", learned, "--out", out, "--int8", "--cuts", cuts)
    assert made.returncode == 0, made.stderr
    assert "weights on the disk" in made.stdout and "rank" not in made.stdout
    before, after = ((p / "model.safetensors").stat().st_size for p in (learned, out))
    assert after < before
    assert "weights in 8 bits" in (out / "README.md").read_text()
    waves = [read_wave(cut, RATE) for cut in load_cuts(cuts)]
    given, found = ([t for t, _ in asr.load(p, "cpu").texts(waves)] for p in (learned, out))
    assert given == found
    weights = Bundle.load(out).parts.state_dict()
    original = Bundle.load(learned).parts.state_dict()
    assert any(not torch.equal(weights[name], original[name]) for name in weights)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, original[name], atol=0.02, rtol=0)
    both = run_cli("compress", learned, "--out", tmp_path / "both", "--int8", "--rank", "4")
    assert both.returncode == 0 and "reconstruction error" in both.stdout
    assert (tmp_path / "both/model.safetensors").stat().st_size < after


@pytest.mark.parametrize("damage", ["short", "missing", "not int8"])
def test_scales_that_do_not_fit_are_refused(damage: str, learned: Path, tmp_path: Path) -> None:
    bundle = Bundle.load(learned)
    bundle.save(tmp_path, "card", int8=True)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith(".int8_scale"))
    owner = name.removesuffix(".int8_scale")
    if damage == "short":
        tensors[name] = tensors[name][:-1].clone()
    elif damage == "missing":
        del tensors[name]
    else:
        tensors[owner] = tensors[owner].float()
    save_file(tensors, path, {"tokenizer": bundle.tokenizer.digest})
    with pytest.raises(BundleError, match=f"tensor {owner} "):
        Bundle.load(tmp_path)
