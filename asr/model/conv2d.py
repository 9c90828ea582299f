"""A 2-D convolution that trains faster on processors with AVX2 and no AVX-512.

Legend: B batch, C and K channels before and after, T frames, F frequency bins.
"""

from typing import Any

import torch
from torch import Tensor, nn

from asr.runtime.devices import is_avx2

# Numbers of a frame in all bins and channels. With fewer, copies cost as much as they save.
_FEWEST_NUMBERS = 2048


class Conv2d(nn.Conv2d):
    """A convolution whose output and gradients are those of `nn.Conv2d`.

    With channels stored last, oneDNN is fastest for the output and for the gradient of the input.
    But on a processor with AVX2 and no AVX-512, the gradient of the weights of long frames then
    takes up to three times as long as from copies with channels stored first.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y_BKTF: Tensor
        if self._copies(input, weight):
            y_BKTF = _FromCopies.apply(input, weight, bias, self.padding)  # type: ignore[no-untyped-call]
        else:
            y_BKTF = super()._conv_forward(input, weight, bias)
        return y_BKTF

    def _copies(self, x_BCTF: Tensor, weight: Tensor) -> bool:
        """Return whether the gradient of the weights is computed from copies."""
        return (
            self.training
            and torch.is_grad_enabled()
            and weight.requires_grad
            and x_BCTF.is_cpu
            and x_BCTF.dtype == torch.float32
            and not torch.is_autocast_enabled("cpu")
            and self.in_channels > 1
            and self.stride == self.dilation == (1, 1)
            and self.groups == 1
            and self.padding_mode == "zeros"
            and not isinstance(self.padding, str)
            and max(self.in_channels, self.out_channels) * x_BCTF.shape[3] >= _FEWEST_NUMBERS
            and is_avx2()
        )


class _FromCopies(torch.autograd.Function):
    """A convolution of stride 1 that computes its weights' gradient from channels-first copies."""

    @staticmethod
    def forward(
        ctx: Any, x_BCTF: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
    ) -> Tensor:
        ctx.save_for_backward(x_BCTF, weight)
        ctx.padding, ctx.bias_sizes = padding, None if bias is None else list(bias.shape)
        return torch.conv2d(x_BCTF, weight, bias, padding=padding)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad_BKTF,), (x_BCTF, weight) = grads, ctx.saved_tensors
        to_x, to_weight, to_bias, _ = ctx.needs_input_grad

        def gradients(grad: Tensor, x: Tensor, *wanted: bool) -> tuple[Tensor | None, ...]:
            rest = ctx.bias_sizes, (1, 1), ctx.padding, (1, 1), False, (0, 0), 1, wanted
            found: tuple[Tensor | None, ...]
            found = torch.ops.aten.convolution_backward(grad, x, weight, *rest)
            return found

        of_x, _, _ = gradients(grad_BKTF, x_BCTF, to_x, False, False)
        copies = grad_BKTF.contiguous(), x_BCTF.contiguous()
        _, of_weight, of_bias = gradients(*copies, False, to_weight, to_bias)
        return of_x, of_weight, of_bias, None
