"""Test sparse evolutionary training: graph, rewiring, storage, and exact resumption."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import asr
from asr.bundle import Bundle, load_bundle_config
from asr.config import Config
from asr.errors import BundleError, ConfigError
from asr.model.inference.sparse import SparseLinear, fastest_form
from asr.model.projection import BlockSparse, SetSparse, sparse_maps
from asr.model.transformer import ModelConfig
from asr.reporting.results import describe
from asr.tokenizer import Tokenizer
from asr.train.checkpoints import average_into
from asr.train.module import SpeechModule
from asr.train.run import train
from tests.helpers import run_cli, tones_recipe, write_recipe

PROJECTION = {"kind": "set_sparse", "epsilon": 3.0, "zeta": 0.3}


@pytest.mark.parametrize(("d_in", "d_out", "epsilon"), [(192, 768, 20), (31, 17, 2.5), (8, 8, 99)])
def test_it_starts_at_the_density_of_erdos_and_renyi(d_in: int, d_out: int, epsilon: float) -> None:
    module = SetSparse(d_in, d_out, epsilon, 0.3)
    p = min(1.0, epsilon * (d_in + d_out) / (d_in * d_out))  # p(W_ij) of Mocanu 2018
    assert abs(len(module.values) - p * d_in * d_out) <= 0.5
    assert module.density == pytest.approx(p, abs=1 / (d_in * d_out))
    places = module.places.tolist()
    assert len(set(places)) == len(places) and min(places) >= 0 and max(places) < d_in * d_out


def test_its_graph_is_random_and_its_sums_start_as_large_as_a_dense_layers() -> None:
    torch.manual_seed(0)
    module = SetSparse(400, 600, 20, 0.3)
    degrees = (module.product() != 0).sum(1).double()
    p = module.density
    # Of edges drawn freely the degrees are nearly binomial; of a pattern they would be alike.
    assert degrees.var().item() == pytest.approx(400 * p * (1 - p), rel=0.25)
    y = module(torch.randn(2000, 400))
    assert y.var().item() == pytest.approx(400 * 2 / (400 + 600), rel=0.1)


def test_forward_is_a_product_with_the_weights_at_their_places_and_gradients_are_right() -> None:
    torch.manual_seed(0)
    module = SetSparse(7, 5, 1.5, 0.3).double()
    with torch.no_grad():
        module.bias.normal_()
    weight = np.zeros((5, 7))
    for place, value in zip(module.places.tolist(), module.values.tolist(), strict=True):
        weight[place // 7, place % 7] = value
    x = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    expected = x.detach().numpy() @ weight.T + module.bias.detach().numpy()
    np.testing.assert_allclose(module(x).detach().numpy(), expected, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda x, values, bias: torch.func.functional_call(
            module, {"values": values, "bias": bias}, x
        ),
        (x, module.values, module.bias),
    )


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 99.0])
def test_rewiring_moves_the_share_closest_to_zero_and_keeps_all_else(epsilon: float) -> None:
    torch.manual_seed(0)
    module = SetSparse(12, 9, epsilon, 0.3)
    places, values = module.places.clone(), module.values.detach().clone()
    n_moved = round(0.3 * len(values))
    smallest = set(np.argsort(np.abs(values.numpy()))[:n_moved].tolist())
    assert {float(values[i]) > 0 for i in smallest} == {True, False}  # blind to the sign
    moved = module.rewire(torch.Generator().manual_seed(7))
    assert set(moved.tolist()) == smallest
    assert len(module.values) == len(values)
    kept = [i for i in range(len(values)) if i not in smallest]
    assert torch.equal(module.places[kept], places[kept])
    assert torch.equal(module.values[kept], values[kept])
    assert not module.values[moved].any()
    assert len(set(module.places.tolist())) == len(places)
    again = SetSparse(12, 9, epsilon, 0.3)
    again.load_state_dict({"places": places, "values": values, "bias": module.bias})
    again.rewire(torch.Generator().manual_seed(7))
    assert torch.equal(again.places, module.places)
    if epsilon < 99:  # there are free places: another seed finds others
        again.load_state_dict({"places": places, "values": values, "bias": module.bias})
        again.rewire(torch.Generator().manual_seed(8))
        assert not torch.equal(again.places, module.places)


@pytest.mark.parametrize("zeta", [0.0, 0.3, 1.0])
def test_the_share_closest_to_zero_is_removed_and_all_else_stays(zeta: float) -> None:
    torch.manual_seed(0)
    module = SetSparse(12, 9, 3.0, zeta)
    places, values = module.places.clone(), module.values.detach().clone()
    module.remove_smallest()
    n_kept = len(values) - round(zeta * len(values))
    limit = sorted(values.abs().tolist(), reverse=True)[n_kept - 1] if n_kept else np.inf
    expected = torch.where(values.abs() >= limit, values, 0)
    assert torch.equal(module.values.detach(), expected) and torch.equal(module.places, places)
    assert int((module.product() != 0).sum()) == n_kept
    # A run that continues moves what was removed.
    moved = module.rewire(torch.Generator().manual_seed(7))
    assert set(moved.tolist()) == set((expected == 0).nonzero().flatten().tolist())


@pytest.mark.parametrize(
    ("d", "epsilon", "kind"), [(512, 5.0, SparseLinear), (512, 60.0, nn.Linear), (64, 1, nn.Linear)]
)
def test_for_evaluation_it_is_sparse_only_where_that_is_faster_and_always_the_same(
    d: int, epsilon: float, kind: type[nn.Module]
) -> None:
    torch.manual_seed(0)
    module = SetSparse(d, d, epsilon, 0.3)
    nn.init.normal_(module.bias)
    fast = fastest_form(module)
    assert type(fastest_form(module, may_be_sparse=False)) is nn.Linear
    assert type(fast) is kind
    x = torch.randn(2, 3, d)
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), module(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("block", "d_in", "d_out"), [(4, 24, 16), (8, 8, 64)])
def test_blocks_are_places_of_a_grid_and_gradients_are_right(
    block: int, d_in: int, d_out: int
) -> None:
    torch.manual_seed(0)
    module = BlockSparse(d_in, d_out, 3.0, 0.5, block=block).double()
    n = round(3.0 * (d_in + d_out) / block**2)
    assert module.values.shape == (n, block, block) and module.is_sound()
    assert module.density == pytest.approx(n * block**2 / (d_in * d_out))
    weight = np.zeros((d_out, d_in))
    for place, value in zip(module.places.tolist(), module.values.tolist(), strict=True):
        row, column = (block * i for i in divmod(place, d_in // block))
        weight[row : row + block, column : column + block] = value
    x = torch.randn(5, d_in, dtype=torch.float64)
    found = module(x).detach().numpy()
    np.testing.assert_allclose(found, x.numpy() @ weight.T, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda values: torch.func.functional_call(module, {"values": values}, x), module.values
    )
    fast = fastest_form(module)
    np.testing.assert_allclose(fast(x).detach().numpy(), found, atol=1e-12)


def test_blocks_start_with_the_variance_of_a_dense_map() -> None:
    torch.manual_seed(0)
    y = BlockSparse(512, 768, 40.0, 0.3, block=16)(torch.randn(500, 512))
    assert y.var().item() == pytest.approx(512 * 2 / (512 + 768), rel=0.1)


def test_whole_blocks_move_by_their_norm() -> None:
    torch.manual_seed(0)
    module = BlockSparse(32, 24, 4.0, 0.5, block=4)
    with torch.no_grad():  # a single large weight does not make a large block
        module.values[:] = torch.linspace(1, 2, len(module.values))[:, None, None]
        module.values[0] = 0
        module.values[0, 1, 2] = 2.5
        module.values[-1] = -module.values[-1]
    before = module.product()
    moved = module.rewire(torch.Generator().manual_seed(7)).tolist()
    assert sorted(moved) == list(range(len(module.values) // 2))
    assert module.is_sound() and not module.values[moved].any()
    kept = module.product() != 0
    assert torch.equal(module.product(), before * kept)
    assert int(kept.sum()) == 16 * (len(module.values) - len(moved))


def test_blocks_that_do_not_fill_a_map_are_refused() -> None:
    model = {"projection": {"kind": "block_sparse", "block": 48}}
    with pytest.raises(ConfigError, match="blocks of 48 do not fill a map from 5120 to 512"):
        ModelConfig.model_validate(model).build(161, 9)


MIXED = {
    "projection": {"kind": "low_rank", "rank": 4},
    "projections": {"query": PROJECTION, "value": {"kind": "dense"}, "outer": PROJECTION},
}
BLOCKS = {"projection": {"kind": "block_sparse", "epsilon": 4, "block": 8}}


def untrained(folder: Path, model: dict | None = None) -> Path:
    config = Config.model_validate(tones_recipe(folder, model=model or {"projection": PROJECTION}))
    torch.manual_seed(0)
    bundle = Bundle.create(config, Tokenizer.train(["一二三四五"], config.tokenizer))
    bundle.save(folder / "bundle", "card")
    return folder / "bundle"


def test_a_bundle_stores_and_counts_the_weights_that_there_are(tmp_path: Path) -> None:
    folder = untrained(tmp_path)
    stored = load_file(folder / "model.safetensors")
    name = "model.decoder.layers.0.feed_forward.inner"  # 32 to 64
    assert {k for k in stored if k.startswith(name)} == {
        f"{name}.{part}" for part in ("places", "values", "bias")
    }
    n = 3 * (32 + 64)
    assert stored[f"{name}.values"].shape == stored[f"{name}.places"].shape == (n,)
    bundle = Bundle.load(folder)
    maps = [m for m in bundle.model.modules() if isinstance(m, SetSparse)]
    assert len(maps) == 1 + 6 + 10
    dense = Config.model_validate(tones_recipe(tmp_path, model={"projection": {"kind": "dense"}}))
    spared = sum(m.d_in * m.d_out - len(m.values) for m in maps)
    sized = {"tokenizer": bundle.config.tokenizer}
    parameters = [
        describe(c.model_copy(update=sized))["parameters"] for c in (bundle.config, dense)
    ]
    assert parameters[1] - parameters[0] == spared > 0


def test_info_measures_the_degrees_of_a_bundles_sparse_maps(tmp_path: Path) -> None:
    folder = untrained(tmp_path, MIXED)
    config = load_bundle_config(folder)
    facts = describe(config, folder)
    weights = [module.product() for _, module in sparse_maps(Bundle.load(folder).model)]
    nodes = sum(sum(weight.shape) for weight in weights)
    n_weights = sum(int(weight.count_nonzero()) for weight in weights)
    assert facts["sparse_maps"] == len(weights) == 5
    assert facts["degrees"]["mean"] == pytest.approx(2 * n_weights / nodes)
    shown = run_cli("info", folder).stdout.split("degrees of 5 sparse maps: ")[1]
    assert f"{facts['degrees']['exponent']:.2f}" in shown
    assert "degrees" not in describe(config)


@pytest.mark.parametrize("model", [{"projection": PROJECTION}, MIXED, BLOCKS])
def test_recognition_is_that_of_the_trained_network(tmp_path: Path, model: dict) -> None:
    folder = untrained(tmp_path, model)
    bundle, recognizer = Bundle.load(folder), asr.load(folder)
    assert not any(isinstance(m, SetSparse) for m in recognizer.model.modules())
    bundle.model.eval()
    rng = torch.Generator().manual_seed(1)
    feats = torch.randn(2, 40, bundle.config.features.n_freqs, generator=rng)
    lengths = torch.tensor([40, 23])
    with torch.inference_mode():
        wanted, mask = bundle.model.encode(feats, lengths)
        torch.testing.assert_close(
            recognizer.model.encode(feats, lengths)[0][mask], wanted[mask], atol=1e-5, rtol=1e-5
        )
        tokens = torch.tensor([[1], [1]])
        found = recognizer.model.decoder.step(tokens, recognizer.model.decoder.start(wanted, mask))
        logits = bundle.model.decoder(tokens, wanted, mask)
    torch.testing.assert_close(found, logits.log_softmax(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("change", ["outside", "negative", "twice"])
def test_a_bundle_with_impossible_places_is_refused(tmp_path: Path, change: str) -> None:
    path = untrained(tmp_path) / "model.safetensors"
    state = load_file(path)
    name = "model.decoder.layers.0.feed_forward.inner.places"
    state[name][0] = {"outside": 32 * 64, "negative": -1, "twice": int(state[name][1])}[change]
    save_file(state, path)
    with pytest.raises(BundleError, match=name):
        Bundle.load(path.parent)


def test_weights_in_other_places_are_not_averaged(tmp_path: Path) -> None:
    bundle = Bundle.load(untrained(tmp_path))
    name, files = "decoder.layers.0.feed_forward.inner", []
    for i in range(3):
        state = {k: v.clone() for k, v in bundle.model.state_dict().items()}
        state[f"{name}.values"] += 1.0 + i
        if i == 1:
            state[f"{name}.places"] = state[f"{name}.places"].flip(0)
        files.append(tmp_path / f"{i}.safetensors")
        save_file(state, files[-1])
    before = bundle.model.state_dict()[f"{name}.values"].clone()
    average_into(bundle.model, files)
    torch.testing.assert_close(bundle.model.state_dict()[f"{name}.values"], before + 2.0)


def recipe(corpus: Path) -> dict:
    return tones_recipe(corpus, model={"projection": PROJECTION}, training={"epochs": 3})


@pytest.fixture(scope="module")
def undisturbed(
    tones: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[tuple[int, list[bool], list[bool]]]]:
    """A whole run, and what each rewiring did: its epoch, moments that are void and that live."""
    seen, rewire = [], SpeechModule._rewire

    def watch(task: SpeechModule) -> None:
        maps = [m for m in task.model.modules() if isinstance(m, SetSparse)]
        before = [m.places.clone() for m in maps]
        rewire(task)
        void, live = [], []
        for module, places in zip(maps, before, strict=True):
            moved = module.places != places
            state = task.optimizers().state[module.values]
            for moment in (state["exp_avg"], state["exp_avg_sq"]):
                void.append(not moment[moved].any())
                live.append(bool(moment[~moved].any()))
        seen.append((task.current_epoch, void, live))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpeechModule, "_rewire", watch)
        folder = tmp_path_factory.mktemp("u") / "run"
        return train(Config.model_validate(recipe(tones)), folder), seen


def test_it_evolves_after_every_epoch_but_the_last_and_new_weights_have_no_past(
    undisturbed: tuple[Path, list[tuple[int, list[bool], list[bool]]]],
) -> None:
    _, seen = undisturbed
    assert [epoch for epoch, _, _ in seen] == [1, 2]
    assert all(all(void) and all(live) for _, void, live in seen)


def test_as_brouns_has_it_q_k_and_v_alone_are_sparse_and_lose_weights_at_the_end(
    tones: Path, tmp_path: Path
) -> None:
    places = {"attention": {**PROJECTION, "final_removal": True}, "output": {"kind": "dense"}}
    model = {"projection": {"kind": "dense"}, "projections": places}
    zeros, calibrate = [], SpeechModule.validation_step

    def watch(task: SpeechModule, *args: Any) -> None:
        maps = [module for _, module in sparse_maps(task.model)]
        zeros.append((task.current_epoch, [int((each.values == 0).sum()) for each in maps]))
        calibrate(task, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpeechModule, "validation_step", watch)
        recipe = tones_recipe(tones, model=model, training={"epochs": 2})
        folder = train(Config.model_validate(recipe), tmp_path / "run")
    maps = dict(sparse_maps(Bundle.load(folder).model))
    assert {name.split(".")[-1] for name in maps} == {"query", "key", "value"}
    removed = [round(0.3 * len(module.values)) for module in maps.values()]
    assert {epoch for epoch, _ in zeros} == {0, 1}
    assert all(found == removed if epoch else not any(found) for epoch, found in zeros)


@pytest.mark.costly
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("place", "step"), [("training_step", 20), ("on_train_batch_start", 15)],
    ids=["in the second epoch", "after the first rewiring, which no state knows"],
)  # fmt: skip
def test_kill_9_then_resume_gives_the_graph_and_weights_of_an_undisturbed_run(
    tones: Path, tmp_path: Path, undisturbed: tuple[Path, list], place: str, step: int
) -> None:
    path, cut = write_recipe(tmp_path / "recipe.yaml", recipe(tones)), tmp_path / "cut"
    killer = (
        "import os, signal; from asr.train.module import SpeechModule as T\n"
        f"place = T.{place}\n"
        "def die(task, *args):\n"
        f"    if task.global_step == {step}:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return place(task, *args)\n"
        f"T.{place} = die"
    )
    killed = run_cli("train", path, "--out", cut, before=killer)
    assert killed.returncode == -signal.SIGKILL
    resumed = run_cli("train", path, "--out", cut, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    expected, found = (load_file(b / "model.safetensors") for b in (undisturbed[0], cut))
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
