"""A convolution in training, against torch's own."""

import copy

import pytest
import torch
from torch import Tensor, nn

from asr.model import conv2d
from asr.model.conv2d import Conv2d


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
    x = torch.randn(2, 32, 9, 7).contiguous(memory_format=layout)
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
    x = torch.randn(2, 32, 9, 7).contiguous(memory_format=torch.channels_last).requires_grad_()
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


@pytest.mark.parametrize("case", ["evaluation", "no gradient", "frozen", "float64", "few channels"])
def test_elsewhere_it_is_torchs_own(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv2d, "is_avx2", lambda: True)
    module = Conv2d(16 if case == "few channels" else 32, 32, 3)
    x = torch.randn(1, module.in_channels, 5, 5, requires_grad=True)
    if case == "evaluation":
        module.eval()
    if case == "frozen":
        module.requires_grad_(False)
    if case == "float64":
        module, x = module.double(), x.double()
    with torch.set_grad_enabled(case != "no gradient"):
        y = module(x)
    assert type(y.grad_fn).__name__ != "_FromCopiesBackward"


def test_it_has_the_names_and_copies_of_torchs_convolution() -> None:
    module = Conv2d(32, 32, 3)
    other = copy.deepcopy(module)
    assert list(other.state_dict()) == list(nn.Conv2d(32, 32, 3).state_dict())
