"""Choose the transcript among the tiers of annotations, such as those of Praat and ELAN."""

from collections.abc import Sequence
from typing import NamedTuple

from asr.errors import DataError
from data_prep.columns import plain
from data_prep.subtitles import Part

# What people call the tier with the transcript.
_TEXT = {"text", "sentence", "sentences", "transcript", "transcription", "transcriptions",
         "utterance", "utterances", "orthography", "phrase", "phrases"}  # fmt: skip


class Tier(NamedTuple):
    """The texts of one tier without empty ones, whose they are if that is known, and its type."""

    name: str
    parts: list[Part]
    speaker: str = ""
    kind: str = ""


def parts_of(tiers: Sequence[Tier], named: str | None) -> list[Part]:
    """Return the parts of the transcript: of the tiers with a name or of a type, if one is given.

    Else of those that have a usual name, or of the only one with text; of several only if each is
    of another speaker. Raises DataError where there is no such tier.
    """
    names = ", ".join(dict.fromkeys(tier.name for tier in tiers))
    if named:
        used = [tier for tier in tiers if named in (tier.name, tier.kind)]
        if not used:
            raise DataError(f"it has no tier {named}, only {names}")
    else:
        used = [tier for tier in tiers if tier.parts]
        used = [tier for tier in used if _TEXT & {plain(tier.name), plain(tier.kind)}] or used
        if len(used) > 1 and len({tier.speaker for tier in used} - {""}) < len(used):
            raise DataError(f"it has the tiers {names}: name that of the text by --text-column")
    found = [part._replace(speaker=tier.speaker) for tier in used for part in tier.parts]
    return sorted(found, key=lambda part: part.line)
