"""TODO: sampling."""

import random
import warnings
from collections.abc import Iterator

from lhotse import CutSet
from lhotse.cut import Cut
from lhotse.dataset import DynamicBucketingSampler, SimpleCutSampler
from torch.utils.data import DataLoader, Sampler

from asr.audio.augmentation import PausesConfig
from asr.data.dataset import MicroBatches, SpeechDataset
from asr.data.pauses import augment_with_pauses
from asr.data.shar import by_shard

# So many shards are read side by side.
_SHARDS = 8


class EpochSteps(Sampler[list[list[Cut]]]):
    """The steps of one epoch, each the cuts of its batches; the first `skip` were done before."""

    def __init__(self, steps: list[list[list[Cut]]], skip: int = 0) -> None:
        self.steps, self.skip = steps, skip

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[list[Cut]]]:
        skip, self.skip = self.skip, 0
        return iter(self.steps[skip:])


def plan_epoch(
    cuts: CutSet, batch_seconds: float, seed: int, epoch: int | None,
    pauses: PausesConfig | None = None,
) -> list[CutSet]:  # fmt: skip
    """Batches of cuts of like length, at most `batch_seconds` before padding, all cuts once.

    The order, and the pauses, follow from `seed` and `epoch` alone; without an epoch cuts are as
    they are and in their order. Of a corpus in shards a few are read at a time, whose cuts share
    batches.
    """
    shards = by_shard(cuts)
    names = sorted(shards)
    rng = random.Random(f"{seed} {epoch}")
    if epoch is not None:
        rng.shuffle(names)
    windows = [names[i : i + _SHARDS] for i in range(0, len(names), _SHARDS)]
    together = [CutSet.from_cuts(c for name in w for c in shards[name]) for w in windows]
    if pauses and epoch is not None and epoch + 1 >= pauses.from_epoch:
        together = [augment_with_pauses(part, pauses, rng) for part in together]
    return [batch for part in together for batch in _plan(part, batch_seconds, seed, epoch)]


def _plan(cuts: CutSet, batch_seconds: float, seed: int, epoch: int | None) -> list[CutSet]:
    rules = {"max_duration": batch_seconds, "shuffle": epoch is not None, "seed": seed}
    alone = {"world_size": 1, "rank": 0}
    n_buckets = min(30, len(cuts) // 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lhotse would rather have cuts that are read lazily
        sampler = (
            DynamicBucketingSampler(cuts, num_buckets=n_buckets, **rules, **alone)
            if n_buckets > 1
            else SimpleCutSampler(cuts, **rules, **alone)
        )
        sampler.set_epoch(epoch or 0)
        return list(sampler)


def loader(dataset: SpeechDataset, steps: EpochSteps, num_workers: int) -> DataLoader[MicroBatches]:
    """A loader of planned steps."""
    return DataLoader(dataset, batch_size=None, sampler=steps, num_workers=num_workers)


def perturb_speed(cuts: CutSet, factors: tuple[float, ...]) -> CutSet:
    """The cuts once for each speed (3-way speed perturbation: 0.9, 1.0, 1.1).

    Stored features are of speed 1 only; those of the others are computed as they are needed.
    """
    bare = cuts.drop_features()
    copies = [cuts if factor == 1.0 else bare.perturb_speed(factor) for factor in factors]
    return CutSet.from_cuts(cut for copy in copies for cut in copy)
