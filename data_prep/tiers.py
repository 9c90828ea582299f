"""Choose the transcript among the tiers of annotations, such as those of Praat and ELAN."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from asr.errors import DataError
from data_prep.columns import plain
from data_prep.subtitles import Part

# What people call the tier with the transcript, and others that may be the only ones with text.
_TEXT = {"text", "sentence", "sentences", "transcript", "transcription", "transcriptions",
         "utterance", "utterances", "orthography", "phrase", "phrases"}  # fmt: skip
_OTHER = {"phone", "phones", "phoneme", "phonemes", "segment", "segments", "syllable", "syllables",
          "word", "words", "silence", "silences", "pauses", "tones", "note", "notes", "comment",
          "comments", "gloss", "glosses", "translation", "translations"}  # fmt: skip


class Tier(NamedTuple):
    """The texts of one tier without empty ones, whose they are if that is known, and its type."""

    name: str
    parts: list[Part]
    speaker: str = ""
    kind: str = ""


def parts_of(tiers: Sequence[Tier], named: str | None) -> list[Part]:
    """Return the parts of the transcript: of the tiers with a name, or else of a type, if given.

    Else of those that have a usual name or type, or of the only one with text; of several only if
    they are of one type and each is of another speaker. Raises DataError where there is no such
    tier, or where one with text alone has likely no transcript.
    """
    wanted = {plain(named)} if named else _TEXT
    used = [tier for tier in tiers if plain(tier.name) in wanted]
    used = used or [tier for tier in tiers if plain(tier.kind) in wanted]
    if named and not used:
        raise DataError(f"it has no tier {named}, only {_names(tiers)}")
    if not named:
        is_guess = not used
        used = used or [tier for tier in tiers if tier.parts]
        speakers, kinds = {tier.speaker for tier in used} - {""}, {tier.kind for tier in used}
        is_unclear = len(used) > 1 and (len(speakers) < len(used) or len(kinds) > 1)
        if is_unclear or (is_guess and any(_OTHER & set(_words(tier.name)) for tier in used)):
            raise DataError(f"it has {_names(tiers)}: name the tier of the text by --text-column")
    found = [part._replace(speaker=tier.speaker) for tier in used for part in tier.parts]
    return sorted(found, key=lambda part: part.line)


def _words(name: str) -> list[str]:
    return re.split(r"[\W_]+", name.lower())


def _names(tiers: Sequence[Tier]) -> str:
    return ", ".join(f"{tier.name} ({tier.kind})" if tier.kind else tier.name for tier in tiers)
