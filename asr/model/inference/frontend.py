"""Run the front end on a CPU one utterance at a time, in tiles that stay in a core's cache.

Between two convolutions there are 40 kB a frame. Those of a whole utterance would go to memory and
back, in new pages each time, which costs a third as much as the arithmetic. One utterance has no
padding, so nothing is masked.

Legend: B batch, T frames, F frequency bins, C channels, S steps, D d_model.
"""

import torch
from torch import Tensor, nn

from asr.model.frontend import Frontend, VggBlock, VggFrontend

_BYTES = 3 << 20  # between the convolutions of a tile; 2 to 4 MiB are equally fast


class TiledFrontend(VggFrontend):
    """A front end with the same modules and a faster forward pass; for evaluation only."""

    def __init__(self, frontend: VggFrontend) -> None:
        nn.Module.__init__(self)
        self.pads = True
        self.block1, self.block2 = frontend.block1, frontend.block2
        self.project, self.norm = frontend.project, frontend.norm

    def forward(self, feats_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, T, F) and frame counts to (B, S, D), zero in the padding, and step counts."""
        steps_B = lengths_B // 2 // 2
        D = self.norm.normalized_shape[0]
        x_BSD = feats_BTF.new_zeros(len(feats_BTF), feats_BTF.shape[1] // 2 // 2, D)
        for b, (length, steps) in enumerate(zip(lengths_B.tolist(), steps_B.tolist(), strict=True)):
            if steps:
                x_1CTF = feats_BTF[b : b + 1, :length, :, None].permute(0, 3, 1, 2)
                x_1CTF = _tiled(self.block2, _tiled(self.block1, x_1CTF))
                x_SX = x_1CTF[0].permute(1, 2, 0).flatten(1)
                x_BSD[b, :steps] = self.norm(self.project(x_SX))
        return x_BSD, steps_B


def in_tiles(frontend: Frontend) -> Frontend:
    """Return VGG's front end in tiles, and any other as it is.

    Others have little data between layers, or are for streams.
    """
    if isinstance(frontend, VggFrontend) and frontend.pads:
        return TiledFrontend(frontend)
    return frontend


def _tiled(block: VggBlock, x_1CTF: Tensor) -> Tensor:
    """Apply a block to one utterance without padding.

    Each of the two convolutions reads a frame on either side, so tiles overlap by two frames.
    """
    T, F = x_1CTF.shape[2:]
    n = max(2, _BYTES // (block.n_channels * F * x_1CTF.element_size()) // 2 * 2)
    tiles = []
    for start in range(0, T // 2 * 2, n):
        first, end = max(0, start - 2), min(T, start + n + 2)
        y_1CTF = block.conv2(block.conv1(x_1CTF[:, :, first:end]).relu_())
        tiles.append(block.pool(y_1CTF[:, :, start - first : min(T, start + n) - first]))
    return torch.cat(tiles, 2).relu_()
