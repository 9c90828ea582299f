"""Corpus CER of a recogniser: pooled counts, the papers' |X̄|, speed, the worst utterances."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

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

# So many utterances of like length are read and decoded at a time.
_GROUP = 64


class UtteranceErrors(FrozenModel):
    """One utterance's errors, with what was said above what was heard."""

    id: str
    errors: int
    reference: str
    hypothesis: str
    alignment: str


@dataclass(frozen=True)
class Utterance:
    """One utterance's result."""

    id: str
    reference: str
    hypothesis: str
    counts: ErrorCounts

    def judged(self) -> UtteranceErrors:
        """The result as it is shown."""
        shown = alignment(self.reference, self.hypothesis)
        return UtteranceErrors(
            id=self.id, errors=self.counts.errors, reference=self.reference,
            hypothesis=self.hypothesis, alignment=shown,
        )  # fmt: skip


class Evaluation(FrozenModel):
    """Results over a corpus.

    `cer` is (substitutions + insertions + deletions) / reference_length over all characters;
    `mean_length` the mean characters of a hypothesis, |X̄| of thesis table 4.3; `rtf` seconds of
    work per second of audio, reading included; `skipped` recordings that could not be read.
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


def evaluate(
    recognizer: Recognizer,
    cuts: CutSet,
    options: DecodingOptions | None = None,
    n_worst: int = 10,
    on_done: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Transcribe all cuts that have a text and count the errors.

    `on_done` is told how many utterances each group held. Raises DataError where no cut with a
    text can be read.
    """
    options = (options or recognizer.config.decoding).model_copy(update={"n_best": 1})
    todo = sorted((c for c in cuts if text_of(c)), key=lambda c: (c.duration, c.id))
    done: list[Utterance] = []
    total, hypothesis_length, audio_seconds = ErrorCounts(), 0, 0.0
    start = time.perf_counter()
    for first in range(0, len(todo), _GROUP):
        group = _readable(todo[first : first + _GROUP], recognizer.sample_rate)
        audio_seconds += sum(len(wave) for _, wave in group) / recognizer.sample_rate
        found = recognizer.texts([wave for _, wave in group], options)
        for (cut, _), (hypothesis, _) in zip(group, found, strict=True):
            reference = text_of(cut)
            counts = character_errors(reference, hypothesis)
            total, hypothesis_length = total + counts, hypothesis_length + len(hypothesis)
            done.append(Utterance(cut.id, reference, hypothesis, counts))
        on_done(len(todo[first : first + _GROUP]))
    seconds = time.perf_counter() - start
    if not done:
        raise DataError("no utterance with a transcript could be read: check the manifest")
    worst = sorted(done, key=lambda u: -u.counts.rate)[:n_worst]
    return Evaluation(
        cer=total.rate,
        substitutions=total.substitutions,
        insertions=total.insertions,
        deletions=total.deletions,
        reference_length=total.reference_length,
        mean_length=hypothesis_length / len(done),
        rtf=seconds / audio_seconds,
        audio_seconds=audio_seconds,
        utterances=len(done),
        skipped=len(todo) - len(done),
        device=str(recognizer.device),
        decoding=options,
        worst=tuple(u.judged() for u in worst if u.counts.errors),
    )


def _readable(cuts: list[Cut], sample_rate: int) -> list[tuple[Cut, Tensor]]:
    """The cuts whose recordings can be read, with their waves; others are named in the log."""
    read = []
    for cut in cuts:
        try:
            read.append((cut, read_wave(cut, sample_rate)))
        except AudioError as error:
            log.warning("skipped: %s", error)
    return read
