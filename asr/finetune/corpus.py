"""The recordings that a bundle is to learn from: what they are like, and whether they fit it."""

import logging
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from asr.bundle import Bundle
from asr.data.manifest import filter_cuts, is_usable, load_cuts, text_of
from asr.errors import DataError
from asr.tokenizer import SPECIAL
from asr.training_config import DataConfig

log = logging.getLogger(__name__)

TRAIN, DEV = "train.jsonl.gz", "dev.jsonl.gz"
_KNOWN = 0.05  # least share of known characters; below, a model begins with next to nothing
_NARROW = 0.5  # largest share of the audio that may have a lower sample rate than the model
_SHOWN = 10  # characters in a message


@dataclass(frozen=True)
class Corpus:
    """The training utterances in a folder of `asr prepare`, measured for a bundle.

    `rates` are hours by sample rate in Hz. `longest` is the length of the longest utterance in
    seconds, `p99` the 99th percentile. `n_characters` counts the characters of all texts, without
    spaces and punctuation. `unknown` counts the characters that the bundle has no tokens for.
    """

    folder: Path
    utterances: int
    rates: dict[int, float]
    longest: float
    p99: float
    n_characters: int
    unknown: Counter[str]

    @property
    def hours(self) -> float:
        """Return the hours of audio for training."""
        return sum(self.rates.values())

    @property
    def train(self) -> Path:
        """Return the manifest of the training set."""
        return self.folder / TRAIN

    @property
    def dev(self) -> Path:
        """Return the manifest of the dev set."""
        return self.folder / DEV


def read_corpus(folder: Path, bundle: Bundle, data: DataConfig) -> Corpus:
    """Measure a folder's training utterances, as far as they are within the limits of `data`.

    Raises DataError where a manifest is missing, or where training or dev has no usable utterance.
    """
    for name in (TRAIN, DEV):
        if not (folder / name).is_file():
            raise DataError(
                f"{folder}: has no {name}: give a folder that `asr prepare` made, such as "
                "`asr prepare table RECORDINGS TRANSCRIPTS FOLDER`"
            )
    normalize = bundle.tokenizer.normalize
    for name in (DEV, TRAIN):
        cuts = load_cuts(folder / name)
        usable = [cut for cut in cuts if is_usable(cut, data, normalize)]
        if not usable:
            filter_cuts(cuts, data, folder / name, normalize)  # raises
    rates: dict[int, float] = {}
    for cut in usable:
        rates[cut.sampling_rate] = rates.get(cut.sampling_rate, 0.0) + cut.duration / 3600
    texts = [text_of(cut) for cut in usable]
    seconds = sorted(float(cut.duration) for cut in usable)
    return Corpus(
        folder=folder,
        utterances=len(usable),
        rates=rates,
        longest=seconds[-1],
        p99=seconds[len(seconds) * 99 // 100],
        n_characters=sum(_is_written(c) for text in texts for c in normalize(text)),
        unknown=bundle.tokenizer.unknown(texts),
    )


def check_fit(corpus: Corpus, bundle: Bundle, source: Path) -> None:
    """Log what does not fit, and what will be done. Raises DataError where too little fits.

    Audio of a higher sample rate than the model's is resampled and loses its upper frequencies, as
    the model's own corpus did. Audio of a lower rate lacks upper frequencies that the model uses.
    """
    rate, faults = bundle.config.features.sample_rate, list[str]()
    n_unknown = sum(n for character, n in corpus.unknown.items() if _is_written(character))
    share = n_unknown / max(1, corpus.n_characters)
    narrow = _narrow(corpus, rate)
    rates = " and ".join(map(str, sorted(corpus.rates)))
    if share > 1 - _KNOWN:
        theirs = "".join(bundle.tokenizer.tokens()[len(SPECIAL) :][:_SHOWN])
        faults.append(
            f"{share:.0%} of its characters, such as {_some(corpus.unknown)}, are unknown to the "
            f"model, which writes {theirs}"
        )
    if narrow > _NARROW or (faults and set(corpus.rates) != {rate}):
        faults.append(f"its recordings have {rates} Hz, the model is for {rate} Hz")
    if faults:
        highest = max(each for each in corpus.rates if _narrow(corpus, each) <= _NARROW)
        kind = f"of {highest} Hz or less" if narrow > _NARROW else "that knows them"
        raise DataError(
            f"{corpus.folder}: does not fit {source}: {', and '.join(faults)}: fine-tune a model "
            f"{kind}, or train one from nothing by `asr new`"
        )
    _note_differences(corpus, bundle, share, rates)


def _narrow(corpus: Corpus, rate: int) -> float:
    """Return the share of the audio whose sample rate is below `rate` (Hz)."""
    return sum(hours for found, hours in corpus.rates.items() if found < rate) / corpus.hours


def _note_differences(corpus: Corpus, bundle: Bundle, share: float, rates: str) -> None:
    rate = bundle.config.features.sample_rate
    if max(corpus.rates) > rate:
        log.info("recordings of %s Hz are resampled to the model's %d Hz", rates, rate)
    if min(corpus.rates) < rate:
        log.warning("some recordings have %d Hz, the model is for %d Hz", min(corpus.rates), rate)
    if not corpus.unknown:
        return
    log.info(
        "%d characters (%.1f %% of the texts), such as %s, are new to the model: they get tokens",
        len(corpus.unknown), 100 * share, _some(corpus.unknown),
    )  # fmt: skip
    if bundle.config.tokenizer.kind != "char":
        log.warning(
            "the model's tokens are parts of words: each new character is a token of its own, and "
            "no new parts of words are learned"
        )


def _is_written(character: str) -> bool:
    """Tell whether a character is a letter, a mark, a digit or a sign: no space or punctuation."""
    return character != "▁" and unicodedata.category(character)[0] not in "ZPC"


def _some(characters: Counter[str]) -> str:
    return "".join(character for character, _ in characters.most_common(_SHOWN))
