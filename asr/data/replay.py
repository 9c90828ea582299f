"""Another corpus beside that of training: a share of it in every epoch, and its canary set."""

import logging
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from lhotse import CutSet
from lhotse.cut import Cut

from asr.config import Config
from asr.data.cuts import Spans
from asr.data.manifest import filter_cuts, load_cuts, load_training_cuts
from asr.data.places import allowed_by
from asr.data.sampling import perturb_speed
from asr.errors import DataError
from asr.training_config import DataConfig, ReplayConfig

log = logging.getLogger(__name__)

SAMPLED = 200  # utterances of a canary set at most
_HELD_OUT = 0.1  # of a corpus without dev, at most


def draw_sample(cuts: Sequence[Cut], most: int = SAMPLED) -> list[Cut]:
    """Return at most so many cuts, always the same ones."""
    ordered = sorted(cuts, key=lambda cut: cut.id)
    return random.Random(1).sample(ordered, min(most, len(ordered)))


def canary_set(data: DataConfig) -> list[Cut]:
    """Return the canary set of a recipe's older corpus, empty if the recipe has none.

    Utterances that the new corpus holds too are left out. Raises DataError if the older corpus is
    too small.
    """
    replay = data.replay
    if replay is None:
        return []
    cuts = _others(data, replay.dev or replay.train)
    return draw_sample(cuts) if replay.dev else _held_out(replay, cuts)


def _held_out(replay: ReplayConfig, cuts: Sequence[Cut]) -> list[Cut]:
    """Return the canary set of a corpus without dev. Raises DataError where that is too small."""
    n_held_out = min(SAMPLED, int(_HELD_OUT * len(cuts)))
    if not n_held_out:
        raise DataError(
            f"{replay.train}: {len(cuts)} utterances are too few to hold some out: give a folder "
            "with train.jsonl.gz and dev.jsonl.gz, or a larger manifest"
        )
    return draw_sample(cuts, n_held_out)


def _others(data: DataConfig, older: Path) -> list[Cut]:
    """Return the utterances of an older corpus whose audio is not in the new corpus."""
    allowed = allowed_by([*data.train, data.dev], data.allow)
    new = Spans([*load_training_cuts(data, allowed), *load_cuts(data.dev, allowed)])
    cuts = list(load_cuts(older))
    others = [cut for cut in cuts if not new.overlap(cut)]
    if len(others) < len(cuts):
        log.info("%s: %d utterances are of data.train or data.dev too: they are not replayed",
                 older, len(cuts) - len(others))  # fmt: skip
    return others


class Replay:
    """The other corpus in training, without its canary set and without audio of the new corpus.

    There is a canary set where a bundle is fine-tuned.

    Raises DataError if nothing is left.
    """

    def __init__(self, config: Config, replay: ReplayConfig) -> None:
        self.seed, self.share = config.seed, replay.share
        others = _others(config.data, replay.train)
        if not others:
            raise DataError(
                f"{replay.train}: data.train and data.dev have all of it: give another corpus to "
                "data.replay.train (asr finetune: to --replay)"
            )
        is_canary = config.training.init is not None and replay.dev is None
        held_out = {cut.id for cut in _held_out(replay, others)} if is_canary else set()
        cuts = CutSet.from_cuts(cut for cut in others if cut.id not in held_out)
        normalize = config.tokenizer.normalize
        self.utterances = filter_cuts(cuts, config.data, replay.train, normalize)
        copies = perturb_speed(self.utterances, config.data.speed_factors)
        # Both corpora may number their utterances.
        self.cuts = [cut.with_id(f"replay-{cut.id}") for cut in copies]
        allowed = allowed_by([*config.data.train, config.data.dev], config.data.allow)
        new = _seconds(load_training_cuts(config.data, allowed))
        old = _seconds(self.utterances)
        self.most = old / (old + new)

    def __str__(self) -> str:
        customs = (one.custom or {} for cut in self.utterances for one in cut.supervisions)
        kind = "synthetic ones" if all(custom.get("synthetic") for custom in customs) else "others"
        return f"{min(self.share, self.most):.0%} of the audio from {len(self.utterances)} {kind}"

    def with_share(self, cuts: CutSet, epoch: int, is_short: bool = False) -> CutSet:
        """Return an epoch's cuts with cuts of the other corpus, which are `share` of all audio.

        No other cut is drawn twice, so the share may be smaller. In a short epoch none is longer
        than the epoch's own.
        """
        wanted = self.share / (1 - self.share) * _seconds(cuts)
        longest = max(float(cut.duration) for cut in cuts) if is_short else math.inf
        shuffled, drawn = [cut for cut in self.cuts if cut.duration <= longest], list[Cut]()
        random.Random(f"{self.seed} replay {epoch}").shuffle(shuffled)
        while shuffled and wanted > 0:
            drawn.append(shuffled.pop())
            wanted -= float(drawn[-1].duration)
        return CutSet.from_cuts([*cuts, *drawn])


def _seconds(cuts: Iterable[Cut]) -> float:
    return sum(float(cut.duration) for cut in cuts)
