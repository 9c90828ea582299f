"""Factorization after training: against numpy, as a call on any network, and as a bundle."""

import json
import math
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import asr
from asr.bundle import Bundle
from asr.compression.compress import compress, compress_bundle, factorize
from asr.compression.solvers import Method, nmf, non_negative, semi_nmf, svd
from asr.config import Config
from asr.data.manifest import load_cuts
from asr.errors import BundleError, ConfigError, DataError
from asr.model.factorization import apply_ranks
from asr.model.inference.decoder import FastDecoder, for_inference
from asr.model.projection import LowRank
from asr.train.run import train
from tests.helpers import FREQS, VOCAB, build, padded_batch, run_cli, tiny, tones_recipe


def weight(outputs: int, inputs: int, seed: int = 0) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)).double()


def error(target: Tensor, factors: tuple[Tensor, Tensor]) -> float:
    first, second = factors
    return float(np.linalg.norm(target.numpy() - second.numpy() @ first.numpy()))


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (20, 20)])
@pytest.mark.parametrize("rank", [1, 7, 20])
def test_truncated_svd_has_the_error_of_eckart_and_young(shape: tuple[int, int], rank: int) -> None:
    target = weight(*shape)
    first, second = svd(target, rank)
    assert first.shape == (rank, shape[1]) and second.shape == (shape[0], rank)
    left_out = np.linalg.svd(target.numpy(), compute_uv=False)[rank:]
    assert error(target, (first, second)) == pytest.approx(np.sqrt((left_out**2).sum()), abs=1e-5)


def test_a_float32_networks_error_is_that_of_eckart_and_young_too() -> None:
    linear = nn.Linear(300, 200)
    smaller, (layer,) = factorize(linear, "svd", rank=40)
    values = np.linalg.svd(linear.weight.detach().double().numpy(), compute_uv=False)
    expected = np.sqrt((values[40:] ** 2).sum() / (values**2).sum())
    assert layer.error == pytest.approx(expected, abs=1e-5)
    old = linear.weight.detach()
    assert float((old - smaller.product()).norm() / old.norm()) == pytest.approx(expected, abs=1e-5)


def test_non_negative_factors_stay_so_and_no_update_raises_the_error() -> None:
    target = weight(25, 40).clamp(min=0)
    errors = []
    for updates in range(1, 30):
        factors = non_negative(target, 6, updates)
        assert all((factor >= 0).all() for factor in factors)
        errors.append(error(target, factors))
    assert all(later <= before + 1e-9 for before, later in pairwise(errors))
    assert errors[-1] < 0.9 * errors[0]


def test_multiplicative_updates_are_the_theses() -> None:
    """Eq. 2.10 and 2.11 from random starts find nothing better than a little."""
    target = weight(25, 40).clamp(min=0).numpy()
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        W, H = rng.random((25, 6)), rng.random((6, 40))
        for _ in range(300):
            H *= (W.T @ target) / (W.T @ W @ H)
            W *= (target @ H.T) / (W @ H @ H.T)
        found.append(np.linalg.norm(target - W @ H))
    ours = error(torch.from_numpy(target), non_negative(torch.from_numpy(target), 6, 300))
    assert ours == pytest.approx(min(found), rel=0.03)


def test_signed_weights_are_a_difference_of_two_non_negative_parts() -> None:
    target = weight(25, 40)
    first, second = nmf(target, 7)
    assert first.shape == (7, 40) and second.shape == (25, 7)
    assert (first >= 0).all() and (second[:, :4] >= 0).all() and (second[:, 4:] <= 0).all()
    above, below = target.clamp(min=0), (-target).clamp(min=0)
    assert error(above, (first[:4], second[:, :4])) < 0.8 * float(above.norm())
    assert error(below, (first[4:], -second[:, 4:])) < 0.8 * float(below.norm())
    # A rank of one serves the larger part alone, and one sign needs no second part.
    assert nmf(target, 1)[0].shape == (1, 40)
    assert (nmf(above, 5)[1] >= 0).all()


def test_a_part_of_less_rank_than_its_factors_has_finite_ones_and_no_error() -> None:
    lonely = torch.zeros(20, 30, dtype=torch.float64)
    lonely[3, 4], lonely[5, 6] = 2, -1
    first, second = nmf(lonely, 12)
    assert first.shape == (12, 30) and second.shape == (20, 12)
    torch.testing.assert_close(second @ first, lonely, rtol=0, atol=1e-6)


def test_semi_nmf_never_rises_is_half_non_negative_and_lies_between_the_others() -> None:
    target = weight(25, 40)
    factors = [semi_nmf(target, 6, updates) for updates in (0, 1, 2, 5, 20, 100)]
    assert all((second >= 0).all() for _, second in factors)
    errors = [error(target, each) for each in factors]
    assert all(later <= before + 1e-9 for before, later in pairwise(errors))
    assert error(target, svd(target, 6)) <= errors[-1] < error(target, nmf(target, 6))


MODULES = {
    "linear": (nn.Linear(20, 30), (4, 5, 20)),
    "linear without bias": (nn.Linear(30, 20, bias=False), (4, 30)),
    "1-d": (nn.Conv1d(12, 16, 5, stride=2, padding=2, bias=False), (2, 12, 19)),
    "2-d": (nn.Conv2d(8, 16, 3, padding=1, dilation=(1, 2)), (2, 8, 9, 11)),
    "circular": (nn.Conv2d(8, 16, 3, padding=1, padding_mode="circular"), (2, 8, 9, 11)),
    "3-d": (nn.Conv3d(6, 9, 2), (2, 6, 4, 5, 6)),
}


@pytest.mark.parametrize("case", MODULES)
@pytest.mark.parametrize("method", ["svd", "nmf", "semi_nmf"])
def test_two_low_rank_maps_compute_what_their_product_as_the_weight_does(
    case: str, method: Method
) -> None:
    old, shape = MODULES[case]
    x, before = torch.randn(shape), old.weight.detach().clone()
    smaller, (layer,) = factorize(old, method, rank=4)
    assert torch.equal(old.weight, before)
    factors = [p.detach().flatten(1) for n, p in smaller.named_parameters() if "weight" in n]
    product = (factors[1] @ factors[0]).view_as(before)
    lost = (before - product).norm() / before.norm()
    assert layer.error == pytest.approx(float(lost), abs=1e-5)
    wanted = torch.func.functional_call(old, {"weight": product}, x)
    torch.testing.assert_close(smaller(x), wanted, atol=1e-5, rtol=1e-4)
    assert layer.after == sum(p.numel() for p in smaller.parameters()) < layer.before


def test_a_convolution_in_groups_has_a_rank_for_each_and_loads_again() -> None:
    torch.manual_seed(0)
    old = nn.Conv1d(32, 24, 5, stride=2, padding=1, groups=4)
    depthwise = nn.Conv1d(24, 24, 5, groups=24)  # nothing would be saved
    network, x = nn.Sequential(old, depthwise), torch.randn(3, 32, 20)
    smaller, (layer,) = factorize(network, rank=2)
    groups = old.weight.detach().double().flatten(1).unflatten(0, (4, 6)).numpy()
    values = np.stack([np.linalg.svd(each, compute_uv=False) for each in groups])
    expected = np.sqrt((values[:, 2:] ** 2).sum() / (values**2).sum())
    assert layer.error == pytest.approx(expected, abs=1e-5)
    assert (layer.name, layer.shape, layer.rank) == ("0", (6, 40), 2)
    assert layer.after == sum(p.numel() for p in smaller[0].parameters()) < layer.before
    energy = float((values[:, :2] ** 2).sum() / (values**2).sum())
    assert factorize(network, energy=energy - 1e-6)[1] == [layer]
    again = deepcopy(network)
    apply_ranks(again, {"0": 2})
    again.load_state_dict(smaller.state_dict())
    assert torch.equal(again(x), smaller(x))
    # Where each group is of this rank, nothing is lost: the two compute what the one did.
    product = smaller[0][1].weight.detach().unflatten(0, (4, 6)).flatten(2) @ (
        smaller[0][0].weight.detach().unflatten(0, (4, 2)).flatten(2)
    )
    old.weight.data = product.view_as(old.weight)
    exact, (layer,) = factorize(network, rank=2)
    assert layer.error < 1e-6
    torch.testing.assert_close(exact(x), network(x), atol=1e-5, rtol=1e-5)


def test_energy_chooses_the_smallest_rank_that_keeps_it() -> None:
    steep = weight(40, 30) @ torch.diag(0.7 ** torch.arange(30.0)).double()
    linear = nn.Linear(30, 40)
    linear.weight.data.copy_(steep)
    _, (layer,) = factorize(linear, energy=0.9)
    shares = np.cumsum(np.linalg.svd(linear.weight.detach().double(), compute_uv=False) ** 2)
    shares /= shares[-1]
    assert shares[layer.rank - 1] >= 0.9 > shares[layer.rank - 2]
    assert layer.error**2 == pytest.approx(1 - shares[layer.rank - 1], abs=1e-6)
    assert factorize(nn.Linear(30, 40), energy=1.0)[1] == []  # nothing would be saved


def test_any_network_in_parts_chosen_by_name() -> None:
    shared = nn.Linear(64, 64)
    network = nn.ModuleDict(
        {
            "a": nn.Sequential(nn.Linear(64, 64), nn.ReLU(), shared),
            "b": nn.Sequential(shared, nn.Linear(64, 2), LowRank(64, 64, 30)),
            "c": nn.Conv1d(64, 64, 3, groups=64),
        }
    )
    before = {k: v.clone() for k, v in network.state_dict().items()}
    smaller, layers = factorize(network, rank=0.25)  # a share of the 32 at which nothing is saved
    assert {layer.name: layer.rank for layer in layers} == {"a.0": 8, "a.2": 8, "b.2": 8}
    assert smaller["a"][2] is smaller["b"][0] and isinstance(smaller["c"], nn.Conv1d)
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert [layer.name for layer in factorize(network, rank=8, modules=["b.*"])[1]] == [
        "b.0",
        "b.2",
    ]
    assert [layer.name for layer in factorize(network, rank=31)[1]] == ["a.0", "a.2"]
    assert [layer.name for layer in factorize(network["b"][2], rank=8)[1]] == [""]
    fresh, (layer, *_) = factorize(network, "random", rank=8)
    assert layer.error > 1 and fresh["a"][0].product().std() > 0


def test_a_tied_weight_stays_one() -> None:
    network = nn.ModuleDict({"embed": nn.Embedding(100, 32), "output": nn.Linear(32, 100)})
    network["output"].weight = network["embed"].weight
    network["other"] = nn.Linear(32, 100)
    smaller, layers = factorize(network, rank=8)
    assert [layer.name for layer in layers] == ["other"]
    assert smaller["output"].weight is smaller["embed"].weight


def test_torchs_own_transformer_continues_in_training_and_evaluation() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    smaller, layers = factorize(layer, rank=8)
    assert {each.name for each in layers} == {"linear1", "linear2"}
    x = torch.randn(2, 5, 32)
    trained = smaller.train()(x)
    with torch.no_grad():
        torch.testing.assert_close(smaller.eval()(x), trained, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "either a rank or an energy"),
        ({"rank": 3, "energy": 0.9}, "either a rank or an energy"),
        *(({"rank": rank}, f"rank {rank}: .*whole") for rank in (0, -1, 2.7, math.inf, math.nan)),
        *(({"energy": energy}, f"energy {energy}: ") for energy in (0, 1.1, math.nan)),
        ({"rank": 3, "method": "foo"}, "foo: .*svd, nmf, semi_nmf, random"),
        ({"rank": 3, "modules": "enc"}, r"\['enc'\]"),
    ],
)
def test_invalid_arguments_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        factorize(nn.Linear(30, 40), **wrong)


def test_a_huge_rank_saves_nothing_and_takes_no_memory() -> None:
    network = nn.Sequential(nn.Linear(30, 40), nn.Conv1d(8, 8, 3, groups=2), LowRank(64, 64, 30))
    assert all(factorize(network, rank=rank)[1] == [] for rank in (10**9, 1e30))


@pytest.mark.parametrize("method", get_args(Method))
def test_a_weight_that_is_not_finite_is_named_by_its_module(method: Method) -> None:
    network = nn.ModuleDict({"good": nn.Linear(30, 40), "bad": nn.Linear(30, 40)})
    network["bad"].weight.data[0, 0] = math.nan
    with pytest.raises(ConfigError, match="bad: not all of its weights are finite"):
        factorize(network, method, rank=3)
    assert len(factorize(network, method, rank=3, modules=["good"])[1]) == 1


@pytest.mark.parametrize(
    "choice",
    [
        {"rank": 2, "modules": ["*attention*"]},
        {"energy": 0.6, "modules": ["decoder.layers.*"]},  # unlike ranks
        {"rank": 3, "modules": ["*.query", "decoder.layers.1.*", "decoder.output"]},
    ],
)
@pytest.mark.parametrize("heads", [2, 4])
def test_the_fast_decoder_takes_unlike_ranks(choice: dict, heads: int) -> None:
    config = tiny(ctc=0.5).model_copy(update={"n_heads": heads})
    dense = build(config.model_validate({**config.model_dump(), "projection": {"kind": "dense"}}))
    model, layers = factorize(dense, **choice)
    assert layers
    batch, lengths, _ = padded_batch([23, 12], 5.0)
    with torch.inference_mode():
        memory, keep = model.encode(batch, lengths)
        fast = for_inference(model.decoder)
        assert isinstance(fast, FastDecoder)
        state = fast.start(memory, keep)
        tokens = torch.randint(1, VOCAB, (2, 3, 6), generator=torch.Generator().manual_seed(1))
        for step in range(6):
            found = fast.step(tokens[:, :, step], state)
        rows = [model.decoder(tokens[:, w], memory, keep)[:, -1] for w in range(3)]
    torch.testing.assert_close(found, torch.stack(rows, 1).log_softmax(-1), atol=1e-5, rtol=1e-5)


def test_a_recipes_ranks_give_the_shape_that_was_compressed() -> None:
    config = tiny(ctc=0.5)
    dense = config.model_validate({**config.model_dump(), "projection": {"kind": "dense"}})
    network, layers = factorize(build(dense), rank=4)
    ranks = {layer.name: layer.rank for layer in layers}
    assert any("frontend.block2.conv" in name for name in ranks) and "ctc_head" in ranks
    again = dense.model_validate({**dense.model_dump(), "ranks": ranks}).build(FREQS, VOCAB)
    again.load_state_dict(network.state_dict())
    with pytest.raises(ConfigError, match=r"encoder\.layers\.7"):
        dense.model_copy(update={"ranks": {"encoder.layers.7": 3}}).build(FREQS, VOCAB)


@pytest.fixture(scope="module")
def dense(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that was hardly trained."""
    values = tones_recipe(tones, model={"projection": {"kind": "dense"}}, training={"epochs": 1})
    return train(Config.model_validate(values), tmp_path_factory.mktemp("dense") / "bundle")


@pytest.fixture(scope="module")
def compressed(dense: Path, tones: Path) -> tuple[Path, dict]:
    """It, compressed by the command line, and what that said."""
    out = dense.parent / "svd"
    result = run_cli(
        "compress", dense, "--out", out, "--rank", "5", "--modules", "encoder.*",
        "--modules", "frontend.*", "--modules", "*.output",
        "--cuts", tones / "test.jsonl.gz", "--format", "json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "frontend.project: rank 5, error" in result.stderr
    return out, json.loads(result.stdout)


def test_compress_writes_a_bundle_that_loads_and_has_the_cer_that_it_reports(
    dense: Path, compressed: tuple[Path, dict], tones: Path
) -> None:
    out, report = compressed
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (dense, out)]
    assert report["bytes"] == sizes and sizes[1] < 0.9 * sizes[0]
    names = {layer["name"]: layer["rank"] for layer in report["layers"]}
    assert {"encoder.layers.0.self_attention.query", "frontend.project"} <= names.keys()
    assert not any(name.startswith("decoder.layers.0.feed") for name in names)
    for i, folder in enumerate((dense, out)):
        info = json.loads(run_cli("info", folder, "--format", "json").stdout)
        assert info["parameters"] == report["parameters"][i]
        result = run_cli("evaluate", folder, tones / "test.jsonl.gz", "--format", "json")
        assert json.loads(result.stdout)["cer"] == report["cer"][i]
    # The network on the disk is that of the call in Python.
    network, _ = factorize(Bundle.load(dense).model, rank=5, modules=list(names))
    loaded = Bundle.load(out).model.state_dict()
    assert all(torch.equal(loaded[k], v) for k, v in network.state_dict().items())
    assert asr.load(out).config.model.ranks == names


def test_what_was_compressed_can_be_compressed_again(
    compressed: tuple[Path, dict], tmp_path: Path
) -> None:
    result = run_cli("compress", compressed[0], "--out", tmp_path / "b", "--rank", "2")
    assert result.returncode == 0, result.stderr
    ranks = asr.load(tmp_path / "b").config.model.ranks
    assert ranks["encoder.layers.0.self_attention.query"] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rank", "3", "--energy", "0.9"], ["either a rank or an energy"]),
        (["--rank", "inf"], ["rank inf", "whole number"]),
        (
            ["--rank", "3", "--modules", "encoder.*", "--modules", "decoder.layer.*"],
            ["modules decoder.layer.*", "no map"],
        ),
        (["--int8", "--modules", "encoder.*"], ["--method and --modules are for --rank"]),
        (["--int8", "--method", "nmf"], ["--method and --modules are for --rank"]),
        (["--rank", "3", "--cuts", "nowhere.jsonl.gz"], ["nowhere.jsonl.gz"]),
    ],
)
def test_what_cannot_be_done_is_reported_in_a_sentence_and_leaves_nothing(
    dense: Path, tmp_path: Path, options: list[str], words: list[str]
) -> None:
    result = run_cli("compress", dense, "--out", tmp_path / "new", *options)
    assert result.returncode in (2, 3) and "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("choice", "advice"),
    [
        ({"rank": 1e30}, "lower the rank"),
        ({"rank": 1e-4}, "raise the rank"),
        ({"energy": 1.0}, "lower the energy"),
    ],
)
def test_where_nothing_becomes_smaller_the_advice_is_right(
    dense: Path, choice: dict, advice: str
) -> None:
    with pytest.raises(ConfigError, match=advice):
        compress(Bundle.load(dense), **choice)


def test_unreadable_recordings_leave_no_bundle(dense: Path, tones: Path, tmp_path: Path) -> None:
    cuts = load_cuts(tones / "test.jsonl.gz").to_eager()
    for cut in cuts:
        cut.recording.sources[0].source = str(tmp_path / "none.wav")
    cuts.to_file(tmp_path / "none.jsonl.gz")
    with pytest.raises(DataError, match="no utterance"):
        compress_bundle(dense, tmp_path / "new", rank=3, cuts=tmp_path / "none.jsonl.gz")
    assert not (tmp_path / "new").exists()


def test_a_bundle_is_not_overwritten(dense: Path) -> None:
    before = (dense / "model.safetensors").read_bytes()
    result = run_cli("compress", dense, "--out", dense, "--rank", "3")
    assert result.returncode == 2 and "give --out a new one" in result.stderr
    assert (dense / "model.safetensors").read_bytes() == before


def test_files_of_another_kind_are_not_overwritten(dense: Path, tmp_path: Path) -> None:
    for name in ("README.md", "evaluation.json"):
        (tmp_path / name).write_text("mine")
    for out in (tmp_path, tmp_path / "README.md"):
        with pytest.raises(ConfigError, match="is no empty folder: give --out a new one"):
            compress_bundle(dense, out, rank=3, cuts=tmp_path / "none")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        "README.md": "mine", "evaluation.json": "mine",
    }  # fmt: skip


def test_training_continues_from_a_compressed_bundles_weights_and_tokens(
    compressed: tuple[Path, dict], tones: Path, tmp_path: Path
) -> None:
    out = compressed[0]
    result = run_cli(
        "train", out / "config.yaml", "--set", f"training.init={out}", "--out", tmp_path / "tuned",
        "--set", "training.schedule={kind: constant, lr: 1.0e-7}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    before, after = Bundle.load(out), Bundle.load(tmp_path / "tuned")
    assert after.tokenizer.digest == before.tokenizer.digest
    old, new = before.model.state_dict(), after.model.state_dict()
    assert old.keys() == new.keys() and not all(torch.equal(old[k], new[k]) for k in old)
    for name, tensor in old.items():
        torch.testing.assert_close(new[name], tensor, atol=1e-4, rtol=0)


def test_weights_of_another_model_are_no_beginning(
    dense: Path, tones: Path, tmp_path: Path
) -> None:
    values = tones_recipe(tones, training={"epochs": 1, "init": str(dense)})
    with pytest.raises(BundleError, match=r"tensor model\..* of (this|another) model"):
        train(Config.model_validate(values), tmp_path / "other")
