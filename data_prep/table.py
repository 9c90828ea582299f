"""Recordings of one's own and a table of their transcripts, as a corpus with speakers kept apart.

Files that libsndfile does not read (m4a, webm, mp4, aac) become FLAC beside the cuts.
"""

import logging
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from asr.errors import AudioError, DataError
from asr.transcription.jobs import SUFFIXES
from data_prep.convert import SUFFIXES as CONVERTED
from data_prep.convert import to_flac
from data_prep.corpus_writer import LeftOut, Report, Utterance, write_corpus
from data_prep.transcripts import Line, read_transcripts

log = logging.getLogger(__name__)

_SPLITS = {"train": "train", "training": "train", "dev": "dev", "valid": "dev", "val": "dev",
           "validation": "dev", "test": "test", "testing": "test", "eval": "test"}  # fmt: skip
_MOST_SAID = 5


def prepare(
    recordings: Path,
    transcripts: Path,
    out: Path,
    *,
    columns: Mapping[str, str] | None = None,
    dev: float = 0.1,
    test: float = 0.1,
    seed: int = 1,
    jobs: int | None = None,
) -> Report:
    """Write the cuts of a folder of recordings and its table to `out`.

    `dev` and `test` are shares of the utterances. Where the table has no column of splits, whole
    speakers go to dev and test; with fewer than three speakers utterances do, which is said.
    Raises DataError where the table cannot be read or nothing in it can be used.
    """
    if not recordings.is_dir():
        raise DataError(f"{recordings}: there is no such folder: give the folder of the recordings")
    table = read_transcripts(transcripts, columns)
    if table.encoding != "utf-8":
        log.warning("%s is read as %s: save it as UTF-8 if its text looks wrong",
                    table.path, table.encoding)  # fmt: skip
    left_out = [LeftOut(f"line {n}", "", "", "bad_row") for n in table.faults]
    said = [f"{table.path}, line {n}: {what}" for n, what in table.faults.items()]
    files, utterances = _Files(recordings), list[tuple[Line, Utterance]]()
    for line in table.lines:
        path = files.find(line.audio)
        if path is None:
            left_out.append(LeftOut(f"line {line.number}", "", line.audio, "missing"))
            said.append(f"{table.path}, line {line.number}: {line.audio} is not in {recordings}")
            continue
        utterances.append((line, _utterance(line, path, recordings)))
    _say(said)
    if not utterances:
        raise DataError(
            f"{table.path}: none of its {len(table.lines)} recordings is in {recordings}: check "
            "the folder, and which column holds the files (--audio-column)"
        )
    splits = _split(utterances, dev, test, seed)
    converted = {
        name: _converted(found, name, out, left_out) for name, found in splits.items() if found
    }
    return write_corpus(converted, out, corpus=recordings.name, left_out=left_out, jobs=jobs)


def _utterance(line: Line, path: Path, root: Path) -> Utterance:
    """Return an utterance, whose id is its path in the folder, and its start in a longer file."""
    name = path.relative_to(root).with_suffix("").as_posix().replace("/", "-")
    id = re.sub(r"\s", "_", name) + (f"-{line.start:.2f}" if line.seconds is not None else "")
    return Utterance(id, path, line.text, line.speaker or "", line.start, line.seconds)


class _Files:
    """The recordings below a folder, found by path, by name, or by name without suffix."""

    def __init__(self, root: Path) -> None:
        self.by_path: dict[str, Path] = {}
        self.by_name: dict[str, Path | None] = {}
        for path in sorted(root.rglob("*")):
            if path.suffix.lower() in SUFFIXES | CONVERTED and path.is_file():
                within = path.relative_to(root)
                for key in (within.as_posix(), within.with_suffix("").as_posix()):
                    self.by_path.setdefault(key, path)
                for key in (path.name, path.stem):  # None where it is the name of several
                    known = self.by_name.setdefault(key, path)
                    self.by_name[key] = path if known == path else None

    def find(self, audio: str) -> Path | None:
        """Return the file that a table means; files outside of the folder are not looked at.

        The end of a path will do: a table may have been written on another computer.
        """
        wanted, slash = audio.replace("\\", "/"), "/"
        while slash:
            if wanted in self.by_path:
                return self.by_path[wanted]
            name = wanted
            _, slash, wanted = wanted.partition("/")
        return self.by_name.get(name)


def _split(
    utterances: Sequence[tuple[Line, Utterance]], dev: float, test: float, seed: int
) -> dict[str, list[Utterance]]:
    """Return the utterances of train, dev and test: as the table says, else by speaker."""
    splits: dict[str, list[Utterance]] = {"train": [], "dev": [], "test": []}
    named = [(_SPLITS.get((line.split or "").lower()), one) for line, one in utterances]
    if all(name for name, _ in named):
        for name, one in named:
            splits[name or ""].append(one)
        return splits
    groups = defaultdict(list)
    n_speakers = len({one.speaker for _, one in named if one.speaker})
    by_speaker = n_speakers >= 3 and all(one.speaker for _, one in named)
    for _, one in named:
        groups[one.speaker if by_speaker else one.id].append(one)
    if not by_speaker:
        log.warning(
            "speakers are not known to be three or more, so dev and test hold recordings of the "
            "training speakers: their CER says nothing about other people"
        )
    order = sorted(groups)
    random.Random(seed).shuffle(order)
    order.sort(key=lambda name: len(groups[name]) > 2 * max(dev, test) * len(named))
    for name in order:
        room = {"test": test, "dev": dev}
        into = next(
            (s for s, share in room.items() if len(splits[s]) < share * len(named)), "train"
        )
        splits[into] += groups[name]
    return splits


def _converted(
    utterances: list[Utterance], split: str, out: Path, left_out: list[LeftOut]
) -> list[Utterance]:
    """Return the utterances, those of formats that libsndfile does not read as FLAC in `out`."""
    found = []
    for one in utterances:
        if one.path.suffix.lower() not in CONVERTED:
            found.append(one)
            continue
        flac = out / "audio" / f"{one.id}.flac"
        try:
            to_flac(one.path, flac)
            found.append(replace(one, path=flac))
        except AudioError as error:
            _say([str(error)])
            left_out.append(LeftOut(one.id, split, str(one.path), error.code))
    return found


def _say(sentences: list[str]) -> None:
    for sentence in sentences[:_MOST_SAID]:
        log.warning("%s: left out", sentence)
    if len(sentences) > _MOST_SAID:
        log.warning("and %d more, listed in left_out.tsv", len(sentences) - _MOST_SAID)
