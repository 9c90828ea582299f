"""Plug point 3: from spectrogram to the encoder's steps, four times fewer.

Legend: B batch, T frames, F frequency bins, C channels, S steps (T / 4), D d_model.
"""

from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from asr.model.projection import ProjectionConfig
from asr.node import Node


def keep_mask(lengths_B: Tensor, size: int) -> Tensor:
    """(B, size), True where a step is real."""
    return torch.arange(size, device=lengths_B.device) < lengths_B[:, None]


class VggBlock(nn.Module):
    """Two 3×3 convolutions with ReLU, then 2×2 max-pooling: half the frames, half the bins."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        for conv in (self.conv1, self.conv2):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            assert conv.bias is not None
            nn.init.zeros_(conv.bias)

    def forward(self, x_BCTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve with every frame beyond an utterance's end held at zero, as at its edges."""
        mask = keep_mask(lengths_B, x_BCTF.shape[2])[:, None, :, None]
        x_BCTF = torch.relu(self.conv1(x_BCTF * mask))
        x_BCTF = torch.relu(self.conv2(x_BCTF * mask))
        return self.pool(x_BCTF), lengths_B // 2


class VggFrontend(nn.Module):
    """VGGish network: 4 convolutions, 2 max-poolings, then one projection (thesis 4.1, fig. 4.1).

    Both axes shrink by four; frequency and channel merge, F/4 · C numbers a step, and are
    projected to d_model by the recipe's projection, with layer normalisation after it.
    """

    def __init__(
        self, n_freqs: int, d_model: int, channels: tuple[int, int], projection: ProjectionConfig
    ) -> None:
        super().__init__()
        self.block1 = VggBlock(1, channels[0])
        self.block2 = VggBlock(channels[0], channels[1])
        self.project = projection.build(n_freqs // 2 // 2 * channels[1], d_model)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, feats_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) and frame counts to (B, S, D) and step counts, S = T // 2 // 2."""
        # Channels last is the layout in which a CPU convolves fastest.
        x_BCTF = feats_BTF[:, None].contiguous(memory_format=torch.channels_last)
        x_BCTF, lengths_B = self.block1(x_BCTF, lengths_B)
        x_BCTF, lengths_B = self.block2(x_BCTF, lengths_B)
        return self.norm(self.project(x_BCTF.permute(0, 2, 3, 1).flatten(2))), lengths_B


class VggConfig(Node):
    """Channels of the first and the second pair of convolutions."""

    kind: Literal["vgg"] = "vgg"
    channels: tuple[PositiveInt, PositiveInt] = (64, 128)

    def build(self, n_freqs: int, d_model: int, projection: ProjectionConfig) -> VggFrontend:
        """A front end for spectrograms of `n_freqs` bins."""
        return VggFrontend(n_freqs, d_model, self.channels, projection)

    @staticmethod
    def steps(frames: int) -> int:
        """How many encoder steps so many frames become."""
        return frames // 2 // 2


FrontendConfig = VggConfig
