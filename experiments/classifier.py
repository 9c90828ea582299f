"""A whole sequence to a class, by the same encoder (thesis 3.3.4 and chapter 5).

Legend: B sequences, S places, [CLS] not counted, D d_model, C classes, V vocabulary, M places
that are hidden, of all sequences together.
"""

from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import pad

from asr.errors import DataError
from asr.model.transformer import Encoder, ModelConfig
from asr.schema import FrozenModel, Size


class ClassifierConfig(FrozenModel):
    """Its shape: of `model` the sizes, the projections, the order of norms and the encoder.

    With a `vocab_size` the places hold tokens, without one numbers.
    """

    n_classes: int = Field(ge=2)
    vocab_size: Size | None = None
    model: ModelConfig

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.model.encoder.longest == 1:
            raise ValueError("model.encoder.attention.length 1 has room for [CLS] alone: make it 2")
        return self

    def build(self) -> "SequenceClassifier":
        """The network, with fresh weights."""
        return SequenceClassifier(self)


class SequenceClassifier(nn.Module):
    """[CLS] and a sequence through the encoder; what stands at [CLS] then tells the class.

    `longest` is how many places fit beside [CLS], None where any number does.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config, D = config, config.model.d_model
        self.embed: nn.Module = nn.Linear(1, D)
        if config.vocab_size is not None:
            self.embed = nn.Embedding(config.vocab_size, D)
            nn.init.normal_(self.embed.weight)
            self.tokens = nn.Linear(D, config.vocab_size)
        self.special = nn.Parameter(torch.randn(2, D))  # [CLS] and [MASK]
        self.encoder = Encoder(config.model)
        self.classes = nn.Linear(D, config.n_classes)
        longest = config.model.encoder.longest
        self.longest = None if longest is None else longest - 1

    def forward(self, x_BS: Tensor, mask_BS: Tensor) -> Tensor:
        """Logits (B, C) of the classes; places where `mask_BS` is False are nobody's business.

        Raises DataError for sequences that are longer than `longest`.
        """
        return self.classes(self._encode(x_BS, mask_BS)[:, 0])

    def reconstruct(self, x_BS: Tensor, mask_BS: Tensor, hidden_BS: Tensor) -> Tensor:
        """Logits (M, V) of the tokens where `hidden_BS`, which the encoder saw as [MASK]."""
        return self.tokens(self._encode(x_BS, mask_BS, hidden_BS)[:, 1:][hidden_BS])

    def _encode(self, x_BS: Tensor, mask_BS: Tensor, hidden_BS: Tensor | None = None) -> Tensor:
        """(B, 1 + S, D), [CLS] in front."""
        if self.longest is not None and x_BS.shape[1] > self.longest:
            raise DataError(
                f"a sequence of {x_BS.shape[1]} places and [CLS] is longer than "
                f"model.encoder.attention.length {self.longest + 1}: cut it, or make that greater"
            )
        x_BSD = self.embed(x_BS if self.config.vocab_size is not None else x_BS[..., None])
        if hidden_BS is not None:
            x_BSD = torch.where(hidden_BS[..., None], self.special[1], x_BSD)
        first_B1D = self.special[0].expand(len(x_BS), 1, -1)
        return self.encoder(torch.cat((first_B1D, x_BSD), 1), pad(mask_BS, (1, 0), value=True))


def sample_mask(mask_BS: Tensor, share: float) -> Tensor:
    """(B, S), True for a `share` of the real places, drawn by torch's default generator.

    Each sequence has one at least, so that none trains nothing.
    """
    draws_BS = torch.rand(mask_BS.shape, device=mask_BS.device).masked_fill(~mask_BS, 2.0)
    return (draws_BS < share) | (mask_BS & (draws_BS == draws_BS.amin(1, keepdim=True)))
