"""A convolution in training, against torch's own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.model import conv2d
from asr.model.conv2d import Conv2d
from asr.model.factorization import factorable
from asr.model.frontend import VggConfig
from asr.model.projection import DenseConfig


def gradients(module: nn.Module, x: Tensor, weights: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the output, and the gradients of input and parameters of a weighted sum of it."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = module(x)
    (y * weights).sum().backward()
    assert x.grad is not None
    return y, [x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kernel", [(3, 3), (3, 1), (1, 3)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("pads", [1, 0])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_output_and_gradients_are_those_of_torchs_convolution(
    kernel: tuple[int, int], bias: bool, pads: int, layout: torch.memory_format, monkeypatch
) -> None:
    monkeypatch.setattr(conv2d, "is_avx2", lambda: True)
    torch.manual_seed(0)
    padding = (pads * (kernel[0] // 2), kernel[1] // 2)
    theirs = nn.Conv2d(32, 40, kernel, padding=padding, bias=bias)
    ours = Conv2d(32, 40, kernel, padding=padding, bias=bias)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 32, 5, 64).contiguous(memory_format=layout)
    weights = torch.randn_like(theirs(x))
    (y, found), (expected, right) = gradients(ours, x, weights), gradients(theirs, x, weights)
    assert type(y.grad_fn).__name__ == "_FromCopiesBackward"
    torch.testing.assert_close(y, expected)
    assert len(found) == len(right) == 2 + bias
    for ours_, theirs_ in zip(found, right, strict=True):
        torch.testing.assert_close(ours_, theirs_, rtol=1e-4, atol=1e-4)


def test_the_weights_gradient_alone_sees_channels_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of the operands is what the time depends on."""
    monkeypatch.setattr(conv2d, "is_avx2", lambda: True)
    module = Conv2d(32, 32, 3, padding=1)
    x = torch.randn(2, 32, 5, 64).contiguous(memory_format=torch.channels_last).requires_grad_()
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.convolution_backward.default:
                seen.append((args[-1], args[0].stride(1) == 1, args[1].stride(1) == 1))
            return func(*args, **(kwargs or {}))

    y = module(x)
    with Watch():
        (y * torch.randn_like(y)).sum().backward()
    assert [(list(wanted), grad, inputs) for wanted, grad, inputs in seen] == [
        ([True, False, False], True, True),
        ([False, True, True], False, False),
    ]


@pytest.mark.parametrize("frozen", ["input", "bias"])
def test_what_needs_no_gradient_gets_none(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv2d, "is_avx2", lambda: True)
    module = Conv2d(32, 32, 3)
    assert module.bias is not None
    x = torch.randn(1, 32, 5, 64, requires_grad=frozen != "input")
    module.bias.requires_grad_(frozen != "bias")
    module(x).sum().backward()
    assert (x.grad is None) == (frozen == "input")
    assert (module.bias.grad is None) == (frozen == "bias")
    assert module.weight.grad is not None


CASES: dict[str, dict[str, Any]] = {
    "evaluation": {},
    "no gradient": {},
    "frozen": {},
    "float64": {},
    "autocast": {},
    "another processor": {},
    "one channel": {"in_channels": 1},
    "groups": {"groups": 8},
    "stride": {"stride": 2},
    "dilation": {"dilation": 2},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "same": {"padding": "same"},
    "short frames": {},
}


@pytest.mark.parametrize("case", CASES)
def test_elsewhere_it_is_torchs_own(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv2d, "is_avx2", lambda: case != "another processor")
    options = {"in_channels": 32, "out_channels": 32, "kernel_size": 3} | CASES[case]
    module, theirs = Conv2d(**options), nn.Conv2d(**options)
    theirs.load_state_dict(module.state_dict())
    x = torch.randn(1, module.in_channels, 5, 63 + (case != "short frames"), requires_grad=True)
    if case == "evaluation":
        module.eval()
    if case == "frozen":
        module.requires_grad_(False)
    if case == "float64":
        module, theirs, x = module.double(), theirs.double(), x.double()
    with (
        torch.set_grad_enabled(case != "no gradient"),
        torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"),
    ):
        y, expected = module(x), theirs(x)
    assert type(y.grad_fn).__name__ != "_FromCopiesBackward"
    torch.testing.assert_close(y, expected, rtol=0, atol=0)


def test_the_processor_is_asked_for_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for name in ("AVX2", "AVX512", "DEFAULT"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda name=name: name)
        found |= {name} if conv2d.is_avx2() else set()
    assert found == {"AVX2"}


def test_it_is_factorized_as_torchs_own_is() -> None:
    front = VggConfig().build(80, 16, DenseConfig(kind="dense"))
    found = {name for name, module in factorable(front).items() if isinstance(module, Conv2d)}
    assert found == {"block1.conv1", "block1.conv2", "block2.conv1", "block2.conv2"}
