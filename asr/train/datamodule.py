"""The batches of a run, divided among its processes."""

import functools
import hashlib
import logging
import math
import os
import random
import shutil
import sys
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import lightning as L
from lhotse import CutSet
from lhotse.cut import Cut
from torch import Tensor
from torch.utils.data import DataLoader

from asr.bundle import Bundle
from asr.config import Config
from asr.data.cuts import Spans
from asr.data.dataset import MicroBatches, SpeechDataset, padded_frames
from asr.data.manifest import filter_cuts, load_cuts, load_training_cuts, read_wave, text_of
from asr.data.places import allowed_by
from asr.data.replay import Replay
from asr.data.sampling import EpochSteps, loader, perturb_speed, plan_epoch
from asr.errors import AudioError, ConfigError, DataError
from asr.runtime.threads import usable_cpus
from asr.train.distributed import rank, world_size

log = logging.getLogger(__name__)

# Corpus statistics of the features are computed from at most this many utterances.
_FIT_UTTERANCES = 2000
_SHARED = Path("/dev/shm")  # noqa: S108
_READ_AHEAD = 3  # steps that a reading process holds, the one in use included


class TrainingData(L.LightningDataModule):
    """Training and dev batches; `done` counts the epoch's completed steps."""

    dataset: SpeechDataset | None = None
    step_seconds = 0.0  # the audio of a step of all processes, with padding
    n_workers = 0  # processes that read recordings
    smaller_batches = "a batch is more than the memory holds: try another --device"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.done = config, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch's completed steps, and the size of a step."""
        return {"done": self.done, "step_seconds": self.step_seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the completed steps. Raises ConfigError for steps of another size."""
        before, now = state_dict["step_seconds"], self.step_seconds
        if abs(before - now) > 1e-6 * before:
            raise ConfigError(
                f"--resume: a step held {before:g} s of audio, it would now hold {now:g} "
                "(data.batch_seconds x training.accumulate x processes): set training.accumulate "
                "so that they are the same"
            )
        self.done = state_dict["done"]


class SpeechDataModule(TrainingData):
    """Training and dev batches of a recipe.

    Each process plans the same batch of a step, for all processes and their `training.accumulate`
    micro-batches together, and then takes its part of the cuts. So every process makes the same
    number of steps, every cut is in one process, and a step does not depend on how many processes
    share it.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        data, training = config.data, config.training
        # The micro-batches of a step, of all processes.
        self.n_parts = world_size() * training.accumulate
        self.step_seconds = data.batch_seconds * self.n_parts
        self.smaller_batches = (
            f"data.batch_seconds {data.batch_seconds:g} is more than the memory holds: try --set "
            f"data.batch_seconds={data.batch_seconds / 2:g} --set training.accumulate="
            f"{2 * training.accumulate}, the same steps in half the memory"
        )
        normalize = config.tokenizer.normalize
        allowed = allowed_by([*data.train, data.dev], data.allow)
        cuts = load_training_cuts(data, allowed)
        self.utterances = filter_cuts(cuts, data, data.train_names, normalize)
        self.train_cuts: CutSet = perturb_speed(self.utterances, data.speed_factors)
        self.short_cuts = self._shortest()
        self.replay = Replay(config, data.replay) if data.replay else None
        self.dev_cuts: CutSet = filter_cuts(load_cuts(data.dev, allowed), data, data.dev, normalize)
        known = Spans(self.utterances)
        if n_known := sum(known.overlap(cut) for cut in self.dev_cuts):
            log.warning(
                "%s: %d of %d utterances are of recordings and times that are in training too: "
                "what dev chooses and tells is too good by them",
                data.dev, n_known, len(self.dev_cuts),
            )  # fmt: skip
        self.plan = functools.lru_cache(maxsize=2)(self._plan)
        self._own: EpochSteps[list[list[Cut]]] = EpochSteps([])
        self._reader: DataLoader[MicroBatches] | None = None
        self._check_lengths()

    def __str__(self) -> str:
        hours = sum(cut.duration for cut in self.utterances) / 3600
        n_speeds = len(self.config.data.speed_factors)
        speeds = f" x {n_speeds} speeds" if n_speeds > 1 else ""
        replay = f", and {self.replay}" if self.replay else ""
        return f"{len(self.utterances)} utterances ({hours:.1f} h){speeds}{replay}"

    @property
    def digest(self) -> str:
        """Return a hash of the utterances' ids, lengths and texts, not of where they are stored."""
        replayed = self.replay.utterances if self.replay else ()
        cuts = chain(self.utterances, replayed, self.dev_cuts)
        lines = (repr((cut.id, float(cut.duration), text_of(cut))) for cut in cuts)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def sample_waveforms(self) -> Iterator[Tensor]:
        """Yield up to 2,000 training recordings (N,) in random order, without unreadable ones."""
        cuts = list(self.train_cuts)
        random.Random(self.config.seed).shuffle(cuts)
        for cut in cuts[:_FIT_UTTERANCES]:
            try:
                yield read_wave(cut, self.config.features.sample_rate)
            except AudioError as error:
                log.warning("skipped: %s", error)

    def read_with(self, bundle: Bundle) -> None:
        """Set the features and the tokenizer of the batches."""
        rate, workers = self.config.features.sample_rate, self.n_workers
        voices = self.config.augment.voices if self.config.augment else None
        longest = self.config.model.encoder.longest
        most_frames = longest and 4 * longest
        self.dataset = SpeechDataset(
            bundle.features, bundle.tokenizer, rate, workers, voices, most_frames
        )

    def largest(self, epoch: int | None) -> MicroBatches:
        """Read the micro-batch that takes most memory in a training epoch, or in dev (None).

        For an epoch of the curriculum, it is that of the first epoch with all utterances.
        """
        assert self.dataset is not None
        if epoch is not None and self.config.training.curriculum:
            epoch = max(epoch, self.config.training.curriculum.epochs)
        parts = [part for batch in self.plan(epoch) for part in split_batch(batch, self.n_parts)]
        hop = self.config.features.hop_ms / 1000
        frames = functools.partial(_padded_frames, hop_seconds=hop)
        return self.dataset[[max(filter(None, parts), key=frames)]]

    def _check_lengths(self) -> None:
        """Raise DataError where an utterance is longer than the recipe's attention takes."""
        longest, augment = self.config.model.encoder.longest, self.config.augment
        if longest is None:
            return
        slowest = augment.voices.tempo if augment and augment.voices else 1.0
        train = [*self.train_cuts, *(self.replay.cuts if self.replay else ())]
        has_pauses = any(self._kind(epoch)[1] for epoch in range(self.config.training.epochs))
        pauses = augment.pauses if augment and has_pauses else None
        features, frontend = self.config.features, self.config.model.frontend
        for name, cuts, factor in (
            (self.config.data.train_names, train, slowest),
            (self.config.data.dev, list(self.dev_cuts), 1.0),
        ):
            cut = max(cuts, key=lambda cut: float(cut.duration))
            seconds = float(cut.duration)
            if pauses and cuts is train:
                seconds = pauses.longest(seconds)
            seconds *= factor
            n_samples = math.ceil(round(seconds * features.sample_rate, 3))
            if frontend.steps(features.n_frames(n_samples)) > longest:
                raise DataError(
                    f"{name}: {cut.id} has up to {seconds:.2f} s, with the pauses and speeds of "
                    f"the recipe, and model.encoder.attention.length {longest} is "
                    f"{longest * self.config.step_seconds:.2f} s: set data.max_seconds or shorter "
                    "augment.pauses, or a greater length"
                )

    @functools.cached_property
    def n_workers(self) -> int:  # type: ignore[override]
        """Return how many processes read the training's utterances, 0 where this one does.

        `augment.voices` computes each utterance anew in each epoch, which takes as long as the
        steps of a small model. So a process of its own does that, if a processor is free for it.
        """
        asked, augment = self.config.data.num_workers, self.config.augment
        if asked is not None or augment is None or augment.voices is None:
            return asked or 0
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
        has_room = sys.platform == "linux" and self._passes_through_shared_memory(local)
        return int(has_room and usable_cpus() >= 2 * local)

    def _passes_through_shared_memory(self, local: int) -> bool:
        """Tell whether shared memory has room for twice the steps that processes read ahead."""
        features = self.config.features
        frames = self.step_seconds / world_size() * 1000 / features.hop_ms
        room = shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else 0
        return room > 2 * _READ_AHEAD * local * frames * features.n_freqs * 4

    def train_dataloader(self) -> DataLoader[MicroBatches]:
        """Return a loader of the epoch's remaining steps, of the same processes in all epochs."""
        assert self.trainer is not None and self.dataset is not None
        steps = self._steps(self.trainer.current_epoch)
        if self._reader is None:
            self._reader = loader(self.dataset, self._own, self.n_workers, stays=True)
        self._own.renew(steps, self.done)
        return self._reader

    def val_dataloader(self) -> DataLoader[MicroBatches]:
        """Return a loader of all dev cuts."""
        assert self.dataset is not None
        return loader(
            self.dataset, EpochSteps(self._steps(None)), self.config.data.num_workers or 0
        )

    def _plan(self, epoch: int | None) -> list[CutSet]:
        """Return the cuts of each step of a training epoch, or of dev, for all processes."""
        cuts = self.dev_cuts if epoch is None else self.train_cuts
        is_short = self._kind(epoch)[0]
        if is_short:
            cuts = self.short_cuts
        if self.replay and epoch is not None:
            cuts = self.replay.with_share(cuts, epoch, is_short)
        return plan_epoch(cuts, self.step_seconds, self.config.seed, epoch, self.config.augment)

    def _kind(self, epoch: int | None) -> tuple[bool, bool]:
        """Return whether an epoch has short utterances only, and whether it has pauses."""
        curriculum, augment = self.config.training.curriculum, self.config.augment
        if epoch is None:
            return False, False
        pauses = augment.pauses if augment else None
        is_short = curriculum is not None and epoch < curriculum.epochs
        return is_short, pauses is not None and epoch + 1 >= pauses.from_epoch

    @property
    def total_steps(self) -> int:
        """Return the steps of the run, about: epochs of one kind are taken to be equally long."""
        kinds = [self._kind(epoch) for epoch in range(self.config.training.epochs)]
        return sum(
            kinds.count(kind) * len(self.plan(kinds.index(kind))) for kind in dict.fromkeys(kinds)
        )

    @functools.cached_property
    def duration_p99(self) -> float:
        """Return the 99th percentile of the training utterances' seconds, pauses included."""
        plan = self.plan(self.config.training.epochs - 1)
        durations = sorted(float(cut.duration) for batch in plan for cut in batch)
        return durations[len(durations) * 99 // 100]

    def _shortest(self) -> CutSet:
        """Return the shortest cuts, `curriculum.share` of the audio; all without a curriculum."""
        curriculum = self.config.training.curriculum
        if curriculum is None:
            return self.train_cuts
        durations = sorted(cut.duration for cut in self.train_cuts)
        sums = list(accumulate(durations))
        longest = durations[bisect_left(sums, curriculum.share * sums[-1])]
        return self.train_cuts.filter(lambda cut: cut.duration <= longest).to_eager()

    def _steps(self, epoch: int | None) -> list[list[list[Cut]]]:
        """Return this process's micro-batches of each step, as lists of cuts."""
        return [
            split_batch(batch, self.n_parts)[rank() :: world_size()] for batch in self.plan(epoch)
        ]


def split_batch(batch: CutSet, n_parts: int) -> list[list[Cut]]:
    """Divide a batch into parts of similar size and length, some empty where cuts are few."""
    ordered = sorted(batch, key=lambda cut: (-cut.duration, cut.id))
    return [ordered[i::n_parts] for i in range(n_parts)]


def _padded_frames(cuts: list[Cut], hop_seconds: float) -> int:
    longest = max(float(cut.duration) for cut in cuts)
    return len(cuts) * padded_frames(round(longest / hop_seconds))
