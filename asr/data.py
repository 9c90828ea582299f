"""Cuts to batches: lhotse buckets them by length and perturbs their speed.

Legend: B utterances, T frames, F frequency bins, U tokens with SOS and EOS.
"""

import contextlib
import gzip
import json
import logging
import random
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Array
from pathlib import Path

import torch
from lhotse import CutSet
from lhotse.audio.backend import LibsndfileBackend, audio_backend
from lhotse.cut import Cut, MixedCut
from lhotse.cut.data import DataCut
from lhotse.dataset import DynamicBucketingSampler, SimpleCutSampler
from lhotse.serialization import deserialize_item
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from asr.config import DataConfig
from asr.errors import AudioError, DataError
from asr.features import FeatureExtractor, PausesConfig
from asr.pauses import surround, with_noise
from asr.shar import MEMBER, by_shard, fetch, load_shar
from asr.stored import read as read_stored
from asr.tokenizer import EOS, PAD, SOS, Tokenizer

log = logging.getLogger(__name__)

_ID_BYTES = 200
# What a manifest may ask for; whatever else lhotse knows could run a command.
_SOURCES = {"file", "memory", MEMBER}
_TRANSFORMS = {"Speed", "Tempo", "Resample", "Volume", "Narrowband", "Clipping"}

# So many shards are read side by side.
_SHARDS = 8


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
class Step:
    """One process's part of an optimiser's step: batches whose gradients add up, maybe none.

    `unreadable` are the utterances that are missing, for their recordings could not be read.
    """

    batches: list[Batch]
    unreadable: list[str]

    def to(self, device: torch.device) -> "Step":
        """The same step on a device (Lightning's hook)."""
        return Step([batch.to(device) for batch in self.batches], self.unreadable)


def text_of(cut: Cut) -> str:
    """The transcript of a cut."""
    return " ".join(s.text for s in cut.supervisions if s.text)


def load_cuts(path: Path) -> CutSet:
    """The cuts of a manifest that `asr prepare` or lhotse wrote, or of a folder of lhotse Shar.

    Raises DataError that names the manifest where it is missing, empty or not one.
    """
    if not path.exists():
        raise DataError(f"{path}: no such manifest: write it with `asr prepare`")
    try:
        cuts = load_shar(path) if path.is_dir() else CutSet.from_file(path).to_eager()
        if not all(isinstance(cut, Cut) for cut in cuts):
            raise TypeError("its items are no cuts")
        for cut in cuts:
            _check_plain(cut)
    except Exception as error:  # lhotse raises whatever a broken file makes it stumble over
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path}: not a lhotse manifest of cuts ({_broken_lines(path)}{reason:.300}): prepare "
            "it again"
        ) from error
    if not len(cuts):
        raise DataError(f"{path}: holds no utterance: prepare it again")
    twice = [key for key, count in Counter(cut.id for cut in cuts).items() if count > 1]
    if twice:
        raise DataError(
            f"{path}: holds {len(twice)} ids more than once, such as {twice[0]}: prepare it again"
        )
    return cuts


def _check_plain(cut: Cut) -> None:
    """Raises TypeError where to read a cut could run a command or fetch something.

    lhotse starts a shell for sources of type `command` and for URLs of `pipe:`, and a transform
    with a recording of its own (an impulse response) would read that one's sources too.
    """
    parts = [track.cut for track in cut.tracks] if isinstance(cut, MixedCut) else [cut]
    recordings = [p.recording for p in parts if isinstance(p, DataCut) and p.has_recording]
    transforms = [*(cut.transforms or ())] if isinstance(cut, MixedCut) else []
    for recording in recordings:
        transforms += recording.transforms or ()
        if strange := {source.type for source in recording.sources} - _SOURCES:
            raise TypeError(
                f"{cut.id}: a recording's source is a {strange.pop()}, which is not run or fetched"
            )
    names = {t["name"] if isinstance(t, dict) else type(t).__name__ for t in transforms}
    if strange := names - _TRANSFORMS:
        raise TypeError(f"{cut.id}: the transform {strange.pop()} is not applied")


def _broken_lines(path: Path) -> str:
    """Which lines of a manifest are no cuts, the first of them by number; empty if none is."""
    broken = []
    opened = gzip.open if path.suffix == ".gz" else open
    with contextlib.suppress(OSError, EOFError, zlib.error), opened(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                good = isinstance(deserialize_item(json.loads(line)), Cut)
            except Exception:  # lhotse raises whatever a broken line makes it stumble over
                good = False
            if not good:
                broken.append(str(number))
    more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
    return f"at line {', '.join(broken[:5])}{more}: " if broken else ""


def read_wave(cut: Cut, sample_rate: int) -> Tensor:
    """The mono samples (N,) of a cut at a rate in Hz, of the cut's channels alone.

    Raises AudioError that names the cut.
    """
    try:
        # Left to choose, lhotse reads SPHERE files by a shell command of a program we do not need.
        with audio_backend(LibsndfileBackend):
            wave_N = torch.from_numpy(fetch(cut).resample(sample_rate).load_audio()).float().mean(0)
    except Exception as error:  # lhotse's audio backends raise whatever they like
        # What follows the first line is lhotse's account of its objects.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise AudioError(f"{cut.id}: the recording cannot be read ({reason})") from error
    if not wave_N.isfinite().all():
        raise AudioError(f"{cut.id}: the recording holds NaN or infinity", "non_finite_audio")
    return wave_N


def trainable(cuts: CutSet, config: DataConfig, source: Path) -> CutSet:
    """The cuts of usable length that have a text. Raises DataError where none is left."""
    kept = cuts.filter(
        lambda c: config.min_seconds <= c.duration <= config.max_seconds and bool(text_of(c))
    ).to_eager()
    if dropped := len(cuts) - len(kept):
        log.warning(
            "%s: %d of %d utterances left out: no text, or not within %g to %g s",
            source, dropped, len(cuts), config.min_seconds, config.max_seconds,
        )  # fmt: skip
    if not len(kept):
        raise DataError(f"{source}: no utterance is left: check data.min_seconds and max_seconds")
    return kept


class SpeechDataset(Dataset[Step]):
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

    def __getitem__(self, parts: list[list[Cut]]) -> Step:
        """The batches of the cuts that can be read; others are reported once and skipped."""
        step = Step([], [])
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
    chance = random.Random(f"{seed} {epoch}")
    if epoch is not None:
        chance.shuffle(names)
    windows = [names[i : i + _SHARDS] for i in range(0, len(names), _SHARDS)]
    together = [CutSet.from_cuts(c for name in w for c in shards[name]) for w in windows]
    if pauses and epoch is not None and epoch + 1 >= pauses.from_epoch:
        together = [surround(part, pauses, chance) for part in together]
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


def loader(dataset: SpeechDataset, steps: EpochSteps, num_workers: int) -> DataLoader[Step]:
    """A loader of planned steps."""
    return DataLoader(dataset, batch_size=None, sampler=steps, num_workers=num_workers)


def with_speeds(cuts: CutSet, factors: tuple[float, ...]) -> CutSet:
    """The cuts once for each speed (3-way speed perturbation: 0.9, 1.0, 1.1).

    Stored features are of speed 1 only; those of the others are computed as they are needed.
    """
    bare = cuts.drop_features()
    copies = [cuts if factor == 1.0 else bare.perturb_speed(factor) for factor in factors]
    return CutSet.from_cuts(cut for copy in copies for cut in copy)
