"""The batches of a run, dealt out to its processes."""

import functools
import logging
import random
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

import lightning as L
from lhotse import CutSet
from lhotse.cut import Cut
from torch import Tensor
from torch.utils.data import DataLoader

from asr.audio.augmentation import PausesConfig
from asr.bundle import Bundle
from asr.config import Config
from asr.data import feature_store as stored
from asr.data.dataset import MicroBatches, SpeechDataset
from asr.data.manifest import filter_cuts, load_cuts, read_wave
from asr.data.sampling import EpochSteps, loader, perturb_speed, plan_epoch
from asr.errors import AudioError
from asr.train.distributed import rank, world_size

log = logging.getLogger(__name__)

# Corpus statistics of the features come from so many utterances at most.
_FIT_UTTERANCES = 2000


class SpeechDataModule(L.LightningDataModule):
    """Train and dev batches of a recipe; a run's state knows how far into an epoch it is.

    The batch of a step is planned for all processes and their `training.accumulate` turns
    together, the same in each process, and its cuts are then dealt out: so every process makes as
    many steps, every cut is in one place, and a step is the same however many share it.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        data = config.data
        train = filter_cuts(load_cuts(data.train), data, data.train)
        self.train_cuts: CutSet = perturb_speed(train, data.speed_factors)
        self.short_cuts = self._short_ones()
        self.dev_cuts: CutSet = filter_cuts(load_cuts(data.dev), data, data.dev)
        stored.check(train, config.features, data.train)
        stored.check(self.dev_cuts, config.features, data.dev)
        self.dataset: SpeechDataset | None = None
        self.done = 0
        self.plan = functools.lru_cache(maxsize=2)(self._plan)

    @property
    def parts(self) -> int:
        """Into how many batches a step is dealt: each process has `training.accumulate`."""
        return world_size() * self.config.training.accumulate

    @property
    def step_seconds(self) -> float:
        """The audio of a step, of all processes, before padding."""
        return self.config.data.batch_seconds * self.parts

    @property
    def _pauses(self) -> PausesConfig | None:
        return self.config.augment.pauses if self.config.augment else None

    def sample_waveforms(self) -> Iterator[Tensor]:
        """A random part of the training recordings, those that can be read."""
        cuts = list(self.train_cuts)
        random.Random(self.config.seed).shuffle(cuts)
        for cut in cuts[:_FIT_UTTERANCES]:
            try:
                yield read_wave(cut, self.config.features.sample_rate)
            except AudioError as error:
                log.warning("skipped: %s", error)

    def read_with(self, bundle: Bundle) -> None:
        """Features and tokens of the batches to come."""
        rate, workers = self.config.features.sample_rate, self.config.data.num_workers
        self.dataset = SpeechDataset(bundle.features, bundle.tokenizer, rate, workers)

    def largest(self, epoch: int | None) -> MicroBatches:
        """The batch that takes most memory, of all processes, read; of a training epoch or dev.

        Where a curriculum is still with short utterances, of its first epoch with all.
        """
        assert self.dataset is not None
        if epoch is not None and self.config.training.curriculum:
            epoch = max(epoch, self.config.training.curriculum.epochs)
        parts = [
            part for batch in self.plan(epoch) for part in split_batch(batch, self.parts) if part
        ]
        return self.dataset[[max(parts, key=_padded_seconds)]]

    def train_dataloader(self) -> DataLoader[MicroBatches]:
        """The epoch's steps, less those that a resumed run had done."""
        assert self.trainer is not None
        done, self.done = self.done, 0
        return self._loader(self.trainer.current_epoch, done)

    def val_dataloader(self) -> DataLoader[MicroBatches]:
        """All dev cuts."""
        return self._loader(None)

    def _plan(self, epoch: int | None) -> list[CutSet]:
        """What each step of a training epoch holds, or the dev cuts; the same in all processes."""
        cuts = self.dev_cuts if epoch is None else self.train_cuts
        if self._kind(epoch)[0]:
            cuts = self.short_cuts
        return plan_epoch(cuts, self.step_seconds, self.config.seed, epoch, self._pauses)

    def _kind(self, epoch: int | None) -> tuple[bool, bool]:
        """Whether an epoch has short utterances only, and pauses."""
        curriculum = self.config.training.curriculum
        if epoch is None:
            return False, False
        is_short = curriculum is not None and epoch < curriculum.epochs
        return is_short, self._pauses is not None and epoch + 1 >= self._pauses.from_epoch

    @property
    def total_steps(self) -> int:
        """About so many steps has the run: epochs of a kind have nearly the same number."""
        kinds = [self._kind(epoch) for epoch in range(self.config.training.epochs)]
        return sum(
            kinds.count(kind) * len(self.plan(kinds.index(kind))) for kind in dict.fromkeys(kinds)
        )

    @property
    def duration_p99(self) -> float:
        """So long at most are 99 of 100 training utterances, pauses included."""
        plan = self.plan(self.config.training.epochs - 1)
        durations = sorted(cut.duration for batch in plan for cut in batch)
        return durations[len(durations) * 99 // 100]

    def _short_ones(self) -> CutSet:
        """What a curriculum begins with."""
        curriculum = self.config.training.curriculum
        if curriculum is None:
            return self.train_cuts
        durations = sorted(cut.duration for cut in self.train_cuts)
        sums = list(accumulate(durations))
        longest = durations[bisect_left(sums, curriculum.share * sums[-1])]
        return self.train_cuts.filter(lambda cut: cut.duration <= longest).to_eager()

    def _loader(self, epoch: int | None, done: int = 0) -> DataLoader[MicroBatches]:
        assert self.dataset is not None
        mine = [
            split_batch(batch, self.parts)[rank() :: world_size()] for batch in self.plan(epoch)
        ]
        return loader(self.dataset, EpochSteps(mine, done), self.config.data.num_workers)


def split_batch(batch: CutSet, n_parts: int) -> list[list[Cut]]:
    """The cuts of a batch in parts of like size and length; some are empty where cuts are few."""
    ordered = sorted(batch, key=lambda cut: (-cut.duration, cut.id))
    return [ordered[i::n_parts] for i in range(n_parts)]


def _padded_seconds(cuts: list[Cut]) -> float:
    return len(cuts) * max(cut.duration for cut in cuts)
