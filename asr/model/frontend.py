"""Plug point 3: from spectrogram to the encoder's steps, four times fewer.

Legend: B batch, T frames, F frequency bins, C channels, S steps (T / 4), D d_model.
"""

from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from asr.model.projection import ProjectionConfig
from asr.schema import FrozenModel, Size


def padding_mask(lengths_B: Tensor, size: int) -> Tensor:
    """(B, size), True where a step is real."""
    return torch.arange(size, device=lengths_B.device) < lengths_B[:, None]


def convolution(c_in: int, c_out: int, rank: int | None) -> nn.Module:
    """A 3×3 convolution, or its LED: 3 frames to `rank` channels, then 3 bins to all channels.

    Thesis 3.1.1 carried over: the (3 · c_in, 3 · c_out) matrix from frame and channel to bin and
    channel is of the given rank, 3 · rank · (c_in + c_out) numbers in place of 9 · c_in · c_out.
    One channel leaves nothing to save.
    """
    if rank is None or c_in == 1:
        return nn.Conv2d(c_in, c_out, 3, padding=1)
    return nn.Sequential(
        nn.Conv2d(c_in, rank, (3, 1), padding=(1, 0), bias=False),
        nn.Conv2d(rank, c_out, (1, 3), padding=(0, 1)),
    )


def initialise(convolution: nn.Module) -> None:
    """Let it start with the variance that ReLU keeps (He et al., 2015), as a whole."""
    *first, last = (m for m in convolution.modules() if isinstance(m, nn.Conv2d))
    for layer in first:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    nn.init.kaiming_normal_(last.weight, nonlinearity="relu")
    assert last.bias is not None
    nn.init.zeros_(last.bias)


def rectify_(x_BCTF: Tensor, lengths_B: Tensor) -> Tensor:
    """ReLU in place, with every frame beyond an utterance's end at zero, as at its edges.

    Autograd need not see how they became zero: where ReLU gives zero its gradient is zero too.
    """
    mask_BT = padding_mask(lengths_B, x_BCTF.shape[2])
    x_BCTF.detach().mul_(mask_BT[:, None, :, None])
    return x_BCTF.relu_()


class VggBlock(nn.Module):
    """Two 3×3 convolutions with ReLU, then 2×2 max-pooling: half the frames, half the bins."""

    def __init__(self, c_in: int, c_out: int, rank: int | None) -> None:
        super().__init__()
        self.n_channels = c_out
        self.conv1 = convolution(c_in, c_out, rank)
        self.conv2 = convolution(c_out, c_out, rank)
        self.pool = nn.MaxPool2d(2)
        for conv in (self.conv1, self.conv2):
            initialise(conv)

    def forward(self, x_BCTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """What is beyond an utterance's end must be zero, and is zero in the result."""
        x_BCTF = rectify_(self.conv1(x_BCTF), lengths_B)
        # ReLU and the maximum commute: after the pooling a quarter is left to rectify.
        lengths_B = lengths_B // 2
        return rectify_(self.pool(self.conv2(x_BCTF)), lengths_B), lengths_B


class VggFrontend(nn.Module):
    """VGGish network: 4 convolutions, 2 max-poolings, then one projection (thesis 4.1, fig. 4.1).

    Both axes shrink by four; frequency and channel merge, F/4 · C numbers a step, and are
    projected to d_model by the recipe's projection, with layer normalisation after it.
    """

    def __init__(
        self,
        n_freqs: int,
        d_model: int,
        channels: tuple[int, int],
        rank: int | None,
        projection: ProjectionConfig,
    ) -> None:
        super().__init__()
        self.block1 = VggBlock(1, channels[0], rank)
        self.block2 = VggBlock(channels[0], channels[1], rank)
        self.project = projection.build(n_freqs // 2 // 2 * channels[1], d_model)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, feats_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) and frame counts to (B, S, D) and step counts, S = T // 2 // 2."""
        feats_BTF = feats_BTF * padding_mask(lengths_B, feats_BTF.shape[1])[..., None]
        # Channels last, the layout in which a CPU convolves fastest, is told by the strides alone,
        # which `contiguous` leaves as they are where there is one channel.
        x_BCTF = feats_BTF[..., None].permute(0, 3, 1, 2)
        x_BCTF, lengths_B = self.block1(x_BCTF, lengths_B)
        x_BCTF, lengths_B = self.block2(x_BCTF, lengths_B)
        return self.norm(self.project(x_BCTF.permute(0, 2, 3, 1).flatten(2))), lengths_B

    def parts(self) -> dict[str, nn.Module]:
        """What it consists of, in the order of the data's way."""
        return {
            "convolutions": nn.ModuleList([self.block1, self.block2]),
            "projection": nn.ModuleList([self.project, self.norm]),
        }


class _Channels(FrozenModel):
    """Channels of the first and the second pair of convolutions; what both kinds share."""

    channels: tuple[Size, Size] = (64, 128)

    @staticmethod
    def steps(frames: int) -> int:
        """How many encoder steps so many frames become."""
        return frames // 2 // 2


class VggConfig(_Channels):
    """The papers' front end."""

    kind: Literal["vgg"] = "vgg"

    def build(self, n_freqs: int, d_model: int, projection: ProjectionConfig) -> VggFrontend:
        """A front end for spectrograms of `n_freqs` bins."""
        return VggFrontend(n_freqs, d_model, self.channels, None, projection)


class VggLowRankConfig(_Channels):
    """The same with an LED of this rank in place of every convolution but the first."""

    kind: Literal["vgg_low_rank"]
    rank: Size

    @model_validator(mode="after")
    def _rank_fits(self) -> Self:
        full = 3 * min(self.channels)
        if self.rank > full:
            raise ValueError(
                f"rank {self.rank} is above {full}, 3 times the smaller of channels: a full rank "
                "is that at most"
            )
        return self

    def build(self, n_freqs: int, d_model: int, projection: ProjectionConfig) -> VggFrontend:
        """A front end for spectrograms of `n_freqs` bins."""
        return VggFrontend(n_freqs, d_model, self.channels, self.rank, projection)


FrontendConfig = Annotated[VggConfig | VggLowRankConfig, Field(discriminator="kind")]
