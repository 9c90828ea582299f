"""Muon and Adam as one optimizer, against torch's two."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from asr.model.projection import LowRank
from asr.model.transformer import ModelConfig, SpeechTransformer
from asr.train import optimizer as optimizers
from asr.train.optimizer import build_optimizer, nearest_orthogonal
from asr.training_config import AdamConfig, MuonConfig

LR = 1e-3
MODEL = ModelConfig.model_validate(
    {
        "d_model": 16,
        "d_inner": 32,
        "n_heads": 2,
        "ctc_weight": 0.5,
        "projection": {"kind": "dense"},
        "projections": {"decoder": {"kind": "low_rank", "rank": 4}},
        "frontend": {"kind": "vgg", "channels": [4, 4]},
        "encoder": {"n_layers": 1, "convolution": 3},
        "decoder": {"n_layers": 1},
    }
)


def network() -> SpeechTransformer:
    torch.manual_seed(3)
    return MODEL.build(16, 11)


def gradients(seed: int, weights: list[nn.Parameter]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(weight.shape, generator=generator) for weight in weights]


def step(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], seed: int) -> None:
    """Make a step of the learning rate LR times each group's factor, as a schedule does."""
    factors = [group["lr"] for group in optimizer.param_groups]
    for weight, grad in zip(weights, gradients(seed, weights), strict=True):
        weight.grad = grad
    for group, factor in zip(optimizer.param_groups, factors, strict=True):
        group["lr"] = factor * LR
    optimizer.step()
    for group, factor in zip(optimizer.param_groups, factors, strict=True):
        group["lr"] = factor


@pytest.mark.parametrize(
    ("has_bfloat16", "rtol", "atol"), [(True, 1e-5, 1e-7), (False, 0.02, 1e-4)]
)
def test_each_weight_moves_as_torchs_own_optimizers_move_it(
    has_bfloat16: bool, rtol: float, atol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's Muon always computes in bfloat16, of 8 bits, which is slow where it is emulated."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_bfloat16})
    ours, theirs = network(), network()
    of_factors = {
        p
        for led in theirs.modules()
        if isinstance(led, LowRank)
        for p in (led.E.weight, led.D.weight)
    }
    of_layers = {
        layer.weight
        for name, layer in theirs.named_modules()
        if isinstance(layer, nn.Linear)
        and name.startswith(("encoder.layers", "decoder.layers", "frontend.project"))
    } | of_factors
    rest = [p for p in theirs.parameters() if p not in of_layers]
    rules = {"weight_decay": 0.0, "adjust_lr_fn": "match_rms_adamw"}
    oracles = [
        torch.optim.Muon([p for p in of_layers if p in of_factors], lr=LR * 3 / 2, **rules),
        torch.optim.Muon([p for p in of_layers if p not in of_factors], lr=LR * 3, **rules),
        torch.optim.Adam(rest, lr=LR, betas=(0.9, 0.98), eps=1e-9),
    ]
    weights, optimizer = (
        list(ours.parameters()),
        build_optimizer(MuonConfig(kind="muon", rate=3), ours, ours.parameters()),
    )
    others = list(theirs.parameters())
    for seed in range(3):
        step(optimizer, weights, seed)
        for weight, grad in zip(others, gradients(seed, others), strict=True):
            weight.grad = grad
        for oracle in oracles:
            oracle.step()
    for (name, weight), other in zip(ours.named_parameters(), others, strict=True):
        torch.testing.assert_close(weight, other, rtol=rtol, atol=atol, msg=name)


@pytest.mark.parametrize("shape", [(24, 96), (96, 24), (40, 40)])
def test_the_nearest_orthogonal_matrix_has_the_same_singular_vectors(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    inside = left.T @ nearest_orthogonal(matrix[None])[0].double() @ right.T
    sizes = inside.diagonal()
    assert float(sizes[:-1].min()) > 0.6 and float(sizes.max()) < 1.25
    torch.testing.assert_close(inside, sizes.diag(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("is_wide", [True, False])
def test_wide_matrices_are_multiplied_once(is_wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is faster there, and has the result of the iterations one by one."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    generator = torch.Generator().manual_seed(1)
    left, _, right = torch.linalg.svd(torch.randn(24, 48 if is_wide else 47, generator=generator))
    matrix = left @ torch.logspace(0, -4, 24).diag() @ right[:24]
    with FlopCounterMode(display=False) as counter:
        found = nearest_orthogonal(matrix[None])
    wide, square = 2 * 24 * 24 * matrix.shape[1], 2 * 24**3
    expected = 2 * wide + 17 * square if is_wide else 10 * wide + 5 * square
    assert counter.get_total_flops() == expected
    monkeypatch.setattr(optimizers, "_drawn_by_gram", optimizers._drawn)
    torch.testing.assert_close(found, nearest_orthogonal(matrix[None]), rtol=0, atol=1e-3)


@pytest.mark.parametrize("together", [1, 600, 1 << 22])
def test_a_matrix_moves_alike_beside_any_others(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one size are moved at once; one of them may have no gradient."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    monkeypatch.setattr(optimizers, "_TOGETHER", together)
    module = network()
    whole, alone = [nn.Parameter(p.detach().clone()) for p in module.parameters()], module
    muon = {"momentum": 0.95, "lr": 2.0}
    matrices = [i for i, p in enumerate(whole) if p.ndim == 2]
    assert len({whole[i].shape for i in matrices}) < len(matrices) - 2
    one = optimizers.MuonWithAdam([{"params": [whole[i] for i in matrices], **muon}], lr=LR)
    weights = [list(alone.parameters())[i] for i in matrices]
    others = [optimizers.MuonWithAdam([{"params": [each], **muon}], lr=LR) for each in weights]
    for seed in range(3):
        for weight, each, grad in zip(
            weights, [whole[i] for i in matrices], gradients(seed, weights), strict=True
        ):
            weight.grad, each.grad = grad.clone(), grad
        weights[1].grad = whole[matrices[1]].grad = None
        one.step()
        for other in others:
            other.step()
    for i, weight in zip(matrices, weights, strict=True):
        torch.testing.assert_close(whole[i], weight, rtol=1e-4, atol=1e-6)
    before = list(network().parameters())
    unmoved = [i for i, weight in zip(matrices, weights, strict=True) if before[i].equal(weight)]
    assert unmoved == [matrices[1]]


@pytest.mark.parametrize("name", ["decoder.embed", "decoder.output", "ctc_head.E", "ctc_head.D"])
def test_maps_from_and_to_tokens_are_adams(name: str) -> None:
    module = MODEL.model_copy(update={"ranks": {"ctc_head": 4}}).build(16, 11)
    optimizer = build_optimizer(MuonConfig(kind="muon"), module, module.parameters())
    step(optimizer, list(module.parameters()), 1)
    assert "exp_avg" in optimizer.state[module.get_submodule(name).weight]


def test_a_wide_matrix_moves_by_the_same_amount_in_all_directions() -> None:
    module = network()
    optimizer = build_optimizer(MuonConfig(kind="muon"), module, module.parameters())
    inner = module.encoder.layers[0].feed_forward.inner.weight
    before = inner.detach().clone()
    weights = list(module.parameters())
    step(optimizer, weights, 1)
    sizes = torch.linalg.svdvals(before - inner.detach()) / (LR * 0.2 * max(inner.shape) ** 0.5)
    assert sizes.min() > 0.6 and sizes.max() < 1.4


def test_a_saved_state_goes_on_with_the_same_steps() -> None:
    whole = network()
    halves = copy.deepcopy(whole)
    config = MuonConfig(kind="muon")
    one = build_optimizer(config, whole, whole.parameters())
    for seed in range(4):
        step(one, list(whole.parameters()), seed)
    first = build_optimizer(config, halves, halves.parameters())
    for seed in range(2):
        step(first, list(halves.parameters()), seed)
    second = build_optimizer(config, halves, halves.parameters())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for seed in range(2, 4):
        step(second, list(halves.parameters()), seed)
    for (name, weight), other in zip(whole.named_parameters(), halves.parameters(), strict=True):
        assert torch.equal(weight, other), name


def test_frozen_weights_stay() -> None:
    module = network()
    module.encoder.requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer = build_optimizer(MuonConfig(kind="muon"), module, trained)
    step(optimizer, trained, 1)
    moved = {name for name, weight in module.state_dict().items() if (weight != before[name]).any()}
    assert moved and not any(name.startswith("encoder") for name in moved)
    assert "decoder.layers.0.feed_forward.inner.E.weight" in moved


def test_adam_is_the_default_for_every_weight() -> None:
    module = network()
    optimizer = build_optimizer(AdamConfig(), module, module.parameters())
    assert type(optimizer) is torch.optim.Adam
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(
        list(module.parameters())
    )
