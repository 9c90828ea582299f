"""The encoder in 8 bits, against float32 and explicit rounding."""

import pytest
import torch
from torch import nn

import asr
from asr.data.manifest import load_cuts, read_wave
from asr.model.inference import int8
from asr.model.inference.int8 import Int8Conv2d, Int8Linear, in_8_bits

has_vnni = int8._can_convolve()


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Return the nearest of the 256 values from the least to the largest, one of which is 0."""
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    scale = (high - low) / 255
    zero = round(-low / scale)
    return ((x / scale).round() + zero).clamp(0, 255).sub(zero) * scale


def rounded_weight(weight: torch.Tensor) -> torch.Tensor:
    scale = weight.abs().flatten(1).amax(1).view(-1, *[1] * (weight.ndim - 1)) / 127
    return (weight / scale).round() * scale


@pytest.mark.skipif(not has_vnni, reason="the processor has no VNNI")
@pytest.mark.parametrize("is_rectified", [True, False])
def test_a_convolution_is_that_of_rounded_numbers_edges_included(is_rectified: bool) -> None:
    torch.manual_seed(0)
    conv, x = nn.Conv2d(5, 7, 3, padding=1), torch.randn(1, 5, 11, 9) + 0.5
    x = x.relu() if is_rectified else x
    with torch.no_grad():
        found = Int8Conv2d(conv)(x)
        wanted = torch.conv2d(rounded(x), rounded_weight(conv.weight), conv.bias, padding=1)
        exact = conv(x)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-5)
    assert 1e-4 < (found - exact).abs().max() < 0.05


def test_a_linear_map_is_that_of_rounded_numbers() -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(64, 48), torch.randn(2, 5, 64)
    with torch.no_grad():
        found = Int8Linear(linear)(x)
        wanted = nn.functional.linear(rounded(x), rounded_weight(linear.weight), linear.bias)
        exact = linear(x)
    # Without its full range, an activation has 128 values.
    assert found.shape == wanted.shape and (found - wanted).abs().max() < 0.06
    assert 1e-4 < (found - exact).abs().max() < 0.1


def test_what_is_small_or_of_the_decoder_stays() -> None:
    model = nn.ModuleDict(
        {
            "encoder": nn.Sequential(nn.Linear(256, 256), nn.Linear(16, 16)),
            "decoder": nn.Sequential(nn.Linear(256, 256)),
            "front": nn.Sequential(
                nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3, groups=8)
            ),
        }
    )
    in_8_bits(model)
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    assert kinds["encoder.0"] == "Int8Linear" and kinds["encoder.1"] == "Linear"
    assert kinds["decoder.0"] == "Linear" and kinds["front.0"] == kinds["front.2"] == "Conv2d"
    assert kinds["front.1"] == ("Int8Conv2d" if has_vnni else "Conv2d")


def test_texts_are_the_same(learned, tones) -> None:  # type: ignore[no-untyped-def]
    cuts = load_cuts(tones / "dev.jsonl.gz")
    exact, small = (asr.load(learned, "cpu", int8=on) for on in (False, True))
    waves = [read_wave(cut, exact.sample_rate) for cut in cuts]
    texts = [[text for text, _ in each.texts(waves)] for each in (exact, small)]
    assert texts[0] == texts[1] and len(set(texts[0])) > 1
    if has_vnni:
        assert any(type(m) is Int8Conv2d for m in small.model.frontend.modules())
