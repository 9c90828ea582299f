"""Plug point 3: from spectrogram to the encoder's steps, four times fewer.

Legend: B batch, T frames, F frequency bins, C channels, S steps (T / 4), D d_model.
"""

from typing import Annotated, Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from asr.model.projection import ProjectionConfig
from asr.node import Node


def keep_mask(lengths_B: Tensor, size: int) -> Tensor:
    """(B, size), True where a step is real."""
    return torch.arange(size, device=lengths_B.device) < lengths_B[:, None]


class PatchConvolution(nn.Conv2d):
    """A 3×3 convolution of one channel, as a product with all patches of nine numbers.

    The usual kernels leave most of a CPU idle at one channel. What comes out has its channels
    last, the layout in which a CPU convolves fastest, and the layers after it keep it so.
    """

    def forward(self, x_B1TF: Tensor) -> Tensor:
        """(B, 1, T, F) to (B, C, T, F)."""
        padded_BTF = pad(x_B1TF[:, 0], (1, 1, 1, 1))
        patches_BTF9 = padded_BTF.unfold(1, 3, 1).unfold(2, 3, 1).flatten(3)
        return linear(patches_BTF9, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def convolution(c_in: int, c_out: int, rank: int | None) -> nn.Module:
    """A 3×3 convolution, or its LED: 3×3 to `rank` channels, then a product at every point.

    To thesis 3.1.1 a convolution is a product of patches: E is (9 · c_in, rank), D is
    (rank, c_out). The first has 9 rows alone, which leaves nothing to save. Both start with the
    variance that ReLU needs (He et al., 2015).
    """
    if rank is None or c_in == 1:
        kind = PatchConvolution if c_in == 1 else nn.Conv2d
        layers: list[nn.Conv2d] = [kind(c_in, c_out, 3, padding=1)]
    else:
        layers = [nn.Conv2d(c_in, rank, 3, padding=1, bias=False), nn.Conv2d(rank, c_out, 1)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    nn.init.kaiming_normal_(layers[-1].weight, nonlinearity="relu")
    assert layers[-1].bias is not None
    nn.init.zeros_(layers[-1].bias)
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


def rectify(x_BCTF: Tensor, lengths_B: Tensor) -> Tensor:
    """ReLU, with every frame beyond an utterance's end at zero, as what is before its start.

    `x_BCTF` is overwritten there, unseen by autograd: where ReLU gives zero its gradient is zero
    too, so that nothing has to be kept or multiplied on the way back.
    """
    keep_BT = keep_mask(lengths_B, x_BCTF.shape[2])
    x_BCTF.detach().mul_(keep_BT[:, None, :, None])
    return torch.relu(x_BCTF)


class VggBlock(nn.Module):
    """Two 3×3 convolutions with ReLU, then 2×2 max-pooling: half the frames, half the bins."""

    def __init__(self, c_in: int, c_out: int, rank: int | None) -> None:
        super().__init__()
        self.conv1 = convolution(c_in, c_out, rank)
        self.conv2 = convolution(c_out, c_out, rank)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x_BCTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """What is beyond an utterance's end must be zero, and is zero in the result."""
        x_BCTF = rectify(self.conv1(x_BCTF), lengths_B)
        # ReLU and the maximum commute: after the pooling a quarter is left to rectify.
        lengths_B = lengths_B // 2
        return rectify(self.pool(self.conv2(x_BCTF)), lengths_B), lengths_B


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
        keep_BT = keep_mask(lengths_B, feats_BTF.shape[1])
        x_BCTF, lengths_B = self.block1((feats_BTF * keep_BT[..., None])[:, None], lengths_B)
        x_BCTF, lengths_B = self.block2(x_BCTF, lengths_B)
        return self.norm(self.project(x_BCTF.permute(0, 2, 3, 1).flatten(2))), lengths_B

    def parts(self) -> dict[str, nn.Module]:
        """What it consists of, in the order of the data's way."""
        return {
            "convolutions": nn.ModuleList([self.block1, self.block2]),
            "projection": nn.ModuleList([self.project, self.norm]),
        }


class _Channels(Node):
    """Channels of the first and the second pair of convolutions; what both kinds share."""

    channels: tuple[PositiveInt, PositiveInt] = (64, 128)

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
    rank: PositiveInt

    @model_validator(mode="after")
    def _rank_fits(self) -> Self:
        if self.rank > min(self.channels):
            raise ValueError(
                f"frontend.rank {self.rank} is above the smaller of channels, "
                f"{min(self.channels)}: a full rank is that at most"
            )
        return self

    def build(self, n_freqs: int, d_model: int, projection: ProjectionConfig) -> VggFrontend:
        """A front end for spectrograms of `n_freqs` bins."""
        return VggFrontend(n_freqs, d_model, self.channels, self.rank, projection)


FrontendConfig = Annotated[VggConfig | VggLowRankConfig, Field(discriminator="kind")]
