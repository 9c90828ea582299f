"""Test how low-rank maps start, and how a step of the optimizer moves and decays them."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from pydantic import ValidationError
from torch import nn

import asr.train.step
from asr.bundle import Bundle
from asr.config import Config
from asr.model.layers import FeedForward
from asr.model.projection import DenseConfig, LowRank, LowRankConfig, SetSparseConfig
from asr.model.unit import LayerConfig
from asr.train.optimizer import decay, rate_groups
from asr.train.run import train
from tests.helpers import tones_recipe

SHAPES = [(256, 256, 25), (128, 512, 25), (512, 128, 25), (1280, 128, 32)]


def led_of(d_in: int, d_out: int, rank: int, **options: str) -> LowRank:
    torch.manual_seed(0)
    led = LowRankConfig.model_validate({"rank": rank, **options}).build(d_in, d_out)
    assert isinstance(led, LowRank)
    return led


@pytest.mark.parametrize("shape", [(40, 30, 7), (12, 33, 12)])
def test_spectral_is_the_best_approximation_of_a_dense_start_in_two_equal_shares(
    shape: tuple[int, int, int],
) -> None:
    d_in, d_out, rank = shape
    led = led_of(*shape, init="spectral")
    torch.manual_seed(0)
    LowRank(*shape)  # draws as many numbers as before the dense start
    dense = nn.init.xavier_uniform_(torch.empty(d_out, d_in))
    values = torch.linalg.svdvals(dense)
    # Eckart and Young 1936: no product of this rank has a smaller error.
    error = (dense - led.product()).norm()
    torch.testing.assert_close(error, values[rank:].square().sum().sqrt(), atol=1e-5, rtol=1e-5)
    for gram in (led.E.weight @ led.E.weight.T, led.D.weight.T @ led.D.weight):
        torch.testing.assert_close(gram, values[:rank].diag(), atol=1e-5, rtol=1e-5)
    assert not led.bias.any()


def movement(module: nn.Module) -> float:
    """Return ‖ΔW‖ / ‖W‖ of one step of Adam that fits random targets."""
    torch.manual_seed(1)
    before = module.weight.detach().clone()
    x, target = torch.randn(128, before.shape[1]), torch.randn(128, before.shape[0])
    adam = torch.optim.Adam(rate_groups(module, module.parameters()), lr=1.0)
    for group in adam.param_groups:
        group["lr"] *= 1e-5
    (module(x) - target).square().sum().backward()
    adam.step()
    return float((module.weight.detach() - before).norm() / before.norm())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("init", ["normal", "spectral"])
def test_with_the_rate_of_the_product_it_starts_to_move_as_a_dense_map(
    shape: tuple[int, int, int], init: str
) -> None:
    torch.manual_seed(0)
    dense = movement(DenseConfig().build(*shape[:2]))
    as_it_is = movement(led_of(*shape, init=init)) / dense
    if init == "spectral":
        assert 0.95 < as_it_is < 1.25  # by itself
        return
    scaled = movement(led_of(*shape, init=init, rate="product")) / dense
    assert 0.95 < scaled < 1.25
    if shape[0] > shape[1]:  # as in the front end
        assert as_it_is > 1.35


def test_weights_are_grouped_by_their_rate_and_without_one_are_as_before() -> None:
    led = led_of(512, 128, 25, rate="product")
    plain = nn.Linear(4, 4)
    network = nn.ModuleList([led, plain])
    one, other = rate_groups(network, network.parameters())
    assert one["lr"] == 1.0 and other["lr"] == led.rate != 1.0
    assert set(one["params"]) == {led.bias, *plain.parameters()}
    assert set(other["params"]) == {led.E.weight, led.D.weight}
    before = nn.ModuleList([led_of(512, 128, 25), plain])
    (group,) = rate_groups(before, before.parameters())
    assert group["params"] == list(before.parameters()) and group["lr"] == 1.0


def test_decay_is_a_gradient_step_of_half_the_squared_norms() -> None:
    torch.manual_seed(0)
    network = nn.ModuleDict(
        {
            "product": led_of(12, 9, 4, decay="product"),
            "alike": led_of(12, 9, 4, decay="product"),  # the two are computed together
            "other": led_of(9, 12, 4, decay="product"),
            "factors": led_of(12, 9, 4),
            "sparse": SetSparseConfig(epsilon=2).build(12, 9),
            "dense": DenseConfig().build(12, 9),
            "frozen": nn.Linear(5, 5).requires_grad_(False),
            "norm": nn.LayerNorm(9),
            "embedding": nn.Embedding(7, 5),
        }
    )
    for parameter in network.parameters():
        parameter.data += 0.1  # biases too
    products, factors = [network[n] for n in ("product", "alike", "other")], network["factors"]
    norms = (
        sum((each.D.weight @ each.E.weight).square().sum() for each in products)
        + sum(part.weight.square().sum() for part in factors.children())
        + network["sparse"].product().square().sum()
        + sum(network[name].weight.square().sum() for name in ("dense", "embedding"))
    )
    (norms / 2).backward()
    expected = {
        name: p.detach() - (0 if p.grad is None else 0.01 * p.grad)
        for name, p in network.named_parameters()
    }
    decay(network, 0.01)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], msg=name)


def test_a_run_decays_by_its_learning_rate(tones: Path, tmp_path: Path) -> None:
    options = {"rank": 4, "decay": "product", "rate": "product"}
    values = tones_recipe(
        tones,
        model={"projection": {"kind": "low_rank", **options}},
        training={
            "epochs": 1,
            "weight_decay": 0.5,
            "schedule": {"kind": "linear", "lr": 2e-3, "warmup_steps": 2},
        },
    )
    amounts = []

    def watch(network: nn.Module, amount: float) -> None:
        (led,) = (m for name, m in network.named_modules() if name == "frontend.project")
        before = led.product().norm()
        decay(network, amount)
        amounts.append(amount)
        assert led.product().norm() < before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asr.train.step, "decay", watch)
        folder = train(Config.model_validate(values), tmp_path / "run")
    assert len(amounts) > 2
    assert amounts[:2] == pytest.approx([0.5 * 1e-3, 0.5 * 2e-3]) and amounts[-1] < amounts[1]
    assert Bundle.load(folder).config.model.projection == LowRankConfig.model_validate(options)


def test_the_options_reach_the_units_of_a_layer() -> None:
    options = LowRankConfig(rank=3, decay="product", rate="product")
    unit = FeedForward(LayerConfig(d_model=16, d_inner=64, n_heads=2, projection=options))
    assert unit.inner.decays_product and unit.outer.decays_product
    assert len({unit.inner.rate, unit.outer.rate, 1.0}) == 3
    again = FeedForward(LayerConfig(d_model=16, d_inner=64, n_heads=2, projection=options))
    assert (again.inner.rate, again.outer.rate) == (unit.inner.rate, unit.outer.rate)
    with torch.device("meta"):  # as a bundle is checked
        LowRankConfig(rank=3, init="spectral").build(16, 64)
    with pytest.raises(ValidationError, match="rate: product is for init: normal"):
        LowRankConfig(rank=3, init="spectral", rate="product")


def test_a_bundle_is_loaded_without_an_svd(
    trained_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "spectral"
    shutil.copytree(trained_bundle, folder)
    config = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
    config["model"]["projection"]["init"] = "spectral"
    (folder / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    starts = list[LowRank]()

    def start(led: LowRank) -> None:
        starts.append(led)

    monkeypatch.setattr(LowRank, "start_spectral", start)
    bundle = Bundle.load(folder)
    assert not starts and isinstance(bundle.config.model.projection, LowRankConfig)
    bundle.config.model.build(bundle.config.features.n_freqs, bundle.tokenizer.vocab_size)
    assert starts
