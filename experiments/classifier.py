"""The recognizer's encoder as a sequence classifier (Cahyawijaya 2021, 3.3.4 and chapter 5).

Legend: B batch, S sequence length without [CLS], D d_model, C classes, V vocabulary, M masked
positions of the whole batch.
"""

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pad

from asr.errors import DataError
from asr.model.encoder import Encoder
from asr.model.transformer import ModelConfig
from asr.schema import FrozenModel, Size


class ClassifierConfig(FrozenModel):
    """Only the encoder of `model` is used; without `vocab_size` the input is real numbers."""

    n_classes: int = Field(ge=2)
    vocab_size: Size | None = None
    model: ModelConfig


class SequenceClassifier(nn.Module):
    """Classify a sequence by the encoder's output at a [CLS] in front (Devlin 2019, section 3).

    `max_length` is the longest input without [CLS], None where the attention has no limit.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config, d_model = config, config.model.d_model
        self.embed: nn.Module = nn.Linear(1, d_model)
        if config.vocab_size is not None:
            self.embed = nn.Embedding(config.vocab_size, d_model)
            nn.init.normal_(self.embed.weight)
            self.token_head = nn.Linear(d_model, config.vocab_size)
        self.special = nn.Parameter(torch.randn(2, d_model))  # [CLS] and [MASK]
        self.encoder = Encoder(config.model)
        self.class_head = nn.Linear(d_model, config.n_classes)
        longest = config.model.encoder.longest
        self.max_length = None if longest is None else longest - 1

    def forward(self, x_BS: Tensor, mask_BS: Tensor) -> Tensor:
        """Return class logits (B, C); positions where `mask_BS` is False are padding.

        Raises DataError for sequences longer than `max_length`.
        """
        logits_BC: Tensor = self.class_head(self._encode(x_BS, mask_BS)[:, 0])
        return logits_BC

    def reconstruct(self, x_BS: Tensor, mask_BS: Tensor, masked_BS: Tensor) -> Tensor:
        """Return token logits (M, V) at the positions in `masked_BS`, which are input as [MASK]."""
        y_BSD = self._encode(x_BS, mask_BS, masked_BS)[:, 1:]
        logits_MV: Tensor = self.token_head(y_BSD[masked_BS])
        return logits_MV

    def _encode(self, x_BS: Tensor, mask_BS: Tensor, masked_BS: Tensor | None = None) -> Tensor:
        """Return the encoder's output (B, 1 + S, D), [CLS] first."""
        if self.max_length is not None and x_BS.shape[1] > self.max_length:
            n = x_BS.shape[1]
            raise DataError(f"{n} positions are too many: the model takes {self.max_length}")
        x_BSD = self.embed(x_BS if self.config.vocab_size is not None else x_BS[..., None])
        if masked_BS is not None:
            x_BSD = torch.where(masked_BS[..., None], self.special[1], x_BSD)
        cls_B1D = self.special[0].expand(len(x_BS), 1, -1)
        y_BSD: Tensor = self.encoder(
            torch.cat((cls_B1D, x_BSD), 1), pad(mask_BS, (1, 0), value=True)
        )
        return y_BSD


def sample_mask(mask_BS: Tensor, share: float, run: int = 1) -> Tensor:
    """Return (B, S), True for a random `share` of the valid positions, at least one a sequence.

    Runs of `run` neighbors are drawn together (Joshi et al. 2020, spans); where the runs begin is
    random in each call.
    """
    B, S = mask_BS.shape
    draws_BX = torch.rand(B, -(-S // run) + 1, device=mask_BS.device)
    start = int(torch.randint(run, ()))
    draws_BS = draws_BX.repeat_interleave(run, 1)[:, start : start + S]
    draws_BS = draws_BS.masked_fill(~mask_BS, 2.0)
    lowest_B1 = draws_BS.amin(1, keepdim=True)
    return (draws_BS < share) | (mask_BS & (draws_BS == lowest_B1))
