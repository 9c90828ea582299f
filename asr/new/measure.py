"""Measure a prepared corpus, as far as the choice of a recipe needs it.

Legend: N samples.
"""

import random
import re
import unicodedata
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from lhotse.cut import Cut
from pydantic import Field, PositiveFloat, PositiveInt
from tabulate import tabulate

from asr.data.manifest import load_cuts, read_wave, text_of
from asr.data.people import everybody_of, in_both, names_all
from asr.errors import AudioError, DataError
from asr.normalization import HAN_LETTER, normalize_text
from asr.schema import FrozenModel

LONGEST = 30.0  # seconds; longer utterances do not train
SAMPLED = 300  # recordings whose silence is measured
_FRAME_SECONDS = 0.025
_SILENCE = 10 ** (-35 / 20)  # -35 dB, as a share of the loudest frame's amplitude
_CHINESE = 0.8  # share of the letters and digits
_MANDARIN = ("cmn", "zh")


class SplitSize(FrozenModel):
    """The size of dev or test, and its overlap with training.

    `is_unseen`: all speakers, those of training too, are named, and no speaker is in both.
    `known_texts` is the share of the split's utterances whose text is in training too.
    """

    utterances: PositiveInt
    speakers: int
    is_unseen: bool
    known_texts: Annotated[float, Field(ge=0, le=1)] = 0.0


class CorpusMeasures(FrozenModel):
    """The measures of a corpus: but for `splits` and `too_long`, of training utterances up to 30 s.

    `speakers` counts the named ones, `unnamed` the utterances with a speaker who is not named.
    `characters` and `words` count the different ones. `chinese` is the share of Chinese characters
    among letters and digits, `latin` that of English letters and digits, `turkish` that of ı, İ and
    ğ. `marks` is the number of punctuation marks for each letter or digit; all other figures are
    of texts without punctuation. In `seconds_per_character` a space is a character too.
    `sample_rates` are hours by rate in Hz. `silence` is the share of frames at least 35 dB below
    the loudest of their utterance. `too_long` counts the training utterances of more than 30 s.
    `language` is espeak-ng's name of the language, if it was given.
    """

    hours: PositiveFloat
    utterances: PositiveInt
    speakers: int
    unnamed: int = 0
    characters: PositiveInt
    words: PositiveInt
    chinese: Annotated[float, Field(ge=0, le=1)] = 0.0
    latin: Annotated[float, Field(ge=0, le=1)] = 0.0
    turkish: Annotated[float, Field(ge=0, le=1)] = 0.0
    marks: Annotated[float, Field(ge=0)] = 0.0
    seconds_per_character: PositiveFloat
    shortest: PositiveFloat  # the 10th percentile of the utterances' seconds
    longest: PositiveFloat  # the 90th
    sample_rates: dict[int, float]
    silence: Annotated[float, Field(ge=0, le=1)]
    too_long: int = 0
    synthetic: bool = False
    language: str | None = None
    splits: dict[str, SplitSize]

    @property
    def is_chinese(self) -> bool:
        """Return whether nearly all of the text is in Chinese characters."""
        return self.chinese >= _CHINESE

    @property
    def is_mandarin(self) -> bool:
        """Tell whether the text is in Chinese characters, and `language` is no other language."""
        return self.is_chinese and self._may_be_mandarin

    @property
    def spelled(self) -> float:
        """Return the share of letters and digits whose sounds are known: Mandarin and English."""
        return self.latin + (self.chinese if self._may_be_mandarin else 0.0)

    @property
    def _may_be_mandarin(self) -> bool:
        code = self.language or "cmn"
        return code.partition("-")[0] in _MANDARIN and code != "zh-yue"

    def _speakers_text(self) -> str:
        if not (self.speakers and self.unnamed):
            return f"{self.speakers or 'not named'}"
        return f"{self.speakers}, and {self.unnamed:,} utterances without a name"

    def __str__(self) -> str:
        rates = ", ".join(f"{rate} Hz ({hours:.2f} h)" for rate, hours in self.sample_rates.items())
        rows = [
            ("hours of training", f"{self.hours:.2f}"),
            ("speakers", self._speakers_text()),
            ("different characters", f"{self.characters:,}"),
            ("seconds per character", f"{self.seconds_per_character:.3f}"),
            ("seconds of most utterances", f"{self.shortest:.1f} to {self.longest:.1f}"),
            ("sample rates", rates),
            ("share of silence", f"{self.silence:.0%}"),
        ]
        if self.too_long:
            rows.append((f"left out, longer than {LONGEST:g} s", f"{self.too_long} utterances"))
        return tabulate(rows, disable_numparse=True)


def measure(
    data: Path,
    splits: Collection[str],
    on_progress: Callable[[float], None] = lambda _: None,
    synthetic: bool = False,
    language: str | None = None,
) -> CorpusMeasures:
    """Return the measures of the corpus in a folder of `asr prepare`.

    `splits` are those that are not empty. `on_progress` receives how many of at most 300 recordings
    have been read. Raises DataError where nothing is left for training or dev.
    """
    cuts, train = _usable(data, splits)
    texts = [_said(cut) for cut in train]
    if not any(texts):
        raise DataError(
            f"{data}: no text for training has a letter or digit ({text_of(train[0]):.80}): write "
            "what is said"
        )
    with_marks = "".join(normalize_text(text_of(cut)) for cut in train)
    durations = [float(cut.duration) for cut in train]
    whole = "".join(texts)
    n_letters = max(1, sum(unicodedata.category(c)[0] in "LMN" for c in whole))
    speakers = _speakers(train)
    shortest, longest = np.percentile(durations, [10, 90])
    return CorpusMeasures(
        hours=sum(durations) / 3600,
        utterances=len(train),
        speakers=len(everybody_of(speakers)),
        unnamed=sum(not all(one.speaker for one in cut.supervisions) for cut in train),
        characters=len(set(whole) - {" "}),
        words=len({word for text in texts for word in text.split()}),
        chinese=len(HAN_LETTER.findall(whole)) / n_letters,
        latin=sum(letter.isascii() and letter.isalnum() for letter in whole) / n_letters,
        turkish=sum(len(re.findall("[ıİğĞ]", text_of(cut))) for cut in train) / n_letters,
        marks=sum(unicodedata.category(c)[0] == "P" for c in with_marks) / n_letters,
        seconds_per_character=sum(durations) / max(1, sum(map(len, texts))),
        shortest=float(shortest),
        longest=float(longest),
        sample_rates=_hours_by_rate(train),
        silence=_silence(train, on_progress),
        too_long=len(cuts["train"]) - len(train),
        synthetic=synthetic,
        language=language,
        splits={
            split: _size(some, speakers, set(texts))
            for split, some in cuts.items()
            if split != "train"
        },
    )


def _usable(data: Path, splits: Collection[str]) -> tuple[dict[str, list[Cut]], list[Cut]]:
    """Return the utterances of each split, and those of train that are not too long."""
    for split in ("train", "dev"):
        if split not in splits:
            raise DataError(
                f"{data}: no utterance is left for {split}: give more recordings, or name some for "
                "it in a column split of the table"
            )
    cuts = {split: list(load_cuts(data / f"{split}.jsonl.gz")) for split in splits}
    train = [cut for cut in cuts["train"] if cut.duration <= LONGEST]
    if not train:
        raise DataError(
            f"{data}: all {len(cuts['train'])} utterances for training are longer than {LONGEST:g} "
            "s: cut them to sentences, or give their parts in columns start and duration"
        )
    return cuts, train


def _hours_by_rate(cuts: Sequence[Cut]) -> dict[int, float]:
    hours = dict.fromkeys(sorted({cut.sampling_rate for cut in cuts}), 0.0)
    for cut in cuts:
        hours[cut.sampling_rate] += cut.duration / 3600
    return hours


def _said(cut: Cut) -> str:
    """Return a normalized text without punctuation, which takes no time to say."""
    return normalize_text(text_of(cut), punctuation="remove")


def _speakers(cuts: Sequence[Cut]) -> set[str]:
    """Return the speakers as they are named: one name may stand for several people."""
    return {one.speaker or "" for cut in cuts for one in cut.supervisions}


def _size(cuts: Sequence[Cut], trained: set[str], texts: set[str]) -> SplitSize:
    """Return the size of a split; `trained` are the speakers, `texts` the texts of training."""
    speakers = _speakers(cuts)
    return SplitSize(
        utterances=len(cuts),
        speakers=len(everybody_of(speakers)),
        is_unseen=all(map(names_all, speakers | trained)) and not in_both(speakers, trained),
        known_texts=sum(_said(cut) in texts for cut in cuts) / len(cuts),
    )


def _silence(cuts: Sequence[Cut], on_progress: Callable[[float], None]) -> float:
    """Return the share of quiet frames in some recordings, drawn at random."""
    sample = random.Random(1).sample(list(cuts), min(SAMPLED, len(cuts)))
    quiet, n_frames = 0, 0
    for n_done, cut in enumerate(sample, 1):
        try:
            wave_N = read_wave(cut, cut.sampling_rate).numpy()
        except AudioError:
            continue  # which training reports and skips
        size = round(_FRAME_SECONDS * cut.sampling_rate)
        frames = wave_N[: len(wave_N) // size * size].reshape(-1, size)
        loudness = np.sqrt(np.square(frames, dtype=np.float64).mean(1))
        quiet += int((loudness <= _SILENCE * loudness.max(initial=0.0)).sum())
        n_frames += len(frames)
        on_progress(n_done)
    return quiet / max(1, n_frames)
