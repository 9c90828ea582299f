"""The convolution of an encoder layer, over whole utterances or chunk by chunk.

Legend: B batch, S encoder steps, C steps of a chunk, N chunks, D d_model, X steps of a window.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import glu, pad, silu

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

        With `chunk` so does all beyond a position's chunk, while steps before it are seen (Li et
        al. 2023, dynamic chunk convolution): an utterance as a whole keeps both sides, and the
        steps of a chunk, which are computed at once, see each other.
        """
        gated_BDS = self._gate(x_BSD, mask_BS)
        if chunk is None:
            return self._mix(x_BSD, self.depthwise(gated_BDS))
        reach, (B, _, S) = self.reach, gated_BDS.shape
        windows_BDNX = pad(gated_BDS, (reach, -S % chunk)).unfold(2, reach + chunk, chunk)
        mixed = self.depthwise(windows_BDNX.transpose(1, 2).flatten(0, 1))[..., reach:]
        mixed_BDS = mixed.unflatten(0, (B, -1)).transpose(1, 2).flatten(2)[..., :S]
        return self._mix(x_BSD, mixed_BDS)

    def start_stream(self, n_sessions: int) -> Tensor:
        """Return the cache of a stream: what the convolution sees of the past, zeros."""
        return self.norm.weight.new_zeros(n_sessions, len(self.norm.weight), self.reach)

    def step_chunk(
        self, x_BCD: Tensor, mask_BC: Tensor, cache_BDX: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute a chunk after the steps in the cache; return the next cache too."""
        reach = cache_BDX.shape[2]
        window_BDX = torch.cat((cache_BDX, self._gate(x_BCD, mask_BC)), 2)
        mixed_BDC = self.depthwise(window_BDX)[..., reach:]
        return self._mix(x_BCD, mixed_BDC), window_BDX[..., window_BDX.shape[2] - reach :]

    def _gate(self, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Return what is convolved, (B, D, S)."""
        gated_BSD: Tensor = glu(self.inner(self.residual.pre_norm(x_BSD))) * mask_BS[..., None]
        return gated_BSD.transpose(1, 2)

    def _mix(self, x_BSD: Tensor, mixed_BDS: Tensor) -> Tensor:
        """Return the output of the unit for x and what the convolution made of it."""
        mixed_BSD = silu(self.norm(mixed_BDS.transpose(1, 2)))
        return self.residual.add_and_norm(x_BSD, self.outer(mixed_BSD))
