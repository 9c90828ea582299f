"""Linformer: keys and values are projected along time before attention (Wang 2020).

Legend: B batch, H heads (or 1 where heads share), T queries, S keys, K head dimension, R rank,
N the longest input, C stride, M landmarks.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from asr.model.attention.full import (
    AttentionConfig,
    Kernel,
    LimitedConfig,
    attend,
    first_steps,
)
from asr.schema import Size


def _without_padding(x_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
    return x_BHSK.masked_fill(~mask_BS[:, None, :, None], 0.0)


class LinformerAttention(Kernel):
    """Softmax(Q (E K)ᵀ / √d_k) (F V), E and F of rank × length.

    Wang 2020, eq. 7; Cahyawijaya 2021, eq. 3.7 to 3.9. Learned E and F start from N(0, 1 / length).
    So E K has the scale of K, and the weights have the entropy of full attention to `rank` keys.
    The paper's N(0, 1 / rank) is for P Eᵀ: on K it is √(length / rank) too large.
    """

    EF: Tensor

    def __init__(self, config: "LinformerConfig", n_heads: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.length = config.length
        self.is_shared = config.sharing == "layers"
        self.owner: tuple[LinformerAttention] | None = None
        n_matrices = 1 if config.sharing in ("kv", "layers") else 2
        rows = n_heads if config.sharing == "none" else 1
        EF = torch.randn(n_matrices, rows, config.rank, config.length)
        if config.projection == "learned":
            self.EF = nn.Parameter(EF * config.length**-0.5)
        else:
            self.register_buffer("EF", EF * config.rank**-0.5)

    def follow(self, owner: "LinformerAttention") -> None:
        """Use another layer's E and F, which a bundle stores with that layer."""
        del self.EF
        self.owner = (owner,)  # in a tuple it is no submodule

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        """Attend; shorter inputs use the first columns of E and F, and padding is zero.

        Raises DataError for an input that is longer than E and F.
        """
        EF = (self.owner[0] if self.owner else self).EF
        EF = first_steps(EF, 3, k_BHSK.shape[2])
        k_BHRK = EF[0] @ _without_padding(k_BHSK, mask_BS)
        v_BHRK = EF[-1] @ _without_padding(v_BHSK, mask_BS)
        return attend(q_BHTK, k_BHRK, v_BHRK, p=self.dropout if self.training else 0.0)


def share_between_layers(stack: nn.Module) -> None:
    """Let all layers of a stack use the first layer's E = F if `sharing` is "layers"."""
    kernels = [each for each in stack.modules() if isinstance(each, LinformerAttention)]
    for kernel in kernels[1:]:
        if kernel.is_shared:
            kernel.follow(kernels[0])


class LinformerConfig(LimitedConfig):
    """Keys and values of at most `length` steps are projected to `rank` of them.

    `sharing` is `none`; `heads`: all heads have the same E and F; `kv`: also E = F; `layers`: also
    the same in all layers (Wang 2020, sec. 4; Merali 2020). `projection: random` keeps E and F as
    drawn from N(0, 1 / rank) (Wang 2020).
    """

    exports = True
    kind: Literal["linformer"]
    rank: Size = 64
    sharing: Literal["none", "heads", "kv", "layers"] = "heads"
    projection: Literal["learned", "random"] = "learned"

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return LinformerAttention(self, n_heads, dropout)


class ConvLinformerAttention(Kernel):
    """A convolution with kernel size = stride in place of E and F, for any length (Zaytsev).

    Each channel of K and of V has C weights, initially 1 / C; with a stride of 1 this is full
    attention. In training keys and values are shifted cyclically by a random number of steps below
    the stride, so that no position in a window is memorized (cycle-shift augmentation).
    """

    def __init__(self, config: "ConvLinformerConfig", n_heads: int, d_head: int, dropout: float):
        super().__init__()
        self.dropout, self.stride, self.cycle_shift = dropout, config.stride, config.cycle_shift
        shape = (2, n_heads, 1, config.stride, d_head)
        self.EF = nn.Parameter(torch.full(shape, 1 / config.stride))

    def _attend(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_BS: Tensor) -> Tensor:
        """Attend to windows with a valid step; the padding in them is zero."""
        kv = [_without_padding(x, mask_BS) for x in (k_BHSK, v_BHSK)]
        if self.training and self.cycle_shift:
            source_BS = cyclic_shift(mask_BS, int(torch.randint(self.stride, ())))
            kv = [x.take_along_dim(source_BS[:, None, :, None], 2) for x in kv]
        S, C = k_BHSK.shape[2], self.stride
        if torch.compiler.is_exporting():
            M = S // C + 2  # two at least, so that one graph is for inputs of any length
        else:
            C = min(C, S)  # a wider one would only add padding
            M = -(-S // C)
        rest = M * C - S
        k_BHMK, v_BHMK = (
            (pad(x, (0, 0, 0, rest)).unflatten(2, (M, C)) * weight[..., :C, :]).sum(3)
            for x, weight in zip(kv, self.EF, strict=True)
        )
        mask_BM = pad(mask_BS, (0, rest)).unflatten(1, (M, C)).any(2)
        p = self.dropout if self.training else 0.0
        return attend(q_BHTK, k_BHMK, v_BHMK, mask_BM[:, None, None], p)


def cyclic_shift(mask_BS: Tensor, by: int) -> Tensor:
    """Return the source index (B, S) of each step when valid steps are rolled by `by`.

    Padding, which follows the valid steps, stays.
    """
    index_S = torch.arange(mask_BS.shape[1], device=mask_BS.device)
    length_B1 = mask_BS.sum(1, keepdim=True).clamp(min=1)
    return torch.where(mask_BS, (index_S - by) % length_B1, index_S)


class ConvLinformerConfig(AttentionConfig):
    """Every `stride` steps become one key; `cycle_shift` shifts the windows in training."""

    exports = True
    kind: Literal["conv_linformer"]
    stride: Size = 4
    cycle_shift: bool = True

    def build(self, n_heads: int, d_head: int, causal: bool, dropout: float) -> Kernel:
        return ConvLinformerAttention(self, n_heads, d_head, dropout)
