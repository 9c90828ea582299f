"""Batches of an epoch: cuts bucketed by length, in an order that follows from the seed."""

import math
import random
import signal
import sys
import warnings
import weakref
from collections.abc import Iterator
from functools import cache, partial
from itertools import chain
from types import TracebackType
from typing import Any, TypeVar

from lhotse import CutSet
from lhotse.cut import Cut
from lhotse.dataset import DynamicBucketingSampler, SimpleCutSampler
from torch.utils.data import DataLoader, Sampler, get_worker_info

from asr.audio.augmentation import AugmentConfig
from asr.data.dataset import MicroBatches, SpeechDataset
from asr.data.pauses import augment_with_pauses
from asr.data.shar import by_shard
from asr.data.voices import with_voice_seeds

T = TypeVar("T")

# Cuts of this many shards are batched together.
_SHARDS = 8
_MOST_TERMS = 1000  # of a resampling: the rate divided by the greatest common divisor of both
_NEAR = 0.02  # difference of speed factors
_BUFFER = 20_000  # neighboring cuts of the manifest among which lhotse shuffles


class EpochSteps(Sampler[T]):
    """The steps of one epoch without the first `skip`; a step is the cuts of its batches.

    Iterating changes no state, because torch iterates twice if processes read.
    """

    def __init__(self, steps: list[T], skip: int = 0) -> None:
        self.renew(steps, skip)

    def renew(self, steps: list[T], skip: int = 0) -> None:
        """Use the steps of another epoch from the next `iter` on."""
        self.steps, self.skip, self.is_new = steps, skip, True

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[T]:
        return iter(self.steps[self.skip :])


def plan_epoch(
    cuts: CutSet,
    batch_seconds: float,
    seed: int,
    epoch: int | None,
    augment: AugmentConfig | None = None,
) -> list[CutSet]:
    """Return batches of cuts of similar length, at most `batch_seconds` each with padding.

    Their order, the pauses and the seeds of voices follow from `seed` and `epoch` alone. If `epoch`
    is None, cuts are unchanged and in order. Only cuts of neighboring shards, and of plain
    manifests listed beside shards, share a batch.
    """
    shards = by_shard(cuts)
    rng = random.Random(f"{seed} {epoch}")
    plain = shards.pop("", []) if len(shards) > 1 and epoch is not None else []
    names = sorted(shards)
    if epoch is not None:
        rng.shuffle(names)
        rng.shuffle(plain)  # cuts of manifests beside shards are spread over the epoch
    parts = []
    for i in range(0, len(names), _SHARDS):
        begin, end = (len(plain) * min(n, len(names)) // len(names) for n in (i, i + _SHARDS))
        window = (shards[name] for name in names[i : i + _SHARDS])
        parts.append(CutSet.from_cuts(chain(*window, plain[begin:end])))
    if epoch is not None:  # copies at other speeds, or a second corpus, may be a buffer apart
        parts = [_shuffled(part, rng) if len(part) > _BUFFER else part for part in parts]
    if augment and epoch is not None:
        pauses = augment.pauses
        if pauses and epoch + 1 >= pauses.from_epoch:
            parts = [augment_with_pauses(part, pauses, rng) for part in parts]
        if augment.voices:
            parts = [with_voice_seeds(part, rng) for part in parts]
    return [batch for part in parts for batch in _batches(part, batch_seconds, seed, epoch)]


def _shuffled(cuts: CutSet, rng: random.Random) -> CutSet:
    some = list(cuts)
    rng.shuffle(some)
    return CutSet.from_cuts(some)


def _batches(cuts: CutSet, batch_seconds: float, seed: int, epoch: int | None) -> list[CutSet]:
    rules = {"max_duration": batch_seconds, "shuffle": epoch is not None, "seed": seed}
    one_process = {"world_size": 1, "rank": 0}
    n_buckets = min(30, len(cuts) // 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lhotse recommends lazy cuts
        sampler = (
            DynamicBucketingSampler(cuts, num_buckets=n_buckets, **rules, **one_process)
            if n_buckets > 1
            else SimpleCutSampler(cuts, **rules, **one_process)
        )
        sampler.set_epoch(epoch or 0)
        return list(sampler)


class Reader(DataLoader[MicroBatches]):
    """A loader whose processes stay for all epochs; `steps.renew` gives it each epoch's steps."""

    def __iter__(self) -> Any:
        """Return the epoch's iterator, the same one until `renew`, because Lightning asks twice.

        A new iterator would make the processes read again what they have read ahead.
        """
        steps = self.sampler
        assert isinstance(steps, EpochSteps)
        if self._iterator is None:
            iterator = super().__iter__()
            weakref.finalize(self, _end, iterator)  # at the latest where Python ends
        elif steps.is_new:
            super().__iter__()
        steps.is_new = False
        return self._iterator


def loader(
    dataset: SpeechDataset,
    steps: EpochSteps[list[list[Cut]]],
    num_workers: int,
    stays: bool = False,
) -> DataLoader[MicroBatches]:
    """Return a loader of planned steps; `stays` makes it a `Reader` where processes read."""
    stays = stays and num_workers > 0
    return (Reader if stays else DataLoader)(
        dataset,
        batch_size=None,
        sampler=steps,
        num_workers=num_workers,
        persistent_workers=stays,
        worker_init_fn=partial(_prepare_worker, stays),
        multiprocessing_context="fork" if num_workers and sys.platform == "linux" else None,
    )


def _prepare_worker(stays: bool, _number: int) -> None:
    """Ignore Ctrl-C and SIGTERM, which the whole process group gets: the training handles them.

    If the training is killed, the thread that sends tensors to it ends without a traceback. A
    process that does not stay keeps nothing in memory, and SIGTERM ends it.
    """
    for number in (signal.SIGINT, signal.SIGTERM) if stays else (signal.SIGINT,):
        signal.signal(number, signal.SIG_IGN)
    sys.excepthook = _ignore_lost_training
    worker = get_worker_info()
    if worker and not stays and isinstance(worker.dataset, SpeechDataset):
        worker.dataset.keep_nothing()


def _end(iterator: Any) -> None:
    """End the processes of an iterator, even those that would read without end."""
    iterator._shutdown_workers()  # it sends SIGTERM only after some seconds
    for worker in iterator._workers:
        worker.kill()


def _ignore_lost_training(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, (EOFError, ConnectionError)):
        sys.__excepthook__(kind, error, trace)


def perturb_speed(cuts: CutSet, factors: tuple[float, ...]) -> CutSet:
    """Return the cuts once at each speed (Ko 2015: 0.9, 1.0, 1.1)."""
    bare = cuts.drop_features()  # lhotse would warn of each cut that has any
    copies = [
        cuts
        if factor == 1.0
        else [cut.perturb_speed(_light_factor(cut.sampling_rate, factor)) for cut in bare]
        for factor in factors
    ]
    return CutSet.from_cuts(cut for copy in copies for cut in copy)


@cache
def _light_factor(rate: int, factor: float) -> float:
    """Return a speed factor, or the nearest one whose resampling takes little memory.

    From 9,922 to 11,025 Hz, which have no divisor in common, the filters take half a gigabyte. A
    factor without such a one within 0.02 stays as it is.
    """
    if rate // math.gcd(rate, round(rate * factor)) <= _MOST_TERMS:
        return factor
    near = {round(n * factor) / n for n in range(1, _MOST_TERMS + 1) if rate % n == 0} - {1.0}
    best = min(near, key=lambda one: abs(one - factor), default=factor)
    return best if abs(best - factor) <= _NEAR else factor
