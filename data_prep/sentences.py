"""Synthetic speech of sentences without recordings, for training beside recordings of people.

Each is spoken once, by the voices in turn. No person speaks in it, and it has neither dev nor test.
"""

import logging
import random
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from asr.errors import ConfigError, DataError
from asr.normalization import normalize_text
from data_prep.synthesis import VOICES, draw, write_spoken_corpus
from data_prep.words import check_language, language_of, read_entries

if TYPE_CHECKING:
    from data_prep.corpus_writer import Report

log = logging.getLogger(__name__)

_MEASURED = ("dev", "test")
# Recordings of the corpus may be by URL: only its texts are read.
_ANY_URL = ("s3:", "gs:", "gcs:", "az:", "abfs:", "http:", "https:", "memory:", "file:")


def prepare(
    sentences: Path,
    corpus: Path,
    out: Path,
    *,
    language: str | None = None,
    seed: int = 1,
    jobs: int | None = None,
) -> "Report":
    """Synthesize the sentences of a file, one a line, in `out`/wav; write their cuts and report.

    `corpus` is a folder of `asr prepare`. A sentence that is the text of an utterance of its dev or
    test is not spoken: a model must not have learned it. The same seed gives the same bytes.
    Recordings of an earlier run, even a killed one, are kept. Raises DataError where no sentence is
    left or a corpus cannot be read, ConfigError where `out` holds a corpus of recordings, or where
    espeak-ng lacks the language or its letters.
    """
    if any((out / f"{split}.jsonl.gz").exists() for split in _MEASURED):
        raise ConfigError(f"{out}: holds another corpus, with dev or test: give a new folder")
    entries, held_out = read_entries(sentences), _held_out(corpus)
    spoken = [entry for entry in entries if _letters(entry) not in held_out]
    if n := len(entries) - len(spoken):
        log.warning("%s: %d of %d sentences are in dev or test of %s: they are not spoken",
                    sentences, n, len(entries), corpus)  # fmt: skip
    if not spoken:
        raise DataError(f"{sentences}: all of it is in dev or test: give other sentences")
    language = language or language_of(spoken)
    check_language(spoken, language)
    log.info("synthetic voices speak %d sentences in %s", len(spoken), language)
    rng, voices = random.Random(seed), VOICES["train"].split()
    lines = [draw(rng, s, voices[i % len(voices)], language) for i, s in enumerate(spoken)]
    return write_spoken_corpus({"train": lines}, out, corpus="sentences", jobs=jobs)


def _held_out(corpus: Path) -> set[str]:
    from asr.data.manifest import load_cuts, text_of

    manifests = [corpus / f"{split}.jsonl.gz" for split in _MEASURED]
    there = [path for path in manifests if path.exists()]
    if not there:
        raise DataError(
            f"{corpus}: has no dev.jsonl.gz: give the folder of `asr prepare` beside which the "
            "sentences are to train"
        )
    cuts = [cut for path in there for cut in load_cuts(path, _ANY_URL)]
    parts = (one.text or "" for cut in cuts for one in cut.supervisions)
    return {*map(_letters, map(text_of, cuts)), *map(_letters, parts)}


def _letters(text: str) -> str:
    """Return the letters and digits alone; i is that of Turkish with or without its dot."""
    lower = normalize_text(text, "lower").replace("ı", "i").replace("\u0307", "")
    return "".join(c for c in lower if unicodedata.category(c)[0] in "LMN")
