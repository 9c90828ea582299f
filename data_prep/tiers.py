"""Choose the transcript among the tiers of annotations, such as those of Praat and ELAN."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from asr.errors import DataError
from data_prep.columns import plain
from data_prep.subtitles import Part

# Usual names of the tier with the transcript, and of others that may be the only ones with text.
_TEXT = {"text", "sentence", "sentences", "transcript", "transcription", "transcriptions",
         "utterance", "utterances", "orthography", "phrase", "phrases"}  # fmt: skip
_OTHER = {"phone", "phones", "phoneme", "phonemes", "segment", "segments", "syllable", "syllables",
          "word", "words", "silence", "silences", "pauses", "tones", "note", "notes", "comment",
          "comments", "gloss", "glosses", "translation", "translations"}  # fmt: skip


class Tier(NamedTuple):
    """The texts of one tier without empty ones, its speaker if known, and its type (`kind`)."""

    name: str
    parts: list[Part]
    speaker: str = ""
    kind: str = ""


def parts_of(tiers: Sequence[Tier], named: str | None) -> list[Part]:
    """Return the parts of the tiers that have the transcript, in the order of their lines.

    With `named`, these are the tiers with this name, or else with this type. Otherwise they are the
    tiers with a usual name or type, or else all with text. Without `named`, several tiers are taken
    only if they are of one type and each is of another speaker. Raises DataError where no tier is
    called so, or it is unclear which tiers have the transcript.
    """
    wanted = {plain(named)} if named else _TEXT
    used = [tier for tier in tiers if plain(tier.name) in wanted]
    used = used or [tier for tier in tiers if plain(tier.kind) in wanted]
    if named and not used:
        raise DataError(f"it has no tier {named}, only {_names(tiers)}")
    chosen = used or tiers
    if not named:
        known, chosen = ([tier for tier in some if tier.parts] for some in (tiers, chosen))
        if chosen and _is_unclear(chosen, known, is_guess=not used):
            raise DataError(f"it has {_names(known)}: name the tier of the text by --text-column")
    found = [part._replace(speaker=tier.speaker) for tier in chosen for part in tier.parts]
    return sorted(found, key=lambda part: part.line)


def _is_unclear(chosen: Sequence[Tier], known: Sequence[Tier], is_guess: bool) -> bool:
    """Tell whether only a person can say which of the known tiers have the transcript."""
    if is_guess and any(_OTHER & {*_words(one.name), *_words(one.kind)} for one in chosen):
        return True
    speakers, kinds = {tier.speaker for tier in chosen} - {""}, {tier.kind for tier in chosen}
    if len(chosen) > 1 and (len(speakers) < len(chosen) or len(kinds) > 1):
        return True
    others = {tier.speaker for tier in known if tier.kind in kinds} - {""}
    return bool(speakers) and others != speakers  # another person's tier has another name


def _words(name: str) -> list[str]:
    return re.split(r"[\W_]+", name.lower())


def _names(tiers: Sequence[Tier]) -> str:
    return ", ".join(f"{tier.name} ({tier.kind})" if tier.kind else tier.name for tier in tiers)
