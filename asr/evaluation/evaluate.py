"""Corpus CER of a recognizer: pooled counts, mean length, speed, the worst utterances."""

import logging
import time
from collections.abc import Callable, Iterator

from lhotse import CutSet
from lhotse.cut import Cut
from torch import Tensor

from asr.data.manifest import read_wave, text_of
from asr.decoding.options import DecodingOptions
from asr.errors import AudioError, DataError
from asr.evaluation.cer import ErrorCounts, alignment, character_errors
from asr.schema import FrozenModel
from asr.transcription.recognizer import Recognizer

log = logging.getLogger(__name__)

_GROUP = 64  # utterances of similar length, read and decoded together


class UtteranceErrors(FrozenModel):
    """One utterance's errors; `alignment` (for the worst ones) shows where they are."""

    id: str
    errors: int
    reference: str
    hypothesis: str
    alignment: str = ""


class Evaluation(FrozenModel):
    """Results over a corpus.

    `cer` is (substitutions + insertions + deletions) / reference_length over all characters;
    `mean_length` the mean characters of a hypothesis, |X̄| of Cahyawijaya 2021, table 4.3; `rtf`
    seconds of work per second of audio, reading included; `skipped` counts unreadable recordings.
    """

    cer: float
    substitutions: int
    insertions: int
    deletions: int
    reference_length: int
    mean_length: float
    rtf: float
    audio_seconds: float
    utterances: int
    skipped: int
    device: str
    decoding: DecodingOptions
    worst: tuple[UtteranceErrors, ...]

    def __str__(self) -> str:
        """Return sentences, with the rate in percent."""
        counts = (self.substitutions, self.insertions, self.deletions, self.reference_length)
        return (
            f"{ErrorCounts(*counts)}; {self.utterances} utterances of {self.mean_length:.2f} "
            f"characters on average, {self.skipped} skipped; RTF {self.rtf:.4f}"
        )


def evaluate(
    recognizer: Recognizer,
    cuts: CutSet,
    options: DecodingOptions | None = None,
    n_worst: int = 10,
    on_group: Callable[[int, list[UtteranceErrors]], None] = lambda *_: None,
) -> Evaluation:
    """Transcribe all cuts that have a text and count the errors.

    `on_group` receives the size of each group of cuts and the results of those that can be read.
    Raises DataError where no cut with a text can be read.
    """
    options = (options or recognizer.config.decoding).model_copy(update={"n_best": 1})
    done: list[tuple[ErrorCounts, UtteranceErrors]] = []
    audio_seconds, skipped, start = 0.0, 0, time.perf_counter()
    for size, group in readable_groups(cuts, recognizer.sample_rate):
        audio_seconds += sum(len(wave) for _, wave in group) / recognizer.sample_rate
        texts = recognizer.texts([wave for _, wave in group], options)
        found = [_score(cut, text) for (cut, _), (text, _) in zip(group, texts, strict=True)]
        on_group(size, [utterance for _, utterance in found])
        done, skipped = done + found, skipped + size - len(group)
    seconds = time.perf_counter() - start
    if not done:
        raise DataError("no utterance with a transcript could be read: check the manifest")
    total = sum((counts for counts, _ in done), ErrorCounts())
    return Evaluation(
        cer=total.rate,
        **vars(total),
        mean_length=sum(len(utterance.hypothesis) for _, utterance in done) / len(done),
        rtf=seconds / audio_seconds,
        audio_seconds=audio_seconds,
        utterances=len(done),
        skipped=skipped,
        device=str(recognizer.device),
        decoding=options,
        worst=_worst(done, n_worst),
    )


def readable_groups(
    cuts: CutSet, sample_rate: int
) -> Iterator[tuple[int, list[tuple[Cut, Tensor]]]]:
    """Yield the cuts with a text in groups of similar length: size, and cuts with waveforms (N,).

    Cuts whose recordings cannot be read are counted in the size, named in the log and left out.
    """
    todo = sorted((c for c in cuts if text_of(c)), key=lambda c: (c.duration, c.id))
    for first in range(0, len(todo), _GROUP):
        group, read = todo[first : first + _GROUP], []
        for cut in group:
            try:
                read.append((cut, read_wave(cut, sample_rate)))
            except AudioError as error:
                log.warning("skipped: %s", error)
        yield len(group), read


def _score(cut: Cut, hypothesis: str) -> tuple[ErrorCounts, UtteranceErrors]:
    counts = character_errors(text_of(cut), hypothesis)
    texts = {"reference": text_of(cut), "hypothesis": hypothesis}
    return counts, UtteranceErrors(id=cut.id, errors=counts.errors, **texts)


def _worst(done: list[tuple[ErrorCounts, UtteranceErrors]], n: int) -> tuple[UtteranceErrors, ...]:
    """Return the n utterances of the highest error rates, without those that have no error."""
    by_rate = sorted(done, key=lambda pair: -pair[0].rate)[:n]
    return tuple(
        u.model_copy(update={"alignment": alignment(u.reference, u.hypothesis)})
        for _, u in by_rate
        if u.errors
    )
