"""What `asr new` makes a model of: recordings and their texts, or words."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from asr.cli.options import note
from asr.errors import ConfigError, DataError
from asr.schema import FrozenModel

if TYPE_CHECKING:
    from data_prep.corpus_writer import Report
    from data_prep.lines import Transcripts


class Sources(FrozenModel):
    """What a folder was made of: options by name, and the digest of what the table or list says."""

    options: dict[str, str]
    digest: str


@dataclass
class FromRecordings:
    """A folder of recordings and a table of their texts, in a language if it is told."""

    recordings: Path
    transcripts: Path
    columns: dict[str, str]
    language: str | None
    data: Path  # for the cuts
    _table: "Transcripts | None" = None

    def sources(self) -> Sources:
        """Return what is given. Raises AsrError where it cannot be read."""
        from data_prep.recordings import Recordings
        from data_prep.table import COPIES
        from data_prep.transcripts import read_transcripts

        if not self.recordings.is_dir():
            raise DataError(
                f"{self.recordings}: there is no such folder: give the folder of the recordings"
            )
        files = Recordings(self.recordings, self.data / COPIES)
        self._table = read_transcripts(self.transcripts, self.columns, files)
        # The numbers of texts beside the recordings say nothing.
        is_numbered = not self._table.places
        lines = [one if is_numbered else replace(one, number=0) for one in self._table.lines]
        options = {
            "--recordings": absolute(self.recordings),
            "--transcripts": absolute(self.transcripts),
            **{f"--{kind}-column": name for kind, name in self.columns.items()},
            **({"--language": self.language} if self.language else {}),
        }
        return Sources(options=options, digest=_digest(lines))

    def prepare(self, data: Path) -> "Report":
        """Write the cuts."""
        from data_prep.table import prepare

        assert self._table, "sources come first"
        return prepare(self.recordings, self._table, data)


class FromWords:
    """A list of words or phrases, and espeak-ng's name of their language."""

    def __init__(self, words: Path, language: str | None) -> None:
        from data_prep.words import language_of, read_entries

        self.words, self.entries = words, read_entries(words)
        self.language = language or language_of(self.entries)

    def sources(self) -> Sources:
        """Return what is given. Raises AsrError where it cannot be read."""
        options = {"--words": absolute(self.words), "--language": self.language}
        return Sources(options=options, digest=_digest(self.entries))

    def prepare(self, data: Path) -> "Report":
        """Synthesize the words and write the cuts."""
        from data_prep.words import prepare

        note(f"synthetic voices speak {self.words} in {self.language}")
        return prepare(self.entries, data, language=self.language)


def _digest(lines: Sequence[object]) -> str:
    return hashlib.sha256("".join(map(repr, lines)).encode()).hexdigest()


def absolute(path: Path) -> str:
    """Return an absolute path. Raises ConfigError where a recipe could not hold it."""
    absolute = str(path.resolve())
    try:
        absolute.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{path}: its name is not in UTF-8: rename it") from error
    return absolute
