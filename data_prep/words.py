"""A corpus of synthetic speech from a list of words or phrases alone, synthesized by espeak-ng.

No person speaks in it. Every entry of the list is an utterance, spoken by many voices; those of dev
and test are not in train.
"""

import logging
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

from asr.errors import ConfigError, DataError
from asr.normalization import HAN_LETTER, normalize_text
from data_prep.synthesis import VOICES, Line, draw, has_language, write_spoken_corpus
from data_prep.text_file import read_text

if TYPE_CHECKING:
    from data_prep.corpus_writer import Report

log = logging.getLogger(__name__)

MOST_ENTRIES, LONGEST = 20_000, 200  # characters of an entry
_TURKISH = 0.2  # share of entries with a letter that Turkish has, and few others
_KANA = 0.2  # share with kana, of the entries with kana or Han letters
_LATIN = 0.25  # weight of an entry with Latin letters: voices of other scripts read them too
_TRAIN_TAKES, _OTHER_TAKES = 6000, 400  # of all entries together, but:
_LEAST_TAKES, _MOST_TAKES = 4, 120  # of each entry in train
# espeak-ng's language by letters that are in no other; other Latin ones are taken for English.
_SCRIPTS = {"[\u3040-\u30ff]": "ja", "[\uac00-\ud7af]": "ko", HAN_LETTER.pattern: "cmn",
            "[\u0400-\u04ff]": "ru", "[\u0370-\u03ff]": "el", "[\u0600-\u06ff]": "ar",
            "[\u0590-\u05ff]": "he", "[\u0900-\u097f]": "hi", "[\u0e00-\u0e7f]": "th",
            "[A-Za-z]": "en-us"}  # fmt: skip


def read_entries(path: Path) -> list[str]:
    """Return the entries of a list, one a line, each once.

    Raises DataError where there are none, too many, or one that is too long.
    """
    text, encoding = read_text(path)
    if encoding != "utf-8":
        log.warning("%s is read as %s: save it as UTF-8 if its text looks wrong", path, encoding)
    lines = text.splitlines()
    entries = {normalize_text(line, "lower"): normalize_text(line, "keep") for line in lines}
    entries.pop("", None)
    if not entries:
        raise DataError(f"{path}: is empty: write a word or phrase in each line")
    if len(entries) > MOST_ENTRIES:
        raise DataError(
            f"{path}: has {len(entries):,} entries, {MOST_ENTRIES:,} are possible: give a shorter "
            "list"
        )
    for entry in entries.values():
        if len(entry) > LONGEST:
            raise DataError(
                f"{path}: an entry has {len(entry)} characters, {LONGEST} are possible: write one "
                f"phrase in each line ({entry:.40}...)"
            )
    return list(entries.values())


def language_of(entries: list[str]) -> str:
    """Return espeak-ng's name of the likeliest language, that of the letters in most entries.

    Letters of other scripts count more than Latin ones. Raises ConfigError for unknown letters.
    """
    if _count("[ıİğĞ]", entries) >= _TURKISH * len(entries):
        return "tr"
    counts = {language: _count(letters, entries) for letters, language in _SCRIPTS.items()}
    eastern = _count(f"[\u3040-\u30ff]|{HAN_LETTER.pattern}", entries)
    # Japanese has words of kanji alone; names of Latin letters are in texts of all languages.
    counts["ja"] = eastern if counts["ja"] >= _KANA * eastern else 0
    n_latin = counts["en-us"]
    counts["en-us"] *= _LATIN
    likeliest = max(counts, key=lambda language: counts[language])
    expected = {likeliest, "cmn" if likeliest == "ja" else ""}
    expected |= {"en-us"} if n_latin <= counts[likeliest] else set()
    others = [
        entry for entry in entries for letters, language in _SCRIPTS.items()
        if language not in expected and re.search(letters, entry)
    ]  # fmt: skip
    if others:
        log.warning("%d of %d entries, such as %s, have other letters than those of %s, which is "
                    "spoken: give --language for another", len(others), len(entries), others[0],
                    likeliest)  # fmt: skip
    if counts[likeliest]:
        return likeliest
    raise ConfigError(
        f"--language: is not known from {entries[0]:.40}: give espeak-ng's name of the language, "
        "such as ka for Georgian"
    )


def _count(letters: str, entries: list[str]) -> float:
    """Return how many entries have one of these letters."""
    return sum(bool(re.search(letters, entry)) for entry in entries)


def prepare(
    entries: list[str], out: Path, *, language: str, seed: int = 1, jobs: int | None = None
) -> "Report":
    """Synthesize the entries of a list in `out`/wav; write their cuts and report.

    The same seed gives the same bytes. Recordings of an earlier run, even a killed one, are kept.
    Raises DataError where nothing is spoken, ConfigError where espeak-ng lacks the language or its
    letters.
    """
    check_language(entries, language)
    lines = script(entries, language, seed)
    return write_spoken_corpus(lines, out, corpus="words", jobs=jobs)


def check_language(entries: list[str], language: str) -> None:
    """Raise ConfigError where espeak-ng lacks the language or its letters."""
    if not has_language(language):
        raise ConfigError(
            f"--language {language}: espeak-ng has none of this name: give another, such as en-us"
        )
    kanji = language == "ja" and next(filter(HAN_LETTER.search, entries), None)
    if kanji:
        raise ConfigError(
            f"{kanji:.40}: has kanji, which espeak-ng does not read: write the words in kana"
        )


def script(entries: list[str], language: str, seed: int) -> dict[str, list[Line]]:
    """Return the lines of each split: every entry in train, and as many as fit in the others."""
    rng, n = random.Random(seed), len(entries)
    n_takes = min(max(_LEAST_TAKES, _TRAIN_TAKES // n), _MOST_TAKES)
    n_others = min(max(1, _OTHER_TAKES // n), 5)
    lines: dict[str, list[Line]] = {}
    for split, names in VOICES.items():
        voices, texts = names.split(), entries * (n_takes if split == "train" else n_others)
        if split != "train":
            texts = rng.sample(texts, min(len(texts), _OTHER_TAKES))
        first = rng.randrange(len(voices))
        lines[split] = [
            # An entry's takes are `len(entries)` apart: each is of the next voice.
            draw(rng, text, voices[(first + i % n + i // n) % len(voices)], language)
            for i, text in enumerate(texts)
        ]
    return lines
