"""Compare every attention with its definition in numpy; check what all have in common."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
import torch
from pydantic import ValidationError
from scipy.signal import cont2discrete, dlsim
from torch import Tensor, nn

import asr
from asr.errors import DataError
from asr.model.attention import (
    S4D,
    Kernel,
    follow_step,
    nystrom,
)
from asr.model.attention.linear import CausalProduct, orthogonal_directions
from asr.model.attention.linformer import cyclic_shift
from asr.model.attention.lsh import LshAttention
from asr.model.attention.nystrom import pseudo_inverse
from asr.model.frontend import padding_mask
from asr.model.inference.decoder import for_inference
from asr.model.transformer import DecoderConfig
from tests.helpers import (
    ENCODER,
    FREQS,
    RATE,
    VOCAB,
    build,
    padded_batch,
    run_cli,
    speak,
    tiny,
    tones_recipe,
    write_recipe,
)
from tests.model.attention.oracle import (
    CAUSAL,
    KERNELS,
    B,
    H,
    K,
    S,
    attention,
    each_head,
    full,
    kernel,
    node,
    qkv,
    softmax,
    step_by_step,
    with_random_weights,
)

# --- Linformer


def test_linformer_with_the_identity_for_e_and_f_is_full_attention() -> None:
    ours = kernel("linformer", rank=S, length=S)
    with torch.no_grad():
        ours.EF.copy_(torch.eye(S))
    q, k, v = qkv()
    torch.testing.assert_close(ours(q, k, v), full(q, k, v))


@pytest.mark.parametrize("sharing", ["none", "heads", "kv", "layers"])
def test_linformer_is_its_definition_and_shorter_inputs_use_the_first_columns(sharing: str) -> None:
    ours = kernel("linformer", rank=5, length=40, sharing=sharing)
    matrices = 1 if sharing in ("kv", "layers") else 2
    assert ours.EF.shape == (matrices, H if sharing == "none" else 1, 5, 40)
    EF = np.broadcast_to(ours.EF.detach().numpy(), (matrices, H, 5, 40))
    q, k, v = qkv()
    length = 7  # the rest is padding

    def one(h: int, q: Any, k: Any, v: Any) -> np.ndarray:
        E, F = EF[0, h, :, :length], EF[-1, h, :, :length]
        return attention(q, E @ k[:length], F @ v[:length])

    mask = torch.arange(S).expand(B, S) < length
    torch.testing.assert_close(ours(q, k, v, mask), each_head(one, q, k, v))


def test_linformer_layers_share_one_matrix_and_the_bundle_holds_it_once() -> None:
    for sharing, times in (("layers", 1), ("kv", 2)):
        config = node("linformer", rank=3, length=20, sharing=sharing)
        model = tiny(attention=config).build(FREQS, VOCAB)
        held = {key: value for key, value in model.state_dict().items() if key.endswith("EF")}
        assert len(held) == times
    model = build(tiny(attention=node("linformer", rank=3, length=20, sharing="layers")))
    feats = torch.randn(1, 40, FREQS)
    before = model.encode(feats, torch.tensor([40]))[0]
    first, second = (layer.self_attention.kernel for layer in model.encoder.layers)
    x = torch.randn(1, 4, 6, 4)
    torch.testing.assert_close(first(x, x, x), second(x, x, x), atol=0, rtol=0)
    with torch.no_grad():
        first.EF.mul_(2)
    assert not torch.allclose(second(x, x, x), first(x, x, x) * 0)
    torch.testing.assert_close(first(x, x, x), second(x, x, x), atol=0, rtol=0)
    assert not torch.allclose(model.encode(feats, torch.tensor([40]))[0], before)


def test_a_random_linformer_trains_nothing_and_has_the_papers_variance() -> None:
    learned, fixed = (
        kernel("linformer", rank=16, length=500, projection=p) for p in ("learned", "random")
    )
    assert not list(fixed.parameters()) and "EF" in fixed.state_dict()
    assert len(list(learned.parameters())) == 1
    assert fixed.EF.var().item() == pytest.approx(1 / 16, rel=0.05)


def test_learned_linformer_starts_with_the_entropy_of_attention_to_as_many_keys() -> None:
    rank, length, d = 32, 512, 64
    torch.manual_seed(0)
    q, k = torch.randn(2, 200, d), torch.randn(2, length, d)

    def entropy(keys: Tensor) -> float:
        weights = (q @ keys.mT * d**-0.5).softmax(-1)
        return -(weights * weights.log()).sum(-1).mean().item()

    starts = {
        projection: node("linformer", rank=rank, length=length, projection=projection)
        .build(1, d, False, 0.0).EF[0, 0].detach()
        for projection in ("learned", "random")
    }  # fmt: skip
    wanted = entropy(k[:, :rank])
    assert entropy(starts["learned"] @ k) == pytest.approx(wanted, rel=0.05)
    assert entropy(starts["random"] @ k) < 0.5 * wanted  # the printed start, √(n / k) = 4


def test_linformer_refuses_what_is_longer_than_its_matrices() -> None:
    with pytest.raises(DataError, match=r"11 encoder steps .*attention\.length 10: cut it, or"):
        kernel("linformer", rank=5, length=10)(*qkv())


# --- Convolution Linformer


def test_conv_linformer_of_stride_one_is_full_attention() -> None:
    q, k, v = qkv()
    torch.testing.assert_close(kernel("conv_linformer", stride=1)(q, k, v), full(q, k, v))


def test_conv_linformer_is_its_definition() -> None:
    ours = with_random_weights(kernel("conv_linformer", stride=3))
    E, F = ours.EF.detach().numpy()
    q, k, v = qkv()
    length = 8  # two windows and two thirds of one; the last window of all is padding

    def convolved(x: Any, weight: Any) -> np.ndarray:
        x = np.concatenate((x[:length], np.zeros((1, K))))
        return np.stack([(x[i : i + 3] * weight[0]).sum(0) for i in (0, 3, 6)])

    def one(h: int, q: Any, k: Any, v: Any) -> np.ndarray:
        return attention(q, convolved(k, E[h]), convolved(v, F[h]))

    mask = torch.arange(S).expand(B, S) < length
    torch.testing.assert_close(ours(q, k, v, mask), each_head(one, q, k, v))


def test_conv_linformer_is_equivariant_to_shifts_by_its_stride_and_to_no_others() -> None:
    ours = with_random_weights(kernel("conv_linformer", stride=3))
    x = qkv(12)
    for by in (1, 2, 3, 6, 7):
        shifted = ours(*(each.roll(by, 2) for each in x))
        assert torch.allclose(shifted, ours(*x).roll(by, 2)) == (by % 3 == 0)


def test_cyclic_shift_rolls_the_valid_steps_and_leaves_padding() -> None:
    mask = padding_mask(torch.tensor([5, 3, 4]), 5)
    expected = [[3, 4, 0, 1, 2], [1, 2, 0, 3, 4], [2, 3, 0, 1, 4]]
    assert cyclic_shift(mask, 2).tolist() == expected
    assert cyclic_shift(mask, 0).tolist() == [list(range(5))] * 3


def test_cycle_shift_augments_training_alone_and_by_every_shift() -> None:
    ours = with_random_weights(kernel("conv_linformer", stride=3))
    q, k, v = qkv(12)
    wanted = [ours(q, k.roll(by, 2), v.roll(by, 2)) for by in range(3)]
    ours.train()
    found = [ours(q, k, v) for _ in range(30)]
    hits = {i for f in found for i, w in enumerate(wanted) if torch.allclose(f, w)}
    assert hits == {0, 1, 2}
    assert all(any(torch.allclose(f, w) for w in wanted) for f in found)
    ours.cycle_shift = False
    torch.testing.assert_close(ours(q, k, v), wanted[0])


# --- linear


def phi(x: Any) -> np.ndarray:
    return np.where(x > 0, x + 1, np.exp(x))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 11, 150])
def test_linear_attention_is_its_definition(causal: bool, length: int) -> None:
    def one(_: int, q: Any, k: Any, v: Any) -> np.ndarray:
        weights = phi(q) @ phi(k).T
        weights = np.tril(weights) if causal else weights
        return weights @ v / weights.sum(1, keepdims=True)

    q, k, v = qkv(length, scale=2.0)
    torch.testing.assert_close(kernel("linear", causal)(q, k, v), each_head(one, q, k, v))


def test_the_causal_products_gradients_are_those_of_the_quadratic_form() -> None:
    q, k, v = (x.requires_grad_() for x in qkv(150))
    upstream = torch.randn(B, H, 150, K, dtype=torch.float64)
    expected = torch.autograd.grad(((q @ k.transpose(2, 3)).tril() @ v * upstream).sum(), (q, k, v))
    found = torch.autograd.grad((CausalProduct.apply(q, k, v) * upstream).sum(), (q, k, v))
    torch.testing.assert_close(found, expected)


def test_causal_linear_attention_keeps_no_state_for_backward() -> None:
    def kept(length: int) -> int:
        sizes: list[int] = []
        x = [torch.randn(1, 1, length, 16, requires_grad=True) for _ in range(3)]

        def count(t: Tensor) -> Tensor:
            sizes.append(t.numel())
            return t

        with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
            CausalProduct.apply(*x)
        return sum(sizes)

    assert kept(512) == 3 * 512 * 16  # the inputs; all S would be 512 * 16 * 16


# --- Performer


def test_performer_directions_are_orthogonal_in_groups_and_as_long_as_normal_ones() -> None:
    omega = orthogonal_directions(20, 8, draw=1).double()
    for group in omega.split(8):
        unit = group / group.norm(dim=1, keepdim=True)
        torch.testing.assert_close(
            unit @ unit.t(), torch.eye(len(unit)).double(), atol=1e-6, rtol=0
        )
    many = orthogonal_directions(40000, 8, draw=2).double()
    assert many.square().sum(1).mean().item() == pytest.approx(8, rel=0.02)
    assert many.mean(0).abs().max() < 0.03
    torch.testing.assert_close(omega, orthogonal_directions(20, 8, draw=1).double())


@pytest.mark.drawn(1)
@pytest.mark.parametrize("estimator", ["exp", "cosh"])
@pytest.mark.parametrize("features", [4, 32])
def test_performer_estimates_the_kernel_without_bias_and_within_its_error_bound(
    features: int, estimator: str
) -> None:
    """Var ≤ (e^|x+y|² - 1) e^(2 x·y) / m for independent directions; orthogonal ones do better.

    With cosh it is (1 - e^-|x+y|²) / 2 of that (Choromanski et al. 2020, lemma 2 and theorem 2, x
    and y being scaled by d^-1/4).
    """
    rng, draws = np.random.default_rng(0), 4000
    x, y = rng.normal(size=(2, K)) * 0.7
    ours = kernel("performer", features=features, estimator=estimator)
    estimates = []
    for draw in range(draws):
        ours.omega = orthogonal_directions(features, K, draw).double()
        a, b = (ours.features(torch.from_numpy(each)) for each in (x, y))
        estimates.append(float((a + b).exp().mean()))
    x, y = x * K**-0.25, y * K**-0.25
    exact, square = math.exp(x @ y), ((x + y) ** 2).sum()
    bound = (math.exp(square) - 1) * exact**2 / features
    if estimator == "cosh":
        bound *= (1 - math.exp(-square)) / 2
    assert np.var(estimates) < bound * 1.1
    assert abs(np.mean(estimates) - exact) < 4 * math.sqrt(bound / draws)


def test_performer_tends_to_full_attention_as_its_features_grow() -> None:
    q, k, v = qkv(scale=0.4)
    exact, errors = full(q, k, v), []
    for features in (16, 256, 4096):
        ours, squares = kernel("performer", features=features), []
        for draw in range(12):
            ours.omega = orthogonal_directions(features, K, draw).double()
            squares.append((ours(q, k, v) - exact).square().mean())
        errors.append(torch.stack(squares).mean().sqrt().item())
    # Sixteen times the features, a quarter of the error.
    ratios = [errors[0] / errors[1], errors[1] / errors[2]]
    assert ratios == pytest.approx([4, 4], rel=0.25) and errors[2] < 0.005


def test_performer_is_the_ratio_of_its_features_also_if_causal() -> None:
    q, k, v = qkv()
    for causal in (False, True):
        ours = kernel("performer", causal, features=6)
        w = ours.omega.numpy()

        def features(x: Any, w: Any = w) -> np.ndarray:
            x = x * K**-0.25
            return np.exp(x @ w.T - (x**2).sum(1, keepdims=True) / 2)

        def one(_: int, q: Any, k: Any, v: Any, causal: bool = causal) -> np.ndarray:
            weights = features(q) @ features(k).T
            weights = np.tril(weights) if causal else weights
            return weights @ v / weights.sum(1, keepdims=True)

        torch.testing.assert_close(ours(q, k, v), each_head(one, q, k, v))


def test_performers_cosh_is_the_ratio_of_its_cosines_also_if_causal() -> None:
    q, k, v = qkv()
    for causal in (False, True):
        ours = kernel("performer", causal, features=6, estimator="cosh")
        w = ours.omega.numpy() * K**-0.25

        def one(_: int, q: Any, k: Any, v: Any, w: Any = w, causal: bool = causal) -> np.ndarray:
            length = np.exp(-((k**2).sum(1) / 2 / K**0.5))
            weights = np.cosh((q[:, None] + k[None]) @ w.T).mean(2) * length
            weights = np.tril(weights) if causal else weights
            return weights @ v / weights.sum(1, keepdims=True)

        torch.testing.assert_close(ours(q, k, v), each_head(one, q, k, v))
        if causal:
            cache: tuple[Tensor, ...] = ()
            for t in range(S):
                found, cache = ours.step(*(x[:, :, t : t + 1] for x in (q, k, v)), cache)
                torch.testing.assert_close(found, ours(q, k, v)[:, :, t : t + 1])


@pytest.mark.parametrize("estimator", ["exp", "cosh"])
def test_performer_stays_finite_where_keys_are_large(estimator: str) -> None:
    for causal in (False, True):
        ours = node("performer", causal, features=32, estimator=estimator).build(1, 64, causal, 0.0)
        q, k, v = (30 * torch.randn(1, 1, 9, 64, generator=torch.manual_seed(i)) for i in range(3))
        x = [each.requires_grad_() for each in (q, k, v)]
        found = ours(*x)
        found.sum().backward()
        assert found.isfinite().all() and all(each.grad.isfinite().all() for each in x)


def test_performer_redraws_by_the_steps_number_in_training_alone() -> None:
    q, k, v = qkv()
    ours = kernel("performer", features=6, redraw=10)
    at_rest = ours(q, k, v)
    ours.train()
    by_step = []
    for step in (0, 9, 10, 19, 20):
        follow_step(nn.ModuleList([ours]).modules(), step)
        by_step.append(ours(q, k, v))
    assert torch.equal(by_step[0], at_rest) and torch.equal(by_step[0], by_step[1])
    assert torch.equal(by_step[2], by_step[3])
    assert not torch.allclose(by_step[0], by_step[2])
    assert not torch.allclose(by_step[2], by_step[4])
    resumed = kernel("performer", features=6, redraw=10).train()
    follow_step([resumed], 17)
    assert torch.equal(resumed(q, k, v), by_step[2])
    assert torch.equal(ours.eval()(q, k, v), at_rest)
    assert set(ours.state_dict()) == {"omega"}
    moved = ours.train().double()
    assert moved.latest is not None and moved.latest.dtype == torch.float64, "it follows the module"


def test_exponents_and_filters_are_computed_in_full_where_training_is_in_half() -> None:
    """Use float16 in place of bfloat16, which not every CPU has."""
    performer = node("performer", features=8).build(1, 8, False, 0.0)
    system = node("s4d", states=4).build(1, 6, False, 0.0)
    x, u = torch.randn(2, 1, 9, 8), torch.randn(2, 9, 6)
    with torch.autocast("cpu", torch.float16):
        found = performer.features(x), system(u)
    torch.testing.assert_close(found, (performer.features(x), system(u)), atol=0, rtol=0)
    half = performer.features(x.half())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, performer.features(x), atol=1e-2, rtol=0)


# --- sliding window


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("window", "dilation", "n_global"), [(1, 1, 0), (2, 1, 3), (3, 2, 0), (2, 3, 1), (4, 1, 20)]
)
def test_the_sliding_window_is_a_mask_of_full_attention(
    window: int, dilation: int, n_global: int, causal: bool
) -> None:
    def one(_: int, q: Any, k: Any, v: Any) -> np.ndarray:
        i, j = np.indices((S, S))
        apart = abs(i - j)
        seen = (apart % dilation == 0) & (apart <= window * dilation)
        seen = seen | (j < n_global) | (i < n_global)
        return attention(q, k, v, seen & (j <= i) if causal else seen)

    ours = kernel("sliding_window", causal, window=window, dilation=dilation,
                  global_tokens=n_global)  # fmt: skip
    q, k, v = qkv()
    torch.testing.assert_close(ours(q, k, v), each_head(one, q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_as_wide_as_the_input_is_full_attention(causal: bool) -> None:
    q, k, v = qkv()
    for window in (S, S + 5):
        ours = kernel("sliding_window", causal, window=window)
        torch.testing.assert_close(ours(q, k, v), kernel("full", causal)(q, k, v))


@pytest.mark.parametrize(
    ("kind", "number"),
    [("sliding_window", "window"), ("lsh", "chunk"), ("conv_linformer", "stride"),
     ("bigbird", "block"), ("sparse_strided", "stride"), ("sparse_fixed", "stride"),
     ("transformer_xl", "segment")],
)  # fmt: skip
def test_a_number_far_beyond_the_length_costs_no_more_than_the_length(
    kind: str, number: str
) -> None:
    q, k, v = qkv()
    wide, fits = (kernel(kind, **{number: n}) for n in (1 << 16, S))  # the first: no memory has it
    if kind == "conv_linformer":
        fits.EF = nn.Parameter(wide.EF[..., :S, :].detach())
    torch.testing.assert_close(wide(q, k, v), fits(q, k, v))


# --- LSH


def test_lsh_is_reformers_definition() -> None:
    """Loop over rounds, chunks and positions; keys of length 1, the own one only if alone."""
    ours = kernel("lsh", chunk=3, buckets=2, rounds=2)
    q, k, v = qkv()
    directions = ours.directions.numpy()

    def one(_: int, q: Any, k: Any, v: Any) -> np.ndarray:
        x = (q + k) / 2
        outs, sums = np.zeros((2, S, K)), np.zeros((2, S))
        for r in range(2):
            along = x @ directions[r, 0]
            bucket = np.concatenate((along, -along), 1).argmax(1)
            order = sorted(range(S), key=lambda i: (bucket[i], i))
            for rank, i in enumerate(order):
                first = max(0, rank // 3 - 1) * 3
                others = [j for j in order[first : rank // 3 * 3 + 3] if j != i]
                key = [x[j] / np.linalg.norm(x[j]) for j in others]
                scores = np.array([x[i] @ c / math.sqrt(K) for c in key])
                outs[r, i] = softmax(scores) @ v[others]
                sums[r, i] = np.log(np.exp(scores).sum())
        shares = np.exp(sums) / np.exp(sums).sum(0)
        return (outs * shares[..., None]).sum(0)

    torch.testing.assert_close(ours(q, k, v), each_head(one, q, k, v))


def test_lsh_of_one_chunk_sees_all_but_itself() -> None:
    q, _, v = qkv()

    def one(_: int, x: Any, v: Any) -> np.ndarray:
        return attention(x, x / np.linalg.norm(x, axis=1, keepdims=True), v, ~np.eye(S, dtype=bool))

    ours = kernel("lsh", chunk=S, buckets=2, rounds=3)
    torch.testing.assert_close(ours(q, q, v), each_head(one, q, v))
    alone = [x[:, :, :1] for x in (q, q, v)]
    torch.testing.assert_close(ours(*alone), alone[2])


def test_lsh_puts_alike_positions_in_one_chunk() -> None:
    torch.manual_seed(0)
    centres = torch.eye(K, dtype=torch.float64) * 9
    which = torch.randperm(4 * 8) % 4
    x = (centres[which] + 0.01 * torch.randn(32, K, dtype=torch.float64)).expand(1, 1, 32, K)
    v = torch.nn.functional.one_hot(which, 4).double().expand(1, 1, 32, 4)
    ours = LshAttention(node("lsh", chunk=8, buckets=8, rounds=8), K).double()
    found = ours(x, x, v)[0, 0]
    assert (found.argmax(1) == which).all()


# --- Nyström


def test_the_pseudo_inverse_is_numpys() -> None:
    rng = np.random.default_rng(0)
    a = softmax(rng.normal(size=(5, 4, 4)) + 3 * np.eye(4))
    torch.testing.assert_close(
        pseudo_inverse(torch.from_numpy(a)), torch.from_numpy(np.linalg.pinv(a)), atol=1e-6, rtol=0
    )


def test_nystrom_is_its_definition_over_segments_of_the_utterances_own_length() -> None:
    q, k, v = qkv(scale=2.0)
    length = 7
    segments = [[0, 1, 2], [3, 4], [5, 6]]

    def one(_: int, q: Any, k: Any, v: Any) -> np.ndarray:
        k, v, scale = k[:length], v[:length], K**-0.5
        qm, km = (np.stack([x[s].mean(0) for s in segments]) for x in (q, k))
        between = torch.from_numpy(softmax(qm @ km.T * scale))
        inverse = pseudo_inverse(between).numpy()
        return softmax(q @ km.T * scale) @ inverse @ softmax(qm @ k.T * scale) @ v

    mask = torch.arange(S).expand(B, S) < length
    found = kernel("nystrom", landmarks=3)(q, k, v, mask)
    torch.testing.assert_close(found, each_head(one, q, k, v), atol=1e-5, rtol=0)


def test_nystrom_with_a_landmark_at_every_step_is_full_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nystrom, "_ITERATIONS", 30)  # an exact inverse
    q, _, v = qkv(scale=3.0)
    for landmarks in (S, S + 4):
        found = kernel("nystrom", landmarks=landmarks)(q, q, v)
        torch.testing.assert_close(found, full(q, q, v), atol=1e-6, rtol=0)


# --- S4D


def s4d(causal: bool, states: int = 3, d: int = 5) -> S4D:
    torch.manual_seed(5)
    return node("s4d", causal, states=states).build(1, d, causal, 0.0).double().eval()


def simulated(ours: S4D, direction: int, u_TD: np.ndarray) -> np.ndarray:
    """Simulate with scipy: each pair of states as two real ones, by zero-order hold."""
    decay = ours.log_decay_RDN.exp().detach().numpy()[direction]
    frequency = ours.frequency_RDN.detach().numpy()[direction]
    C, step = (x.detach().numpy()[direction] for x in (ours.C_RDN2, ours.log_step_RD.exp()))
    y = np.zeros_like(u_TD)
    for d, n in itertools.product(range(u_TD.shape[1]), range(decay.shape[1])):
        a, w = decay[d, n], frequency[d, n]
        system = (
            np.array([[-a, -w], [w, -a]]), np.array([[1.0], [0.0]]),
            np.array([[2 * C[d, n, 0], -2 * C[d, n, 1]]]), np.zeros((1, 1)),
        )  # fmt: skip
        discrete = cont2discrete(system, step[d], "zoh")
        # scipy's output comes before the input has entered the state: one step earlier.
        later = np.append(u_TD[:, d], 0.0)
        y[:, d] += dlsim(discrete, later)[1][1:, 0]
    return y


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 17])
def test_s4d_is_the_systems_simulation(causal: bool, length: int) -> None:
    ours = s4d(causal)
    u = torch.randn(length, 5, dtype=torch.float64)
    expected = simulated(ours, 0, u.numpy()) + u.numpy() * ours.D_D.detach().numpy()
    if not causal:
        expected = expected + simulated(ours, 1, u.numpy()[::-1])[::-1]
    torch.testing.assert_close(ours(u[None])[0], torch.from_numpy(expected))


def test_s4ds_recurrence_is_its_convolution() -> None:
    ours = s4d(causal=True)
    u = torch.randn(2, 30, 5, dtype=torch.float64)
    torch.testing.assert_close(step_by_step(ours, u), ours(u))


def test_s4d_hardly_forgets_where_its_step_is_small() -> None:
    ours = s4d(causal=True, states=1)
    with torch.no_grad():
        ours.log_step_RD.fill_(math.log(1e-3))
        kernel_T = ours.kernel(1001)[0, 0]
    assert kernel_T[1000] / kernel_T[0] == pytest.approx(math.exp(-0.5), rel=1e-3)


# --- common properties


@pytest.mark.parametrize("kind", KERNELS)
def test_padding_never_changes_a_result_whatever_its_values_and_length(kind: str) -> None:
    ours: Kernel = with_random_weights(kernel(kind))
    q, k, v = qkv()
    mask = padding_mask(torch.tensor([7, 11]), S)
    found = ours(q, k, v, mask)
    alone = ours(*(x[:1, :, :7] for x in (q, k, v)))
    torch.testing.assert_close(found[:1, :, :7], alone)
    noise = [torch.where(mask[:, None, :, None], x, 1e3 * torch.randn_like(x)) for x in (q, k, v)]
    changed = ours(*noise, mask)
    torch.testing.assert_close(changed[0, :, :7], found[0, :, :7])
    assert changed.isfinite().all()
    more = [torch.cat((x, x), 2) for x in (q, k, v)]
    found_more = ours(*more, torch.cat((mask, torch.zeros_like(mask)), 1))
    torch.testing.assert_close(found_more[0, :, :7], alone[0])


@pytest.mark.parametrize("kind", KERNELS)
def test_gradients_are_right_in_float64(kind: str) -> None:
    ours = kernel(kind)
    mask = padding_mask(torch.tensor([5, 7]), 7)
    inputs = [x.requires_grad_() for x in qkv(7, seed=1)]
    takes = (ours.has_queries, ours.has_keys, True)
    used = [x for x, is_used in zip(inputs, takes, strict=True) if is_used]
    parameters = list(ours.parameters())

    def masked(*values: Tensor) -> Tensor:
        return ours(*values[:3], mask) * mask[:, None, :, None]

    assert torch.autograd.gradcheck(masked, [*inputs, *parameters], fast_mode=True)
    masked(*inputs).square().sum().backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in (*used, *parameters))
    assert all(x.grad[0, :, 5:].abs().max() == 0 for x in used if x.grad is not None)


@pytest.mark.parametrize("kind", [k for k in CAUSAL if k not in ("full", "s4d", "s4")])
def test_causal_gradients_are_right_in_float64(kind: str) -> None:
    ours = kernel(kind, causal=True)
    inputs = [x.requires_grad_() for x in qkv(7, seed=1)]
    assert torch.autograd.gradcheck(ours, inputs, fast_mode=True)


@pytest.mark.parametrize("causal", [True, False])
def test_s4ds_gradients_are_right_in_float64(causal: bool) -> None:
    ours = s4d(causal)
    u = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    mask = padding_mask(torch.tensor([4, 6]), 6)
    parameters = list(ours.parameters())
    assert torch.autograd.gradcheck(lambda u, *_: ours(u, mask), [u, *parameters], fast_mode=True)


@pytest.mark.parametrize("kind", [k for k in CAUSAL if k in KERNELS])
def test_causal_kinds_never_look_ahead_and_their_steps_are_the_whole(kind: str) -> None:
    numbers = ENCODER[kind]
    ours = kernel(kind, causal=True, **numbers)
    q, k, v = qkv(40)
    whole = ours(q, k, v)
    later = [torch.cat((x[:, :, :21], 9 * torch.randn_like(x[:, :, 21:])), 2) for x in (q, k, v)]
    torch.testing.assert_close(ours(*later)[:, :, :21], whole[:, :, :21], atol=0, rtol=0)
    cache: tuple[Tensor, ...] = ()
    sizes = []
    for t in range(40):
        found, cache = ours.step(*(x[:, :, t : t + 1] for x in (q, k, v)), cache)
        torch.testing.assert_close(found, whole[:, :, t : t + 1])
        sizes.append(sum(x.numel() for x in cache))
    if kind in ("linear", "performer"):
        assert len(set(sizes)) == 1  # constant memory per step
    if kind == "sliding_window":
        assert max(sizes) == 2 * B * H * (2 + 4 + 1) * K


def test_the_decoder_takes_no_kind_that_cannot_be_causal() -> None:
    for kind in set(ENCODER) - set(CAUSAL):
        node(kind)
        with pytest.raises(ValidationError, match=kind):
            node(kind, causal=True, **{"stride": 2})


@pytest.mark.parametrize("kind", [k for k in ENCODER if k != "full"])
def test_padding_never_changes_an_encoding_in_the_network(kind: str) -> None:
    model = build(tiny(attention=node(kind)))
    batch, lengths, alone = padded_batch([43, 8, 61, 25], 100.0)
    memory, mask = model.encode(batch, lengths)
    for i, feats in enumerate(alone):
        expected, _ = model.encode(feats[None], lengths[i : i + 1])
        torch.testing.assert_close(memory[i][mask[i]], expected[0], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("kind", [k for k in CAUSAL if k != "full"])
def test_cached_steps_are_the_decoder_run_at_once_also_when_reordered(kind: str) -> None:
    config = tiny().model_copy(update={"decoder": DecoderConfig(attention=node(kind, causal=True))})
    model = build(config)
    assert (
        for_inference(model.decoder) is model.decoder
    )  # it has a fast form for full attention only
    batch, lengths, _ = padded_batch([23, 12, 17], 5.0)
    memory, mask = model.encode(batch, lengths)
    W, rng = 3, torch.Generator().manual_seed(1)
    state, history = model.decoder.start(memory, mask), torch.zeros(3, W, 0, dtype=torch.long)
    for step in range(12):
        tokens = torch.randint(1, VOCAB, (len(memory), W), generator=rng)
        history = torch.cat((history, tokens[..., None]), dim=2)
        found = model.decoder.step(tokens, state)
        for w in range(W):
            logits = model.decoder(history[:, w], memory, mask)[:, -1]
            torch.testing.assert_close(found[:, w], logits.log_softmax(-1), atol=1e-4, rtol=1e-4)
        parents = torch.randint(0, W, (len(memory), W), generator=rng)
        state.reorder(parents)
        history = history.gather(1, parents[..., None].expand_as(history))
        if step == 6:
            rest = torch.tensor([0, 2])
            state.select(rest)
            memory, mask, history = memory[rest], mask[rest], history[rest]


@pytest.mark.parametrize("kind", list(ENCODER))
def test_a_step_of_training_reaches_every_weight_also_in_bfloat16(kind: str) -> None:
    encoder = build(tiny(attention=node(kind)).model_copy(update={"dropout": 0.1})).encoder.train()
    x, mask = torch.randn(3, 13, 16), padding_mask(torch.tensor([13, 6, 1]), 13)
    with torch.autocast("cpu", torch.bfloat16):
        assert encoder(x, mask).isfinite().all()
    (encoder(x, mask)[mask] * torch.randn(20, 16)).sum().backward()
    gradients = {name: p.grad for name, p in encoder.named_parameters()}
    assert all(g is not None and g.isfinite().all() for g in gradients.values())
    assert not [name for name, g in gradients.items() if g is not None and not g.any()]


@pytest.mark.parametrize("kind", list(ENCODER))
def test_sizes_are_known_without_numbers(kind: str) -> None:
    config = tiny(attention=node(kind))
    with torch.device("meta"):
        shapes = config.build(FREQS, VOCAB).state_dict()
    assert {k: v.shape for k, v in shapes.items()} == {
        k: v.shape for k, v in config.build(FREQS, VOCAB).state_dict().items()
    }


def test_a_recipe_trains_with_them_and_transcribes_what_is_longer_than_linformer_allows(
    tones: Path, tmp_path: Path
) -> None:
    values = tones_recipe(tones, training={"epochs": 1})
    linformer = "{kind: linformer, rank: 8, length: 64, sharing: layers}"
    bundle, wave = tmp_path / "bundle", tmp_path / "long.wav"
    result = run_cli(
        "train", write_recipe(tmp_path / "recipe.yaml", values), "--out", bundle,
        "--set", f"model.encoder={{n_layers: 2, attention: {linformer}}}",
        "--set", "model.decoder.attention={kind: performer, features: 8, redraw: 2}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    sf.write(wave, np.concatenate([speak("一二三四五", i) for i in range(9)]), RATE)
    found = asr.load(bundle, "cpu").transcribe(wave)
    assert found.duration > 2 * 2.56
    # 64 steps of 40 ms.
    assert len(found.segments) > 2 and all(s.end - s.start <= 2.56 for s in found.segments)
