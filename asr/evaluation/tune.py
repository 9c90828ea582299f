"""The search's weights, found on dev: encode once, then search by one weight after the other.

Nothing but the cuts that are given is read, and nothing is trained. Legend: B utterances.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from lhotse import CutSet
from torch.nn.utils.rnn import pad_sequence

from asr.bundle import CONFIG
from asr.config import dump_config, load_config
from asr.data.manifest import read_wave, text_of
from asr.decoding.decode import Encoded, encode, find_texts
from asr.decoding.options import SearchConfig
from asr.errors import AudioError, DataError
from asr.evaluation.cer import ErrorCounts, character_errors
from asr.runtime.files import write_atomically
from asr.schema import Node
from asr.transcription.recognizer import Recognizer

# So many utterances of like length are encoded and searched at a time.
_GROUP = 32
_GRID: dict[str, tuple[float, ...]] = {
    "ctc_weight": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "lm_weight": (0.0, 0.1, 0.2, 0.3, 0.5, 0.7),
    "gamma": (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0),
}
_ROUNDS = 2


class Trial(Node):
    """A search that was tried, and the CER of it."""

    search: SearchConfig
    cer: float


def tune(
    recognizer: Recognizer, cuts: CutSet, search: SearchConfig, most: int,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> list[Trial]:  # fmt: skip
    """Try weights one after the other, from those of `search`; all trials, the best first.

    Of a weight that can change nothing (CTC without a head, or a language model without one) only
    the present value is tried. `most` utterances, evenly chosen, are heard. Of equals the earlier
    trial is the better. Raises DataError where no cut with a text can be read.
    """
    batches = list(_encoded(recognizer, cuts, most))
    if not batches:
        raise DataError("no utterance with a transcript could be read: check the manifest")
    trials: dict[SearchConfig, Trial] = {}

    def judge(tried: SearchConfig) -> None:
        if tried not in trials:
            trials[tried] = Trial(search=tried, cer=_cer(recognizer, batches, tried))
            on_trial(trials[tried])

    search = search.model_copy(update={"n_best": 1})
    judge(search)
    best = search
    for _ in range(_ROUNDS):
        before = best
        for name, values in _useful(recognizer, search).items():
            for value in values:
                judge(best.model_copy(update={name: value}))
            best = min(trials.values(), key=lambda trial: trial.cer).search
        if best == before:
            break
    return sorted(trials.values(), key=lambda trial: trial.cer)


def write_weights(bundle: Path, chosen: SearchConfig) -> None:
    """Put the weights and the language model's path into the bundle's configuration."""
    config = load_config(bundle / CONFIG)
    names = ("method", "beam_size", "lm", *_GRID)
    values = {name: getattr(chosen, name) for name in names}
    if chosen.lm:  # the next user may stand elsewhere
        values["lm"] = chosen.lm.resolve()
    search = config.search.model_copy(update=values)
    text = dump_config(config.model_copy(update={"search": search}))
    write_atomically(bundle / CONFIG, lambda path: path.write_text(text, "utf-8"))


def _useful(recognizer: Recognizer, search: SearchConfig) -> dict[str, tuple[float, ...]]:
    grid = dict(_GRID)
    if recognizer.model.ctc_head is None or search.method.startswith("ctc"):
        del grid["ctc_weight"]
    if search.lm is None or search.method == "ctc_greedy":
        del grid["lm_weight"]
    return {} if search.method == "ctc_greedy" else grid


def _encoded(
    recognizer: Recognizer, cuts: CutSet, most: int
) -> Iterator[tuple[Encoded, list[str]]]:
    """Batches of encoded utterances, in the computer's memory, with their texts."""
    todo = sorted((c for c in cuts if text_of(c)), key=lambda c: (c.duration, c.id))
    todo = todo[:: max(1, -(-len(todo) // most))]
    for first in range(0, len(todo), _GROUP):
        feats, texts = [], []
        for cut in todo[first : first + _GROUP]:
            try:
                found = recognizer.features(read_wave(cut, recognizer.sample_rate))
            except AudioError:
                continue
            if recognizer.config.model.frontend.steps(len(found)):
                feats.append(found)
                texts.append(text_of(cut))
        if feats:
            frames_B = torch.tensor([len(f) for f in feats], device=recognizer.device)
            feats_BTF = pad_sequence(feats, batch_first=True).to(recognizer.device)
            encoded = encode(recognizer.model, feats_BTF, frames_B)
            yield encoded.to(torch.device("cpu")), texts  # log P of all could fill a GPU


def _cer(
    recognizer: Recognizer, batches: list[tuple[Encoded, list[str]]], search: SearchConfig
) -> float:
    total, beam = ErrorCounts(), recognizer.beam_search(search)
    lm = recognizer.language_model(search)
    for encoded, texts in batches:
        found = find_texts(recognizer.model, encoded.to(recognizer.device), beam, lm)
        for text, nbest in zip(texts, found, strict=True):
            total += character_errors(text, recognizer.tokenizer.decode(nbest[0].tokens))
    return total.rate
