"""Choose which texts of a model may train the next one: by confidence and a second decoding.

The second decoding is of the same audio at another speed, by the CTC head alone where the model has
one. It seldom makes the same error as the first.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lhotse import CutSet
from torch import Tensor

from asr.config import Config
from asr.data.cuts import origins
from asr.data.manifest import text_of
from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import SHORTEST_CHUNK
from asr.errors import DataError
from asr.evaluation.cer import ErrorCounts, character_errors, have_words, word_errors
from asr.evaluation.evaluate import readable_groups
from asr.schema import FrozenModel, OmitNone
from asr.transcription.recognizer import Recognizer, longest_seconds

_SPEED = 0.9  # of the second decoding
# Limits on the confidence, of which `expect` says how much each keeps of dev.
_STEPS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class Limits(FrozenModel):
    """What a label needs: at least this confidence, at most this CER between the two texts."""

    confidence: float
    disagreement: float


@dataclass(frozen=True)
class View:
    """A decoding: the options that differ from the bundle's, and the speed of the audio."""

    name: str
    changes: dict[str, object] = field(default_factory=dict)
    speed: float = 1.0


def views(config: Config) -> tuple[View, View]:
    """Return the two decodings of a model; neither leaves out uncertain texts."""
    # Both cut a recording alike, and slower speech is longer. So where a model takes little more
    # than the shortest chunk, the second speed is nearly 1.
    longest, chosen = longest_seconds(config), config.decoding.chunk_seconds
    speed = max(_SPEED, SHORTEST_CHUNK / longest)
    longest = max(SHORTEST_CHUNK, speed * longest)
    all_texts: dict[str, object] = {
        "confidence_threshold": 0.0, "n_best": 1, "chunk_seconds": min(longest, chosen or longest),
    }  # fmt: skip
    greedy = {"method": "ctc_greedy", "lm_weight": 0.0} if config.model.ctc_weight else {}
    # `ctc_sounds` recognizes sounds, and not the characters that it writes.
    first = greedy if config.decoding.method == "ctc_sounds" else {}
    return View("first", all_texts | first), View("second", all_texts | greedy, speed)


@dataclass(frozen=True, slots=True)
class Guess:
    """The texts of an utterance by both decodings, with the confidence of the first.

    `is_whole`: the first ended by itself, and not at the limit on its length.
    """

    text: str
    other: str
    confidence: float
    is_whole: bool

    def fault(self, limits: Limits) -> str | None:
        """Return why the text is no label, as a fixed word; None where it is one."""
        if not self.text:
            return "no_speech"
        if not self.is_whole:
            return "endless_text"
        if self.confidence < limits.confidence:
            return "low_confidence"
        distance = character_errors(self.text, self.other, str).rate  # both are normalized
        return "disagreement" if distance > limits.disagreement else None


class Kept(FrozenModel):
    """The share of dev utterances that limits keep, and the error rates of their texts.

    `wer` is absent where the texts of dev have no words. Where nothing is kept, `wer` is absent and
    `cer` is 0.
    """

    limits: Limits
    share: float
    cer: float
    wer: OmitNone[float] = None


class Expected(FrozenModel):
    """What the limits `chosen`, and others, keep of utterances whose texts are known.

    `cer` and, where texts have words, `wer` are the error rates of all these utterances.
    """

    utterances: int
    cer: float
    wer: OmitNone[float] = None
    chosen: Kept
    others: tuple[Kept, ...]


class DevGuesses(FrozenModel):
    """Normalized texts of utterances with their guesses; `dev` is the `digest` of the cuts."""

    dev: str
    found: tuple[tuple[str, Guess], ...]


def digest(cuts: CutSet) -> str:
    """Return a hash of utterances: of their recordings, their places there and their texts."""
    lines = (repr((sorted(origins(cut)), float(cut.duration), text_of(cut))) for cut in cuts)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def guess_dev(
    recognizer: Recognizer,
    cuts: CutSet,
    on_progress: Callable[[float], object] = lambda _: None,
) -> DevGuesses:
    """Decode the cuts that have a text by both views; return the texts with their guesses.

    `on_progress` gets the number of utterances that are done. Raises DataError where none can be
    read.
    """
    found: list[tuple[str, Guess]] = []
    normalize = recognizer.tokenizer.normalize
    for _, group in readable_groups(recognizer, cuts):
        guesses = _guesses(recognizer, [wave for _, wave in group])
        for (cut, _), guess in zip(group, guesses, strict=True):
            found.append((normalize(text_of(cut)), guess))
        on_progress(len(found))
    if not found:
        raise DataError("no utterance with a transcript could be read: check the manifest")
    return DevGuesses(dev=digest(cuts), found=tuple(found))


def expect(guesses: DevGuesses, limits: Limits) -> Expected:
    """Return what limits keep of utterances whose texts are known."""
    scored = _scored(guesses)
    steps = (Limits(confidence=step, disagreement=limits.disagreement) for step in _STEPS)
    cer, wer = _rates(scored)
    return Expected(
        utterances=len(scored),
        cer=cer,
        wer=wer,
        chosen=_kept(scored, limits),
        others=tuple(_kept(scored, step) for step in steps),
    )


def _guesses(recognizer: Recognizer, waves: Sequence[Tensor]) -> list[Guess]:
    """Return the guesses of waveforms (N,); each has the least confidence of its chunks."""
    texts = []
    for view in views(recognizer.config):
        options = recognizer.config.decoding.changed(view.changes)
        texts.append(recognizer.texts(waves, options, view.speed))
    return [
        Guess(one, other, min(h.confidence for h in _best(nbests)), _is_whole(nbests))
        for (one, nbests), (other, _) in zip(*texts, strict=True)
    ]


def _best(nbests: list[list[Hypothesis]]) -> list[Hypothesis]:
    return [nbest[0] for nbest in nbests]


def _is_whole(nbests: list[list[Hypothesis]]) -> bool:
    return all(hypothesis.ended != "length" for hypothesis in _best(nbests))


@dataclass(frozen=True, slots=True)
class _Scored:
    """A guess with its errors in characters, and in words where the texts of dev have some."""

    guess: Guess
    characters: ErrorCounts
    words: ErrorCounts | None


def _scored(guesses: DevGuesses) -> list[_Scored]:
    shows_words = have_words(text for text, _ in guesses.found)
    return [
        _Scored(
            guess,
            character_errors(text, guess.text, str),
            word_errors(text, guess.text, str) if shows_words else None,
        )
        for text, guess in guesses.found
    ]


def _kept(scored: Sequence[_Scored], limits: Limits) -> Kept:
    kept = [each for each in scored if each.guess.fault(limits) is None]
    cer, wer = _rates(kept)
    return Kept(limits=limits, share=len(kept) / len(scored), cer=cer, wer=wer)


def _rates(scored: Sequence[_Scored]) -> tuple[float, float | None]:
    """Return the CER, and the WER where words are counted."""
    words = [each.words for each in scored if each.words is not None]
    cer = sum((each.characters for each in scored), ErrorCounts()).rate
    return cer, sum(words, ErrorCounts()).rate if words else None
