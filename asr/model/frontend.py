"""Plug point 3: the front end, which subsamples features by four in time and frequency.

Legend: B batch, T frames, F frequency bins, C channels, S steps (some T / 4), D d_model.
"""

from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import pad

from asr.model.conv2d import Conv2d
from asr.model.projection import ProjectionConfig
from asr.schema import FrozenModel, Size

FRAMES_PER_STEP = 4


def padding_mask(lengths_B: Tensor, size: int) -> Tensor:
    """Return a mask (B, size), True where a step is valid."""
    return torch.arange(size, device=lengths_B.device) < lengths_B[:, None]


def convolution(c_in: int, c_out: int, rank: int | None, pads: bool = True) -> nn.Module:
    """Return a 3×3 convolution, or a low-rank pair: over 3 frames, then over 3 bins.

    Bins are always padded, frames only if `pads`; otherwise the output has two frames fewer. Like
    an LED (Cahyawijaya 2021, sec. 3.1.1), a pair is a (3 · c_in, 3 · c_out) matrix of the given
    rank: 3 · rank · (c_in + c_out) numbers in place of 9 · c_in · c_out. A convolution of one input
    channel is never factorized.
    """
    if rank is None or c_in == 1:
        return Conv2d(c_in, c_out, 3, padding=(int(pads), 1))
    return nn.Sequential(
        Conv2d(c_in, rank, (3, 1), padding=(int(pads), 0), bias=False),
        Conv2d(rank, c_out, (1, 3), padding=(0, 1)),
    )


def initialize(convolution: nn.Module) -> None:
    """Initialize a convolution, or a pair as a whole, for ReLU (He et al. 2015)."""
    *first, last = (m for m in convolution.modules() if isinstance(m, nn.Conv2d))
    for layer in first:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    nn.init.kaiming_normal_(last.weight, nonlinearity="relu")
    assert last.bias is not None
    nn.init.zeros_(last.bias)


def rectify_(x_BCTF: Tensor, lengths_B: Tensor) -> Tensor:
    """Apply ReLU in place, and set every frame beyond an utterance's end to zero.

    Autograd need not record the zeros: where ReLU returns zero, its gradient is zero too.
    """
    mask_BT = padding_mask(lengths_B, x_BCTF.shape[2])
    x_BCTF.detach().mul_(mask_BT[:, None, :, None])
    return x_BCTF.relu_()


class VggBlock(nn.Module):
    """Two 3×3 convolutions with ReLU, then 2×2 max-pooling."""

    def __init__(self, c_in: int, c_out: int, rank: int | None, pads: bool = True) -> None:
        super().__init__()
        self.n_channels = c_out
        self.conv1 = convolution(c_in, c_out, rank, pads)
        self.conv2 = convolution(c_out, c_out, rank, pads)
        self.pool = nn.MaxPool2d(2)
        for conv in (self.conv1, self.conv2):
            initialize(conv)

    def forward(self, x_BCTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, C, T, F) to half the frames and bins; padding must be zero and stays zero."""
        x_BCTF = rectify_(self.conv1(x_BCTF), lengths_B)
        # ReLU and the maximum commute, and after pooling a quarter of the numbers is left.
        lengths_B = lengths_B // 2
        return rectify_(self.pool(self.conv2(x_BCTF)), lengths_B), lengths_B

    def convolve(self, x_BCTF: Tensor) -> Tensor:
        """Map (B, C, T, F) to (B, C, (T - 4) / 2, F / 2), if its convolutions pad no frames."""
        y_BCTF: Tensor = self.pool(self.conv2(self.conv1(x_BCTF).relu_())).relu_()
        return y_BCTF


class StridedBlock(nn.Module):
    """A 3×3 convolution of stride 2 with ReLU, plain or separable (depthwise, then 1×1)."""

    def __init__(self, c_in: int, c_out: int, separable: bool, pads: bool = True) -> None:
        super().__init__()
        padding = (int(pads), 1)
        self.conv: nn.Module = nn.Conv2d(c_in, c_out, 3, 2, padding)
        if separable and c_in > 1:
            depthwise = nn.Conv2d(c_in, c_in, 3, 2, padding, groups=c_in, bias=False)
            self.conv = nn.Sequential(depthwise, nn.Conv2d(c_in, c_out, 1))
        initialize(self.conv)

    def forward(self, x_BCTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, C, T, F) to half the frames and bins; padding must be zero and stays zero."""
        lengths_B = (lengths_B + 1) // 2
        return rectify_(self.conv(x_BCTF), lengths_B), lengths_B

    def convolve(self, x_BCTF: Tensor) -> Tensor:
        """Map (B, C, T, F) to (B, C, (T - 1) / 2, ⌈F / 2⌉), if its convolution pads no frames."""
        y_BCTF: Tensor = self.conv(x_BCTF).relu_()
        return y_BCTF


class Frontend(nn.Module):
    """Two blocks of convolutions, then a projection and layer normalization.

    Frequency and channel are merged (Winata 2020; Cahyawijaya 2021, sec. 4.1, fig. 4.1), then
    projected to d_model, as the printed sizes demand. `n_bins` is the number that the blocks leave.

    Without `pads`, for streams, convolutions pad no frames. Then a step depends only on its own
    four frames, the `before` frames before them and the `after` frames after them. So chunks with
    overlapping frames give the steps of the whole utterance. Only the utterance has edges: `before`
    zeros at its start, and `behind` zeros at its end for the last step.
    """

    before: ClassVar[int]
    after: ClassVar[int]
    behind: ClassVar[int]

    def __init__(
        self,
        blocks: tuple["VggBlock | StridedBlock", "VggBlock | StridedBlock"],
        n_bins: int,
        channels: int,
        d_model: int,
        projection: ProjectionConfig,
        pads: bool = True,
    ) -> None:
        super().__init__()
        self.pads = pads
        self.block1, self.block2 = blocks
        self.project = projection.build(n_bins * channels, d_model)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, feats_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, T, F) and frame counts to (B, S, D) and step counts."""
        feats_BTF = feats_BTF * padding_mask(lengths_B, feats_BTF.shape[1])[..., None]
        if not self.pads:
            edges = pad(feats_BTF, (0, 0, self.before, self.behind))
            return self.convolve(edges), self.steps(lengths_B)
        # The strides say channels last, the fastest layout for convolutions on a CPU; `contiguous`
        # would not change them where there is one channel.
        x_BCTF = feats_BTF[..., None].permute(0, 3, 1, 2)
        x_BCTF, lengths_B = self.block1(x_BCTF, lengths_B)
        x_BCTF, lengths_B = self.block2(x_BCTF, lengths_B)
        return self.norm(self.project(x_BCTF.permute(0, 2, 3, 1).flatten(2))), lengths_B

    @staticmethod
    def steps(frames: Tensor) -> Tensor:
        """Return the numbers of steps that so many frames give."""
        raise NotImplementedError

    def convolve(self, feats_BTF: Tensor) -> Tensor:
        """Map the frames of S steps, and those before and after them, to (B, S, D)."""
        assert not self.pads, "the model has no streaming encoder"
        x_BCTF = feats_BTF[..., None].permute(0, 3, 1, 2)
        x_BCTF = self.block2.convolve(self.block1.convolve(x_BCTF))
        y_BSD: Tensor = self.norm(self.project(x_BCTF.permute(0, 2, 3, 1).flatten(2)))
        return y_BSD

    def parts(self) -> dict[str, nn.Module]:
        """Return its two parts in the order in which data pass them."""
        return {
            "convolutions": nn.ModuleList([self.block1, self.block2]),
            "projection": nn.ModuleList([self.project, self.norm]),
        }


class VggFrontend(Frontend):
    """Four convolutions and two max-poolings (VGG): T // 2 // 2 steps of T frames."""

    # A block's convolutions reach over 1 + 1 frames on each side, which are pairs of frames in the
    # second block. So 4 n + 12 frames are n steps: 76 are 16.
    before = after = behind = 6
    block1: VggBlock
    block2: VggBlock

    def __init__(
        self,
        n_freqs: int,
        d_model: int,
        channels: tuple[int, int],
        rank: int | None,
        projection: ProjectionConfig,
        pads: bool = True,
    ) -> None:
        c1, c2 = channels
        blocks = VggBlock(1, c1, rank, pads), VggBlock(c1, c2, rank, pads)
        super().__init__(blocks, n_freqs // 2 // 2, c2, d_model, projection, pads)

    @staticmethod
    def steps(frames: Tensor) -> Tensor:
        """Return the numbers of steps of so many frames."""
        return frames // 2 // 2


class StridedFrontend(Frontend):
    """Two convolutions of stride 2: ⌈T / 4⌉ steps of T frames.

    At equal channels it has a tenth of VGG's operations, most of which are at full resolution.
    """

    # The first convolution reaches a frame before its two, the second one a pair of frames before.
    # So 4 n + 3 frames are n steps: 67 are 16. The last step may have only one of its four frames.
    before, after, behind = 3, 0, 3
    block1: StridedBlock
    block2: StridedBlock

    def __init__(
        self,
        n_freqs: int,
        d_model: int,
        channels: tuple[int, int],
        separable: bool,
        projection: ProjectionConfig,
        pads: bool = True,
    ) -> None:
        c1, c2 = channels
        blocks = StridedBlock(1, c1, separable, pads), StridedBlock(c1, c2, separable, pads)
        super().__init__(blocks, -(-n_freqs // 4), c2, d_model, projection, pads)

    @staticmethod
    def steps(frames: Tensor) -> Tensor:
        """Return the numbers of steps of so many frames."""
        return (frames + 3) // 4


class _Channels(FrozenModel):
    """The channels of the two blocks."""

    channels: tuple[Size, Size] = (64, 128)

    @staticmethod
    def steps(frames: int) -> int:
        """Return the number of encoder steps of so many frames."""
        return frames // 2 // 2


class VggConfig(_Channels):
    """The front end of Winata 2020."""

    kind: Literal["vgg"] = "vgg"

    def build(
        self, n_freqs: int, d_model: int, projection: ProjectionConfig, pads: bool = True
    ) -> VggFrontend:
        """Return a front end for features of `n_freqs` bins."""
        return VggFrontend(n_freqs, d_model, self.channels, None, projection, pads)


class VggLowRankConfig(_Channels):
    """VGG with every convolution but the first factorized."""

    kind: Literal["vgg_low_rank"]
    rank: Size

    @model_validator(mode="after")
    def _rank_fits(self) -> Self:
        full = 3 * min(self.channels)
        if self.rank > full:
            raise ValueError(
                f"rank {self.rank} is above 3 times the smaller of channels: the full rank "
                f"is {full}"
            )
        return self

    def build(
        self, n_freqs: int, d_model: int, projection: ProjectionConfig, pads: bool = True
    ) -> VggFrontend:
        """Return a front end for features of `n_freqs` bins."""
        return VggFrontend(n_freqs, d_model, self.channels, self.rank, projection, pads)


class StridedConfig(_Channels):
    """Two strided convolutions, of which the second may be `separable`."""

    kind: Literal["strided"]
    channels: tuple[Size, Size] = (32, 64)
    separable: bool = False

    @staticmethod
    def steps(frames: int) -> int:
        """Return the number of encoder steps of so many frames."""
        return -(-frames // 4)

    def build(
        self, n_freqs: int, d_model: int, projection: ProjectionConfig, pads: bool = True
    ) -> StridedFrontend:
        """Return a front end for features of `n_freqs` bins."""
        return StridedFrontend(n_freqs, d_model, self.channels, self.separable, projection, pads)


FrontendConfig = Annotated[
    VggConfig | VggLowRankConfig | StridedConfig, Field(discriminator="kind")
]
