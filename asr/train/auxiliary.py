"""Losses that only training has: CTC of coarser units within the encoder, consistency of two views.

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
    """A CTC loss on the last output of a layer of the network, through a head that makes logits.

    There are fewer units than tokens: some 200 initials and finals, or a thousand syllables. Hours
    of speech suffice to learn them, while most of some thousand characters are rare in it.
    """

    def __init__(
        self, split: Units, units: Sequence[str], layer: nn.Module, head: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self._split, self.units, self.head = split, units, head
        self._ids = {unit: i for i, unit in enumerate(units, BLANK + 1)}
        self._seen_BSD: Tensor | None = None
        self._encode = lru_cache(maxsize=1 << 16)(self._encoded)  # texts return in every epoch
        layer.register_forward_hook(self._keep)

    def _keep(self, layer: nn.Module, inputs: Any, output_BSD: Tensor) -> None:
        self._seen_BSD = output_BSD

    def targets(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the ids (units,) of each text's units; unknown units are left out."""
        return [self._encode(text) for text in texts]

    def _encoded(self, text: str) -> Tensor:
        ids = [self._ids[unit] for unit in self._split(text) if unit in self._ids]
        return torch.tensor(ids, dtype=torch.long)

    def labels(self, texts: Sequence[str], steps_B: Tensor) -> int:
        """Return the number of units, in total, of the texts that fit into their encoder steps."""
        targets = self.targets(texts)
        lengths_B = torch.tensor([len(ids) for ids in targets])
        needed_B = steps_needed(pad_sequence(targets, batch_first=True), lengths_B)
        return int(lengths_B[needed_B <= steps_B].sum())

    def forward(self, texts: Sequence[str], steps_B: Tensor) -> Tensor:
        """Return the loss, summed over the batch that has passed the layer last."""
        assert self._seen_BSD is not None, "the encoder has not run"
        logits_BSN, self._seen_BSD = self.head(self._seen_BSD), None
        targets = self.targets(texts)
        lengths_B = torch.tensor([len(ids) for ids in targets], device=steps_B.device)
        return ctc_sum(logits_BSN, torch.cat(targets).to(steps_B.device), steps_B, lengths_B)


def intermediate_ctc(
    config: IntermediateConfig, layer: nn.Module, d_model: int, texts: Iterable[str]
) -> UnitCtc:
    """Return the loss of a fresh head on an encoder layer (Lee and Watanabe 2021, eq. 7).

    Its units are all that occur in the texts.
    """
    split = units_of(config.unit)
    units = sorted({unit for text in texts for unit in split(text)})
    head = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, len(units) + 1))
    return UnitCtc(split, units, layer, head)


def ctc_sum(logits_BSV: Tensor, targets: Tensor, steps_B: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the summed CTC loss; an utterance with too few steps for its text counts as 0.

    `targets` are padded (a row for each utterance), or concatenated (one axis).
    """
    logp_SBV = logits_BSV.float().log_softmax(-1).transpose(0, 1)
    return ctc_loss(
        logp_SBV, targets, steps_B, lengths_B, blank=BLANK, reduction="sum", zero_infinity=True
    )


def consistency(logits_BSV: Tensor, mask_BS: Tensor) -> Tensor:
    """Return the divergence between the CTC distributions of two views, summed over steps.

    The batch holds all first views, then all second ones. Each view is drawn to the other, which
    gets no gradient from it (CR-CTC; Yao 2025, eq. 4 and 5). The result is the mean of the two
    directions.
    """
    one, two = logits_BSV.float().log_softmax(-1).chunk(2)
    mask_BS1 = mask_BS[: len(one), :, None]

    def towards(given: Tensor, other: Tensor) -> Tensor:
        given = given.detach()
        return (given.exp() * (given - other)).masked_fill(~mask_BS1, 0.0).sum()

    return (towards(one, two) + towards(two, one)) / 2
