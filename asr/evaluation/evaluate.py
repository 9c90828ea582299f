"""Corpus CER and WER of a recognizer: pooled counts, mean length, speed, the worst utterances."""

import logging
import time
from collections.abc import Callable, Iterator

from lhotse import CutSet
from lhotse.cut import Cut
from torch import Tensor

from asr.data.manifest import read_wave, text_of
from asr.decoding.options import DecodingOptions
from asr.errors import AudioError, DataError
from asr.evaluation.cer import (
    ErrorCounts,
    Normalize,
    alignment,
    character_errors,
    corpus_word_errors,
)
from asr.evaluation.confusions import count_whole_texts
from asr.evaluation.records import Evaluation, UtteranceErrors
from asr.transcription.recognizer import Recognizer

log = logging.getLogger(__name__)

_GROUP = 64  # utterances of similar length, read and decoded together


def evaluate(
    recognizer: Recognizer,
    cuts: CutSet,
    options: DecodingOptions | None = None,
    n_worst: int = 10,
    on_group: Callable[[int, list[UtteranceErrors]], None] = lambda *_: None,
) -> Evaluation:
    """Transcribe all cuts that have a text and count the errors under the model's normalization.

    `on_group` receives the size of each group of cuts and the results of those that can be read.
    Raises DataError where no cut with a text can be read.
    """
    options = (options or recognizer.config.decoding).model_copy(update={"n_best": 1})
    done: list[tuple[ErrorCounts, UtteranceErrors]] = []
    audio_seconds, skipped, uncertain, start = 0.0, 0, 0, time.perf_counter()
    normalize = recognizer.tokenizer.normalize
    for size, group in readable_groups(recognizer, cuts):
        audio_seconds += sum(len(wave) for _, wave in group) / recognizer.sample_rate
        texts = recognizer.texts([wave for _, wave in group], options)
        uncertain += sum(any(n[0].ended == "uncertain" for n in chunks) for _, chunks in texts)
        pairs = zip(group, texts, strict=True)
        found = [_score(cut, text, normalize) for (cut, _), (text, _) in pairs]
        on_group(size, [utterance for _, utterance in found])
        done, skipped = done + found, skipped + size - len(group)
    seconds = time.perf_counter() - start
    if not done:
        raise DataError("no utterance with a transcript could be read: check the manifest")
    total = sum((counts for counts, _ in done), ErrorCounts())
    words = corpus_word_errors(((u.reference, u.hypothesis) for _, u in done), normalize)
    return Evaluation(
        cer=total.rate,
        wer=words.rate if words else None,
        words=words,
        whole=count_whole_texts((u.reference, u.hypothesis) for _, u in done),
        **vars(total),
        mean_length=sum(len(utterance.hypothesis) for _, utterance in done) / len(done),
        rtf=seconds / audio_seconds,
        audio_seconds=audio_seconds,
        utterances=len(done),
        skipped=skipped,
        uncertain=uncertain,
        device=str(recognizer.device),
        decoding=options,
        worst=_worst(done, n_worst, normalize),
    )


def readable_groups(
    recognizer: Recognizer, cuts: CutSet
) -> Iterator[tuple[int, list[tuple[Cut, Tensor]]]]:
    """Yield groups of cuts with a text, of similar length: size, and cuts with waveforms (N,).

    Cuts whose recordings cannot be read are counted in the size, named in the log and left out.
    """
    todo = with_text(recognizer, cuts)
    for first in range(0, len(todo), _GROUP):
        group, read = todo[first : first + _GROUP], []
        for cut in group:
            try:
                read.append((cut, read_wave(cut, recognizer.sample_rate)))
            except AudioError as error:
                log.warning("skipped: %s", error)
        yield len(group), read


def with_text(recognizer: Recognizer, cuts: CutSet) -> list[Cut]:
    """Return the cuts with a text that is not empty when it is normalized, the shortest first.

    The log says how many have none.
    """
    normalize = recognizer.tokenizer.normalize
    found, empty = list[Cut](), list[str]()
    for cut in cuts:
        if normalize(text_of(cut)):
            found.append(cut)
        else:
            empty.append(cut.id)
    if empty:
        log.warning("%d utterances have no text and are left out: %s first", len(empty), empty[0])
    return sorted(found, key=lambda c: (c.duration, c.id))


def _score(cut: Cut, hypothesis: str, normalize: Normalize) -> tuple[ErrorCounts, UtteranceErrors]:
    counts = character_errors(text_of(cut), hypothesis, normalize)
    texts = {"reference": normalize(text_of(cut)), "hypothesis": hypothesis}
    return counts, UtteranceErrors(id=cut.id, errors=counts.errors, **texts)


def _worst(
    done: list[tuple[ErrorCounts, UtteranceErrors]], n: int, normalize: Normalize
) -> tuple[UtteranceErrors, ...]:
    """Return the n utterances of the highest error rates, without those that have no error."""
    by_rate = sorted(done, key=lambda pair: -pair[0].rate)[:n]
    return tuple(
        u.model_copy(update={"alignment": alignment(u.reference, u.hypothesis, normalize)})
        for _, u in by_rate
        if u.errors
    )
