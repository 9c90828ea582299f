"""The front end as it runs on a CPU: an utterance at a time, in pieces that stay in a core's cache.

Between two convolutions lie 40 kB a frame. Made whole, they go out to memory and come back, and the
system clears new pages for them each time, which costs as much as a third of the arithmetic. An
utterance by itself has no padding either, so nothing is masked.

Legend: B batch, T frames, F frequency bins, C channels, S steps, D d_model.
"""

import torch
from torch import Tensor, nn

from asr.model.frontend import VggBlock, VggFrontend

_BYTES = 3 << 20  # of what lies between the convolutions of a piece; from 2 to 4 it is as fast


class TiledFrontend(VggFrontend):
    """A front end's own modules, with a forward pass of its own; for evaluation only."""

    def __init__(self, frontend: VggFrontend) -> None:
        nn.Module.__init__(self)
        self.block1, self.block2 = frontend.block1, frontend.block2
        self.project, self.norm = frontend.project, frontend.norm

    def forward(self, feats_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) and frame counts to (B, S, D) and step counts; zero after the last step."""
        steps_B = lengths_B // 2 // 2
        D = self.norm.normalized_shape[0]
        x_BSD = feats_BTF.new_zeros(len(feats_BTF), feats_BTF.shape[1] // 2 // 2, D)
        for b, (length, steps) in enumerate(zip(lengths_B.tolist(), steps_B.tolist(), strict=True)):
            if steps:
                x_1CTF = feats_BTF[b : b + 1, :length, :, None].permute(0, 3, 1, 2)
                x_1CTF = _in_pieces(self.block2, _in_pieces(self.block1, x_1CTF))
                x_SX = x_1CTF[0].permute(1, 2, 0).flatten(1)
                x_BSD[b, :steps] = self.norm(self.project(x_SX))
        return x_BSD, steps_B


def _in_pieces(block: VggBlock, x_1CTF: Tensor) -> Tensor:
    """What the block makes of one utterance without padding.

    Each of the two convolutions sees a frame to either side, so a piece has two more at its ends.
    """
    T, F = x_1CTF.shape[2:]
    n = max(2, _BYTES // (block.n_channels * F * x_1CTF.element_size()) // 2 * 2)
    pieces = []
    for start in range(0, T // 2 * 2, n):
        first, end = max(0, start - 2), min(T, start + n + 2)
        y_1CTF = block.conv2(block.conv1(x_1CTF[:, :, first:end]).relu_())
        here = slice(start - first, min(T, start + n) - first)
        pieces.append(block.pool(y_1CTF[:, :, here]))
    return torch.cat(pieces, 2).relu_()
