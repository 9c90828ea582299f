"""Find the columns of a table by their names."""

import re
from collections.abc import Mapping
from pathlib import Path

from asr.errors import DataError

# The names of columns by what they hold, in the order of preference. They are those of Common
# Voice, LJSpeech, NeMo, Hugging Face's audiofolder and of tables that people write themselves.
NAMES = {
    "audio": ("audio_filepath", "audio_file", "audio_path", "file_name", "filename", "audio",
              "path", "file", "wav", "recording", "clip", "utterance_id", "utteranceid", "id"),
    "text": ("text", "sentence", "transcript", "transcription", "normalized_text", "label", "words",
             "word"),
    "speaker": ("speaker", "speaker_id", "speaker_name", "client_id", "user_id", "spk", "spk_id",
                "speakerid", "reader"),
    "split": ("split", "subset", "set", "partition"),
    "start": ("offset", "start", "start_time", "begin", "onset"),
    "end": ("end", "stop", "end_time"),
    "seconds": ("duration", "seconds"),
}  # fmt: skip
TIMES = ("start", "end", "seconds")
# Beside an onset, as in phonetics, an offset is an end and not a start.
_OF_ONSETS = {"start": NAMES["start"][1:], "end": (*NAMES["end"], "offset")}


def plain(name: str) -> str:
    """Return the name of a column as it is compared: `Speaker ID` is `speaker_id`."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def find_columns(path: Path, header: list[str], named: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each kind. Raises DataError where a needed or named one is missing.

    `named` maps kinds to the columns that the user has named.
    """
    lower = {plain(name): name for name in reversed(header)}
    found: dict[str, str] = {}
    has_onsets = {"onset", "offset"} <= lower.keys()
    for kind, names in (NAMES | (_OF_ONSETS if has_onsets else {})).items():
        given, taken = named.get(kind), {*named.values(), *found.values()}
        name = next((lower[n] for n in names if n in lower and lower[n] not in taken), None)
        if given:
            name = given if given in header else None
        if name is None and (given or kind in ("audio", "text")):
            what = f"no column {given}" if given else f"no column that is known to hold the {kind}"
            raise DataError(
                f"{path}: has {what}, only {', '.join(header)}: name it with --{kind}-column"
            )
        if name is not None:
            found[kind] = name
    return found
