"""The convolution of an encoder layer, over whole utterances or chunk by chunk.

Legend: B batch, S encoder steps, C steps of a chunk, N chunks, D d_model, X steps of a window.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, glu, pad, silu

from asr.model.unit import LayerConfig, Residual


class Convolution(nn.Module):
    """The Conformer's convolution: gate, depthwise convolution, SiLU (Gulati et al. 2020, fig. 2).

    Layer normalization replaces batch normalization, so that other utterances and padding in the
    batch never change a result.
    """

    def __init__(self, config: LayerConfig, width: int) -> None:
        super().__init__()
        D, config, self.reach = config.d_model, config.at("convolution"), width // 2
        self.inner = config.build_map("inner", D, 2 * D)
        self.depthwise = nn.Conv1d(D, D, width, padding=self.reach, groups=D)
        self.norm = nn.LayerNorm(D)
        self.outer = config.build_map("outer", D, D)
        self.residual = Residual(config)

    def forward(self, x_BSD: Tensor, mask_BS: Tensor, chunk: int | None = None) -> Tensor:
        """Map (B, S, D) to (B, S, D); padding, where `mask_BS` is False, counts as zero.

        With `chunk`, steps after a position's own chunk count as zero too, while steps before it
        are seen (Li et al. 2023, dynamic chunk convolution). The steps of a chunk see each other,
        because they are computed at once. A whole utterance keeps both sides.
        """
        gated_BSD = self._gate(x_BSD, mask_BS)
        if chunk is None:
            return self._mix(x_BSD, self._convolve(gated_BSD))
        reach, (B, S, _) = self.reach, gated_BSD.shape
        windows_BNDX = pad(gated_BSD, (0, 0, reach, -S % chunk)).unfold(1, reach + chunk, chunk)
        mixed = self._convolve(windows_BNDX.transpose(2, 3).flatten(0, 1))[:, reach:]
        return self._mix(x_BSD, mixed.unflatten(0, (B, -1)).flatten(1, 2)[:, :S])

    def start_stream(self, n_sessions: int) -> Tensor:
        """Return the cache of a stream (B, D, X): zeros for the X steps before its start."""
        return self.norm.weight.new_zeros(n_sessions, len(self.norm.weight), self.reach)

    def step_chunk(
        self, x_BCD: Tensor, mask_BC: Tensor, cache_BDX: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute a chunk after the steps in the cache; return the next cache too."""
        window_BXD = torch.cat((cache_BDX.transpose(1, 2), self._gate(x_BCD, mask_BC)), 1)
        mixed_BCD = self._convolve(window_BXD)[:, cache_BDX.shape[2] :]
        return self._mix(x_BCD, mixed_BCD), window_BXD[:, x_BCD.shape[1] :].transpose(1, 2)

    def _gate(self, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Return what is convolved, (B, S, D)."""
        gated_BSD: Tensor = glu(self.inner(self.residual.pre_norm(x_BSD))) * mask_BS[..., None]
        return gated_BSD

    def _convolve(self, x_BSD: Tensor) -> Tensor:
        """Return the depthwise convolution over the steps, (B, S, D).

        The steps are an image of one row with channels stored last: oneDNN has a faster kernel
        for that.
        """
        image_BD1S = x_BSD[:, None].permute(0, 3, 1, 2)
        weight_D11X, bias = self.depthwise.weight[:, :, None], self.depthwise.bias
        mixed_BD1S = conv2d(image_BD1S, weight_D11X, bias, 1, (0, self.reach), 1, len(weight_D11X))
        return mixed_BD1S[:, :, 0].transpose(1, 2)

    def _mix(self, x_BSD: Tensor, mixed_BSD: Tensor) -> Tensor:
        """Return the output of the unit for x and what the convolution made of it."""
        return self.residual.add_and_norm(x_BSD, self.outer(silu(self.norm(mixed_BSD))))
