"""Losses of training alone: CTC of coarser units within the encoder, and consistency of two views.

Legend: B utterances, S encoder steps, D d_model, N units, V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import ctc_loss
from torch.nn.utils.rnn import pad_sequence

from asr.decoding.ctc_prefix import BLANK, steps_needed
from asr.pinyin import Units, units_of
from asr.training_config import IntermediateConfig


class UnitCtc(nn.Module):
    """A CTC loss of what a layer of the network has seen last, by a head that makes logits of it.

    Its units are fewer than tokens: some 200 initials and finals, or a thousand syllables, are
    learned from hours of speech in which most of some thousand characters are rare.
    """

    def __init__(
        self, split: Units, units: Sequence[str], layer: nn.Module, head: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self._split, self.units, self.head = split, units, head
        self._ids = {unit: i for i, unit in enumerate(units, BLANK + 1)}
        self._seen_BSD: Tensor | None = None
        self._encode = lru_cache(maxsize=1 << 16)(self._encoded)  # texts come in every epoch
        layer.register_forward_hook(self._keep)

    def _keep(self, layer: nn.Module, inputs: Any, output_BSD: Tensor) -> None:
        self._seen_BSD = output_BSD

    def targets(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the ids of each text's units; those that it does not know are left out."""
        return [self._encode(text) for text in texts]

    def _encoded(self, text: str) -> Tensor:
        ids = [self._ids[unit] for unit in self._split(text) if unit in self._ids]
        return torch.tensor(ids, dtype=torch.long)

    def labels(self, texts: Sequence[str], steps_B: Tensor) -> int:
        """Return the number of units of the texts that have room in so many encoder steps."""
        targets = self.targets(texts)
        lengths_B = torch.tensor([len(ids) for ids in targets])
        needed_B = steps_needed(pad_sequence(targets, batch_first=True), lengths_B)
        return int(lengths_B[needed_B <= steps_B].sum())

    def forward(self, texts: Sequence[str], steps_B: Tensor) -> Tensor:
        """Return the loss of the batch that the layer has seen last, summed."""
        assert self._seen_BSD is not None, "the encoder has not run"
        logits_BSN, self._seen_BSD = self.head(self._seen_BSD), None
        targets = self.targets(texts)
        lengths_B = torch.tensor([len(ids) for ids in targets], device=steps_B.device)
        return ctc_sum(logits_BSN, torch.cat(targets).to(steps_B.device), steps_B, lengths_B)


def intermediate_ctc(
    config: IntermediateConfig, layer: nn.Module, d_model: int, texts: Iterable[str]
) -> UnitCtc:
    """Return the loss of a fresh head on an encoder layer (Lee and Watanabe 2021, eq. 7).

    Its units are those of the texts.
    """
    split = units_of(config.unit)
    units = sorted({unit for text in texts for unit in split(text)})
    head = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, len(units) + 1))
    return UnitCtc(split, units, layer, head)


def ctc_sum(logits_BSV: Tensor, targets: Tensor, steps_B: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the summed CTC loss; utterances whose text has no room have none.

    `targets` are padded, or all in a row.
    """
    logp_SBV = logits_BSV.float().log_softmax(-1).transpose(0, 1)
    return ctc_loss(
        logp_SBV, targets, steps_B, lengths_B, blank=BLANK, reduction="sum", zero_infinity=True
    )


def consistency(logits_BSV: Tensor, mask_BS: Tensor) -> Tensor:
    """Return the divergence between the CTC distributions of two views, summed over steps.

    The batch holds all first views, then all second ones. Each is drawn to the other, which counts
    as given (CR-CTC; Yao 2025, eq. 4 and 5); the result is the mean of the two directions.
    """
    one, two = logits_BSV.float().log_softmax(-1).chunk(2)
    mask_BS1 = mask_BS[: len(one), :, None]

    def towards(given: Tensor, other: Tensor) -> Tensor:
        given = given.detach()
        return (given.exp() * (given - other)).masked_fill(~mask_BS1, 0.0).sum()

    return (towards(one, two) + towards(two, one)) / 2
