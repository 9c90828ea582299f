"""Cuts to batches: lhotse buckets them by length and perturbs their speed.

Legend: B utterances, T frames, F frequency bins, U tokens with SOS and EOS.
"""

import logging
from dataclasses import dataclass
from multiprocessing import Array

import torch
from lhotse.cut import Cut
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, get_worker_info

from asr.audio.features import FeatureExtractor
from asr.data.feature_store import read as read_stored
from asr.data.manifest import read_wave, text_of
from asr.data.pauses import with_noise
from asr.errors import AudioError
from asr.tokenizer import EOS, PAD, SOS, Tokenizer

log = logging.getLogger(__name__)


_ID_BYTES = 200


@dataclass
class Batch:
    """Padded utterances: `frames_B` and `lengths_B` are the true sizes of rows."""

    ids: list[str]
    texts: list[str]
    feats_BTF: Tensor
    frames_B: Tensor
    tokens_BU: Tensor
    lengths_B: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device (Lightning's hook)."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if
                   isinstance(value, Tensor)}  # fmt: skip
        return Batch(ids=self.ids, texts=self.texts, **tensors)


@dataclass
class MicroBatches:
    """One process's part of an optimiser's step: batches whose gradients add up, maybe none.

    `unreadable` are the utterances that are missing, for their recordings could not be read.
    """

    batches: list[Batch]
    unreadable: list[str]

    def to(self, device: torch.device) -> "MicroBatches":
        """The same step on a device (Lightning's hook)."""
        return MicroBatches([batch.to(device) for batch in self.batches], self.unreadable)


class SpeechDataset(Dataset[MicroBatches]):
    """Reads the recordings of a step's batches."""

    def __init__(
        self,
        features: FeatureExtractor,
        tokenizer: Tokenizer,
        sample_rate: int,
        num_workers: int = 0,
    ) -> None:
        self.features, self.tokenizer, self.sample_rate = features, tokenizer, sample_rate
        self.failed: set[str] = set()
        # What each worker reads at the moment: when one dies, its owner can tell of what.
        self.reading = [Array("c", _ID_BYTES, lock=False) for _ in range(num_workers)]

    def __getitem__(self, parts: list[list[Cut]]) -> MicroBatches:
        """The batches of the cuts that can be read; others are reported once and skipped."""
        step = MicroBatches([], [])
        for cuts in parts:
            read = []
            for cut in cuts:
                self._note(cut.id)
                feats = self._read(cut)
                if feats is None:
                    step.unreadable.append(cut.id)
                else:
                    read.append((cut, feats))
            if read:
                step.batches.append(self._batch(read))
        self._note("")
        return step

    def _batch(self, read: list[tuple[Cut, Tensor]]) -> Batch:
        texts = [text_of(cut) for cut, _ in read]
        tokens = [torch.tensor([SOS, *self.tokenizer.encode(text), EOS]) for text in texts]
        return Batch(
            ids=[cut.id for cut, _ in read],
            texts=texts,
            feats_BTF=pad_sequence([feats for _, feats in read], batch_first=True),
            frames_B=torch.tensor([len(feats) for _, feats in read]),
            tokens_BU=pad_sequence(tokens, batch_first=True, padding_value=PAD),
            lengths_B=torch.tensor([len(t) for t in tokens]),
        )

    def _note(self, cut_id: str) -> None:
        if worker := get_worker_info():
            self.reading[worker.id].value = cut_id.encode()[: _ID_BYTES - 1]

    def _read(self, cut: Cut) -> Tensor | None:
        try:
            stored = read_stored(cut)
            if stored is not None:
                return self.features.normalized(stored)
            wave_N = read_wave(cut, self.sample_rate)
            return self.features(with_noise(wave_N, self.sample_rate, cut))
        except AudioError as error:
            if cut.id not in self.failed:
                log.warning("skipped: %s", error)
                self.failed.add(cut.id)
            return None
