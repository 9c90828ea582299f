"""Search of the decoding weights and the threshold on dev: encode once, decode many times."""

import logging
from collections.abc import Callable, Iterator
from itertools import chain, product
from pathlib import Path

import torch
from lhotse import CutSet

from asr.bundle import is_within, load_bundle_config, write_bundle_config
from asr.data.manifest import text_of
from asr.decoding.decode import Encoded
from asr.decoding.options import DecodingOptions
from asr.errors import ConfigError, DataError
from asr.evaluation.calibration import Calibration
from asr.evaluation.cer import have_words
from asr.evaluation.evaluate import readable_groups, with_text
from asr.schema import FrozenModel
from asr.transcription.recognizer import Recognizer, chunk_seconds

log = logging.getLogger(__name__)

TUNED = ("ctc_weight", "lm_weight", "lm_bonus", "gamma")
_CTC_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_LM_WEIGHTS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
_LM_BONUSES = (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
_GAMMAS = (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0)
_ROUNDS = 2


class Trial(FrozenModel):
    """Decoding options and their CER; their WER where the texts have words."""

    decoding: DecodingOptions
    cer: float
    wer: float | None = None


def tune(
    recognizer: Recognizer,
    cuts: CutSet,
    options: DecodingOptions,
    limit: int,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> list[Trial]:
    """Try values of one weight after the other, from `options`; return all trials, best first.

    A language model's weight and bonus are tried together, since a weight without the bonus can
    cost more than it gains. Weights without effect are not tried: that of the CTC head keeps its
    value, those of the language model are 0. Each trial has the confidence threshold that hardly
    any utterance is below. At most `limit` utterances, evenly chosen, are decoded. Of equal trials
    the earlier one is the better. Raises DataError where no cut with a text can be read.
    """
    batches = list(_encode(recognizer, cuts, options, limit))
    if not batches:
        raise DataError("no utterance with a transcript could be read: check the manifest")
    trials: dict[DecodingOptions, Trial] = {}
    normalize = recognizer.tokenizer.normalize
    shows_words = have_words(normalize(text) for _, texts in batches for text in texts)

    def evaluate_trial(tried: DecodingOptions) -> None:
        if tried not in trials:
            found = _calibration(recognizer, batches, tried)
            threshold = found.threshold
            decoding = tried.model_copy(update={"confidence_threshold": threshold})
            wer = found.word_errors(threshold).rate if shows_words else None
            trials[tried] = Trial(decoding=decoding, cer=found.errors(threshold).rate, wer=wer)
            on_trial(trials[tried])

    steps = _steps(recognizer, options)
    used = {name for changes in chain(*steps) for name in changes}
    unused = {name: 0.0 for name in ("lm_weight", "lm_bonus") if name not in used}
    best = options.model_copy(update={"n_best": 1, "confidence_threshold": None} | unused)
    evaluate_trial(best)
    for _ in range(_ROUNDS):
        before = best
        for step in steps:
            for changes in step:
                evaluate_trial(best.model_copy(update=changes))
            best = min(trials, key=lambda tried: trials[tried].cer)
        if best == before:
            break
    return sorted(trials.values(), key=lambda trial: trial.cer)


def check_writable(bundle: Path, lm: Path | None) -> None:
    """Raise ConfigError for a language model that is outside the bundle, which cannot name it."""
    if lm and not is_within(bundle, lm):
        raise ConfigError(
            f"--write: the language model {lm} is not in {bundle}: copy it into that folder, so "
            "that the bundle is whole, and give its path there"
        )


def write_decoding(bundle: Path, chosen: DecodingOptions) -> None:
    """Write method, beam, language model, threshold and tuned weights into a bundle's recipe."""
    config = load_bundle_config(bundle)
    names = ("method", "beam_size", "lm", "confidence_threshold", *TUNED)
    values = {name: getattr(chosen, name) for name in names}
    decoding = config.decoding.model_copy(update=values)
    write_bundle_config(bundle, config.model_copy(update={"decoding": decoding}))


def _steps(recognizer: Recognizer, options: DecodingOptions) -> list[list[dict[str, float]]]:
    """Return the steps to take in turn: each is a list of changes to try, which have an effect."""
    if options.is_greedy:  # which has no language model, though the bundle may
        return []
    steps = []
    if recognizer.model.ctc_head is not None and not options.method.startswith("ctc"):
        steps.append([{"ctc_weight": weight} for weight in _CTC_WEIGHTS])
    if lm := recognizer.language_model(options.model_copy(update={"lm_weight": 1.0})):
        changes = [{"lm_weight": weight} for weight in (0.0, *_LM_WEIGHTS)]
        if options.method != "joint" and lm.token_scorer() is not None:
            pairs = [(0.0, 0.0), *product(_LM_WEIGHTS, _LM_BONUSES)]
            changes = [{"lm_weight": weight, "lm_bonus": bonus} for weight, bonus in pairs]
        steps.append(changes)
    return [*steps, [{"gamma": gamma} for gamma in _GAMMAS]]


def _encode(
    recognizer: Recognizer, cuts: CutSet, options: DecodingOptions, limit: int
) -> Iterator[tuple[Encoded, list[str]]]:
    """Yield batches of encoded utterances, in the CPU's memory, with their texts.

    The log says how many are not used: those decoded in several chunks, and those with no speech
    to decode (silent or too short).
    """
    longest, found = chunk_seconds(recognizer.config, options), with_text(recognizer, cuts)
    todo = [cut for cut in found if cut.duration <= longest]
    if found and not todo:
        raise DataError(f"all utterances are longer than {longest:g} s: give shorter ones")
    if len(todo) < len(found):
        log.info("%d utterances are longer than %g s and not used", len(found) - len(todo), longest)
    chosen, n_silent = CutSet.from_cuts(todo[:: max(1, -(-len(todo) // limit))]), 0
    for _, group in readable_groups(recognizer, chosen):
        n_silent += len(group)
        for indices, encoded in recognizer.encode([wave for _, wave in group]):
            n_silent -= len(indices)
            # The log-probabilities of all utterances could fill a GPU.
            yield encoded.to(torch.device("cpu")), [text_of(group[i][0]) for i in indices]
    if n_silent:
        log.warning("%d utterances are silent, or too short to be decoded, and not used", n_silent)


def _calibration(
    recognizer: Recognizer, batches: list[tuple[Encoded, list[str]]], options: DecodingOptions
) -> Calibration:
    calibration = Calibration(recognizer.tokenizer.normalize)
    for encoded, texts in batches:
        found = recognizer.decode(encoded.to(recognizer.device), options)
        for text, nbest in zip(texts, found, strict=True):
            calibration.add(text, nbest[0])
    return calibration
