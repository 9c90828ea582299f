"""Read the cuts of a batch: features and tokens, padded.

Legend: B utterances, T frames, F frequency bins, U tokens with SOS and EOS.
"""

import logging
from dataclasses import dataclass
from multiprocessing import Array

import torch
from lhotse.cut import Cut
from lhotse.cut.data import DataCut
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, get_worker_info

from asr.audio.augmentation import VoicesConfig
from asr.audio.features import FeatureExtractor
from asr.data.manifest import read_wave, text_of
from asr.data.pauses import with_noise
from asr.data.voices import Voices, voice_seed, without_voice_seed
from asr.errors import AsrError, AudioError
from asr.tokenizer import EOS, PAD, SOS, Tokenizer

log = logging.getLogger(__name__)

_ID_BYTES = 200
# So many bytes are kept for the next epochs: features of 37 h at 40 bins and a hop of 20 ms, or
# samples of 4.6 h at 16 kHz.
_KEPT_BYTES = 2**30
_TOKENS = 4  # the decoder's input is padded to a multiple of so many tokens


@dataclass
class Batch:
    """Padded utterances; `frames_B` and `lengths_B` are their sizes without padding."""

    ids: list[str]
    texts: list[str]
    feats_BTF: Tensor
    frames_B: Tensor
    tokens_BU: Tensor
    lengths_B: Tensor

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device (Lightning's hook)."""
        tensors = (self.feats_BTF, self.frames_B, self.tokens_BU, self.lengths_B)
        return Batch(self.ids, self.texts, *(tensor.to(device) for tensor in tensors))

    def repeated(self, times: int) -> "Batch":
        """Return a batch that holds this batch `times` times, one copy after the other."""
        tensors = (self.feats_BTF, self.frames_B, self.tokens_BU, self.lengths_B)
        return Batch(
            self.ids * times, self.texts * times, *(torch.cat([t] * times) for t in tensors)
        )


@dataclass
class MicroBatches:
    """One process's part of an optimizer step: batches, maybe none, whose gradients are summed.

    `unreadable` are the ids of utterances that are missing because they could not be read.
    `failure` is the error, if any, of the process that read the recordings.
    """

    batches: list[Batch]
    unreadable: list[str]
    failure: Exception | None = None

    def check(self) -> None:
        """Raise the error of the reading process, where raising it would only give a traceback."""
        if self.failure:
            raise self.failure

    @property
    def size(self) -> int:
        """Return the frames and tokens of the batches, padding included."""
        return sum(
            part.feats_BTF.shape[:2].numel() + part.tokens_BU.numel() for part in self.batches
        )

    def to(self, device: torch.device) -> "MicroBatches":
        """Return the batches on a device (Lightning's hook)."""
        batches = [batch.to(device) for batch in self.batches]
        return MicroBatches(batches, self.unreadable, self.failure)


def padded_frames(n_frames: int, most: int | None = None) -> int:
    """Return how many frames a batch is padded to: at most a sixteenth, or 3, more than it has.

    Few sizes occur then, so a library that compiles a kernel for each size can reuse it. `most` is
    the limit of the model: padding stays within it, while utterances themselves may exceed it.
    """
    unit = max(4, (1 << n_frames.bit_length()) // 32)
    rounded = -(-n_frames // unit) * unit
    return rounded if most is None else max(n_frames, min(rounded, most))


class SpeechDataset(Dataset[MicroBatches]):
    """Reads the recordings of a step's batches and computes their features.

    The features of a small corpus are kept in memory, or its samples with `voices`: they are the
    same in every epoch. Those of cuts with added pauses or noise differ, and are not kept. Each of
    `num_workers` processes keeps its own.
    """

    def __init__(
        self,
        features: FeatureExtractor,
        tokenizer: Tokenizer,
        sample_rate: int,
        num_workers: int = 0,
        voices: VoicesConfig | None = None,
        most_frames: int | None = None,
    ) -> None:
        self.features, self.tokenizer, self.sample_rate = features, tokenizer, sample_rate
        self.most_frames = most_frames  # the limit of the model, None without one
        self.voices = Voices(voices, features) if voices else None
        self.failed: set[str] = set()
        self._kept: dict[tuple[str, bool], tuple[Cut, Tensor]] = {}
        self._room = _KEPT_BYTES // max(1, num_workers)
        # The id that each worker reads at the moment, to be reported if the worker dies.
        self.reading = [Array("c", _ID_BYTES, lock=False) for _ in range(num_workers)]

    def __getitem__(self, parts: list[list[Cut]]) -> MicroBatches:
        """Return the batches of a step; cuts that cannot be read are logged once and skipped.

        A worker process returns an AsrError or OSError as `failure`.
        """
        try:
            return self._step(parts)
        except (AsrError, OSError) as error:
            if get_worker_info():
                return MicroBatches([], [], error)
            raise

    def keep_nothing(self) -> None:
        """Keep nothing in memory that is read from now on."""
        self._room = 0

    def _step(self, parts: list[list[Cut]]) -> MicroBatches:
        step = MicroBatches([], [])
        for cuts in parts:
            read = [(cut, self._read(cut)) for cut in cuts]
            step.unreadable.extend(cut.id for cut, feats in read if feats is None)
            if readable := [(cut, feats) for cut, feats in read if feats is not None]:
                step.batches.append(self._batch(readable))
        self._note("")
        return step

    def _batch(self, read: list[tuple[Cut, Tensor]]) -> Batch:
        texts = [text_of(cut) for cut, _ in read]
        tokens = [torch.tensor([SOS, *self.tokenizer.encode(text), EOS]) for text in texts]
        feats_BTF = pad_sequence([feats for _, feats in read], batch_first=True)
        tokens_BU = pad_sequence(tokens, batch_first=True, padding_value=PAD)
        n_frames = feats_BTF.shape[1]
        more = padded_frames(n_frames, self.most_frames) - n_frames
        return Batch(
            ids=[cut.id for cut, _ in read],
            texts=texts,
            feats_BTF=pad(feats_BTF, (0, 0, 0, more)),
            frames_B=torch.tensor([len(feats) for _, feats in read]),
            # The decoder's input lacks the last token, so its length is this one less 1.
            tokens_BU=pad(tokens_BU, (0, (1 - tokens_BU.shape[1]) % _TOKENS), value=PAD),
            lengths_B=torch.tensor([len(t) for t in tokens]),
        )

    def _note(self, cut_id: str) -> None:
        if worker := get_worker_info():
            self.reading[worker.id].value = cut_id.encode()[: _ID_BYTES - 1]

    def _read(self, cut: Cut) -> Tensor | None:
        """Return the features of a cut, None where it cannot be read."""
        seeded = self.voices is not None and voice_seed(cut) is not None
        try:
            stored = self._stored(cut, seeded)
            if self.voices is None or not seeded:
                return stored
            return self.voices.features_of(stored, cut)
        except AudioError as error:
            if cut.id not in self.failed:
                log.warning("skipped: %s", error)
                self.failed.add(cut.id)
            return None

    def _stored(self, cut: Cut, samples: bool) -> Tensor:
        """Return a cut's samples, or its features without `samples`, from memory if kept there."""
        same, key = without_voice_seed(cut), (cut.id, samples)
        kept = self._kept.get(key)
        if kept and kept[0] == same:  # another cut of this id may have pauses, or be of dev
            return kept[1]
        self._note(cut.id)
        wave_N = with_noise(read_wave(cut, self.sample_rate), self.sample_rate, cut)
        found: Tensor = wave_N if samples else self.features(wave_N)
        # A cut with pauses differs in each epoch, so it is not kept.
        if found.nbytes <= self._room and not kept and isinstance(cut, DataCut):
            self._kept[key] = same, found
            self._room -= found.nbytes
        return found
