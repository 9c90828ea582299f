"""Compare the front end and its low-rank kind with plain convolutions and gradients."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from asr.model.frontend import (
    Frontend,
    FrontendConfig,
    StridedConfig,
    VggBlock,
    VggConfig,
    VggLowRankConfig,
    convolution,
)
from asr.model.inference.frontend import in_tiles
from asr.model.projection import DenseConfig
from asr.model.size import count_parameters

C0, C1, RANK, FREQS = 4, 6, 3, 21
KINDS: dict[str, dict[str, Any]] = {
    "vgg": {"kind": "vgg"},
    "low rank": {"kind": "vgg_low_rank", "rank": RANK},
    "strided": {"kind": "strided"},
    "separable": {"kind": "strided", "separable": True},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind: str, n_freqs: int = FREQS, d_model: int = 8) -> Frontend:
    torch.manual_seed(0)
    values = {**KINDS[kind], "channels": [C0, C1]}
    config: Any = TypeAdapter(FrontendConfig).validate_python(values)
    front: Frontend = config.build(n_freqs, d_model, DenseConfig())
    for parameter in front.parameters():
        nn.init.normal_(parameter, std=0.3)
    return front


@pytest.mark.parametrize(("c_in", "c_out"), [(4, 6), (1, 6), (2, 30)])
def test_a_convolution_of_full_rank_equals_a_plain_one(c_in: int, c_out: int) -> None:
    torch.manual_seed(0)
    plain, full = nn.Conv2d(c_in, c_out, 3, padding=1), 3 * min(c_in, c_out)
    led = convolution(c_in, c_out, full)
    if isinstance(led, nn.Sequential):
        matrix = plain.weight.detach().permute(1, 2, 0, 3).reshape(3 * c_in, 3 * c_out)
        u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
        over_time = (u * s).T.reshape(full, c_in, 3, 1)
        over_bins = vt.reshape(full, c_out, 1, 3).transpose(0, 1)
        assert plain.bias is not None
        led[0].load_state_dict({"weight": over_time})
        led[1].load_state_dict({"weight": over_bins, "bias": plain.bias.detach()})
    else:  # of one channel
        led.load_state_dict(plain.state_dict())
    x = torch.randn(2, c_in, 7, 5)
    torch.testing.assert_close(led(x), plain(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rank", [None, RANK])
def test_the_size_of_vgg_follows_from_the_formula(rank: int | None) -> None:
    def size(c_in: int, c_out: int) -> int:
        dense = rank is None or c_in == 1
        return (9 * c_in * c_out if dense else 3 * rank * (c_in + c_out)) + c_out  # type: ignore[operator]

    expected = size(1, C0) + size(C0, C0) + size(C0, C1) + size(C1, C1)
    front = build("low rank" if rank else "vgg")
    assert count_parameters(front.parts()["convolutions"]) == expected
    steps, lengths = front(torch.randn(2, 19, FREQS), torch.tensor([19, 11]))
    assert steps.shape == (2, 4, 8)
    assert lengths.tolist() == [4, 2]


@pytest.mark.parametrize("noise", [0.0, 100.0])
@every_kind
def test_padding_never_changes_a_step_whatever_its_values(kind: str, noise: float) -> None:
    front, lengths = build(kind), torch.tensor([23, 8, 30, 5])
    batch = torch.randn(4, 37, FREQS)
    for row, n in zip(batch, lengths, strict=True):
        row[n:] *= noise
    together, steps = front(batch, lengths)
    for i, n in enumerate(lengths):
        alone, _ = front(batch[i : i + 1, :n], lengths[i : i + 1])
        torch.testing.assert_close(together[i, : steps[i]], alone[0], atol=1e-5, rtol=1e-5)


@pytest.mark.costly
@every_kind
def test_gradients_are_those_of_finite_differences_in_float64(kind: str) -> None:
    front, lengths = build(kind, 9, 3).double(), torch.tensor([11, 6])
    torch.manual_seed(1)
    names = [name for name, _ in front.named_parameters()]

    def steps(feats: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        values = dict(zip(names, parameters, strict=True))
        found, n = torch.func.functional_call(front, values, (feats, lengths))
        return torch.cat([row[:k] for row, k in zip(found, n, strict=True)])

    parameters = [torch.randn_like(p).requires_grad_() for p in front.parameters()]
    feats = torch.randn(2, 13, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(steps, (feats, *parameters))


@every_kind
def test_every_convolution_but_the_first_sees_channels_last(kind: str) -> None:
    front, seen = build(kind), []

    def look(module: nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        seen.append(args[0].shape[1] == 1 or args[0].stride(1) == 1)

    for module in front.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(look)
    front(torch.randn(2, 19, FREQS), torch.tensor([19, 11]))
    assert len(seen) >= 2
    assert all(seen)


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_a_block_starts_with_the_scale_of_the_plain_one_whatever_its_rank(rank: int) -> None:
    torch.manual_seed(0)
    x, lengths = torch.randn(2, 16, 32, 32), torch.full((2,), 32)
    spread = partial(lambda r: VggBlock(16, 16, r)(x, lengths)[0].square().mean())
    low = torch.stack([spread(rank) for _ in range(20)]).mean()
    plain = torch.stack([spread(None) for _ in range(20)]).mean()
    assert low.item() == pytest.approx(plain.item(), rel=0.5)


def test_a_rank_that_saves_nothing_is_refused_with_its_numbers() -> None:
    with pytest.raises(ValidationError, match=r"rank 193 .* 192"):
        VggLowRankConfig(kind="vgg_low_rank", rank=193)
    assert (
        VggConfig().steps(450) == VggLowRankConfig(kind="vgg_low_rank", rank=64).steps(450) == 112
    )


@pytest.mark.parametrize("kind", ["vgg", "low rank"])
@pytest.mark.parametrize("tile", [1, 2, 6, 1000])
def test_in_tiles_vgg_makes_the_same_steps(kind: str, tile: int, monkeypatch) -> None:
    monkeypatch.setattr("asr.model.inference.frontend._BYTES", tile * C0 * FREQS * 4)
    front = build(kind).eval()
    lengths = torch.tensor([41, 30, 7, 4, 3, 0])
    feats = torch.randn(len(lengths), 43, FREQS)
    with torch.inference_mode():
        (whole, steps), (tiled, same) = front(feats, lengths), in_tiles(front)(feats, lengths)
    assert steps.tolist() == same.tolist() == [10, 7, 1, 1, 0, 0]
    for wanted, found, n in zip(whole, tiled, steps.tolist(), strict=True):
        torch.testing.assert_close(found[:n], wanted[:n], atol=1e-5, rtol=1e-5)
        assert found[n:].abs().sum() == 0


def explicit_convolution(x: np.ndarray, conv: nn.Conv2d) -> np.ndarray:
    """3×3, stride 2 and a padding of one, number by number, of (C, T, F)."""
    assert conv.bias is not None or conv.groups > 1
    w, groups = conv.weight.detach().numpy(), conv.groups
    bias = np.zeros(len(w)) if conv.bias is None else conv.bias.detach().numpy()
    (C, T, F), per_group = x.shape, len(w) // groups
    y = np.zeros((len(w), -(-T // 2), -(-F // 2)))
    for o, t, f in np.ndindex(*y.shape):
        first = o // per_group * (C // groups)
        y[o, t, f] = bias[o] + sum(
            w[o, c, i, j] * x[first + c, 2 * t + i - 1, 2 * f + j - 1]
            for c, i, j in np.ndindex(*w.shape[1:])
            if 0 <= 2 * t + i - 1 < T and 0 <= 2 * f + j - 1 < F
        )
    return y


@pytest.mark.parametrize("kind", ["strided", "separable"])
@pytest.mark.parametrize("n_frames", [1, 4, 5, 10])
def test_a_strided_front_end_is_its_definition(kind: str, n_frames: int) -> None:
    front, feats = build(kind, n_freqs=7), torch.randn(n_frames, 7)
    steps, lengths = front(feats[None], torch.tensor([n_frames]))
    x = feats.numpy()[None]
    for block in (front.block1, front.block2):
        first, *pointwise = [m for m in block.modules() if isinstance(m, nn.Conv2d)]
        x = explicit_convolution(x, first)
        for conv in pointwise:
            assert conv.bias is not None
            x = np.einsum("oc,ctf->otf", conv.weight.detach()[..., 0, 0].numpy(), x)
            x += conv.bias.detach().numpy()[:, None, None]
        x = x.clip(0)
    wanted = front.norm(front.project(torch.tensor(x).float().permute(1, 2, 0).flatten(1)))
    torch.testing.assert_close(steps[0], wanted, atol=1e-4, rtol=1e-4)
    assert (
        StridedConfig(kind="strided").steps(n_frames)
        == lengths.item()
        == len(wanted)
        == -(-n_frames // 4)
    )
