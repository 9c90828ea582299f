"""Recordings of one's own and a table of their transcripts, as a corpus with speakers kept apart.

`data_prep.transcripts` reads the table: its formats and the names of its columns. Files that
libsndfile does not read (m4a, webm, mp4, aac) become FLAC beside the cuts.
"""

import logging
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from pathlib import Path, PurePath, PurePosixPath
from typing import cast

import soundfile as sf

from asr.audio.media import is_installed
from asr.errors import AudioError, ConfigError, DataError
from asr.runtime.files import remove_stale
from asr.runtime.storage import RemoteFile
from asr.runtime.threads import usable_cpus
from asr.tokenizer import normalize_text
from data_prep.convert import needs_conversion, to_flac
from data_prep.corpus_writer import LeftOut, Report, write_corpus
from data_prep.cuts import Cluster, Utterance
from data_prep.recordings import Recordings, key_of
from data_prep.remote import folder_for
from data_prep.transcripts import Line, Transcripts, read_transcripts

log = logging.getLogger(__name__)

_SPLITS = {"train": "train", "training": "train", "dev": "dev", "valid": "dev", "val": "dev",
           "validation": "dev", "test": "test", "testing": "test", "eval": "test"}  # fmt: skip
_MOST_SAID = 5
_MOST_UNNAMED = 0.5  # of the utterances, where speakers are kept apart
_SEED = 1
_CONVERTED = "audio"  # folder in `out`

Pairs = Sequence[tuple[Line, Utterance]]
Splits = dict[str, list[Utterance]]


def prepare(
    recordings: Path | str,
    transcripts: Path,
    out: Path | str,
    *,
    columns: Mapping[str, str] | None = None,
    dev: float = 0.1,
    test: float = 0.1,
    jobs: int | None = None,
    cluster: Cluster | None = None,
) -> Report:
    """Write the cuts of a folder of recordings and its table to `out`; strings are URLs.

    `dev` and `test` are shares of the utterances. Where the table has no column of splits, whole
    speakers go to dev and test; with too few speakers whole recordings do, which is said. Raises
    DataError where the table cannot be read or nothing in it can be used.
    """
    if dev + test >= 1:
        raise ConfigError(f"dev and test are {dev:g} and {test:g} of all: leave some for training")
    if isinstance(recordings, Path) and not recordings.is_dir():
        raise DataError(f"{recordings}: there is no such folder: give the folder of the recordings")
    table = read_transcripts(transcripts, columns)
    if table.encoding != "utf-8":
        log.warning("%s is read as %s: save it as UTF-8 if its text looks wrong",
                    table.path, table.encoding)  # fmt: skip
    left_out: list[LeftOut] = []
    with folder_for(out) as folder:
        pairs = _utterances(table, recordings, folder, left_out)
        splits = _as_the_table_says(table.path, pairs, left_out)
        splits = splits or _split(pairs, {"test": test, "dev": dev})
        copies = out / _CONVERTED if isinstance(out, Path) else None
        usable = _converted(splits, recordings, copies, left_out, jobs)
        name = PurePosixPath(str(recordings)).name
        report = write_corpus(
            usable, folder, corpus=name, left_out=left_out, jobs=jobs, cluster=cluster
        )
    for split in ("train", "dev"):  # those of the table may all be unreadable
        if split not in report.splits or not report.splits[split].utterances:
            log.warning("no utterance is in %s, which training needs", split)
    return report


def _utterances(
    table: Transcripts, recordings: Path | str, out: Path, left_out: list[LeftOut]
) -> Pairs:
    """Return the lines whose recordings are there, each with its utterance; list the others."""
    files = Recordings(recordings, table.path.parent, out / _CONVERTED)
    found, said, speakers = [], [], dict[str, str]()
    owners = dict[str, Path | RemoteFile]()
    for number, fault in table.faults.items():
        left_out.append(LeftOut(f"line {number}", "", str(table.path), fault.reason))
        said.append(f"{table.path}, line {number}: {fault.what}")
    for line in table.lines:
        try:
            path = files.find(line.audio)
        except DataError as error:
            left_out.append(LeftOut(f"line {line.number}", "", line.audio, "missing"))
            said.append(f"{table.path}, line {line.number}: {error}")
            continue
        # A person is one, however the name is written.
        speaker = speakers.setdefault(key_of(line.speaker or ""), line.speaker or "")
        one = _utterance(line, speaker, path, files.within[path])
        if owners.setdefault(one.id, path) != path:  # a-b.wav and a/b.wav, a.wav and a.flac
            of = sha256(os.fsencode(files.within[path])).hexdigest()[:8]
            one = replace(one, id=f"{one.id}-{of}")
        found.append((line, one))
    pairs = _of_one_text(found, table.path, left_out, said)
    _say(said, is_listed=bool(pairs))
    if found and not pairs:
        raise DataError(f"{table.path}: gives every recording several texts: keep one line of each")
    if not pairs:
        raise DataError(
            f"{table.path}: none of its {len(table.lines)} recordings is in {recordings}: check "
            f"the folder, and which column holds the files (--audio-column; it has "
            f"{', '.join(table.columns.values()) or 'no header'})"
        )
    return pairs


def _of_one_text(found: Pairs, table: Path, left_out: list[LeftOut], said: list[str]) -> Pairs:
    """Return the lines but those that give one part of a recording several texts; list these."""
    texts: dict[str, set[str]] = defaultdict(set)
    for line, one in found:
        texts[one.id].add(normalize_text(line.text))
    for line, one in found:
        if len(texts[one.id]) > 1:
            left_out.append(LeftOut(one.id, "", str(one.path), "several_texts"))
            said.append(
                f"{table}, line {line.number}: another line has another text for {line.audio}, and "
                "no columns start and duration (or end) tell which part has which"
            )
    return [(line, one) for line, one in found if len(texts[one.id]) == 1]


def _utterance(line: Line, speaker: str, path: Path | RemoteFile, within: PurePath) -> Utterance:
    """Return an utterance, whose id is its path in the folder, and its start in a longer file."""
    name = within.with_suffix("").as_posix().replace("/", "-")
    id = re.sub(r"\s", "_", name) + (f"-{line.start:.2f}" if line.seconds is not None else "")
    return Utterance(id, path, line.text, speaker, line.start, line.seconds)


def _as_the_table_says(table: Path, pairs: Pairs, left_out: list[LeftOut]) -> Splits | None:
    """Return the splits of the table, and list the lines without one; None if it names none."""
    named = [(line.split, utterance) for line, utterance in pairs if line.split]
    if unknown := [split for split, _ in named if split.lower() not in _SPLITS]:
        log.warning("the table's splits are not used: %s is none of %s",
                    unknown[0], ", ".join(_SPLITS))  # fmt: skip
    if unknown or not named:
        return None
    splits: Splits = {"train": [], "dev": [], "test": []}
    for split, utterance in named:
        splits[_SPLITS[split.lower()]].append(utterance)
    without = [(line, one) for line, one in pairs if not line.split]
    if without and not splits["train"]:
        raise DataError(
            f"{table}, line {without[0][0].number}: its cell of the column of splits is empty, and "
            "no line is of train: write train into the empty cells"
        )
    left_out.extend(LeftOut(one.id, "", str(one.path), "no_split") for _, one in without)
    empty = "its cell of the column of splits is empty"
    _say([f"{table}, line {line.number}: {empty}" for line, _ in without])
    trained = {one.speaker for one in splits["train"] if one.speaker}
    both = trained & {one.speaker for one in (*splits["dev"], *splits["test"])}
    if both:
        log.warning(
            "as the table says, speakers of train are in dev or test (%d): the CER says little "
            "about other people", len(both),
        )  # fmt: skip
    return splits


def _split(pairs: Pairs, shares: Mapping[str, float]) -> Splits:
    """Return the utterances of train, dev and test: by speaker, else by recording, else each.

    Some of no named speaker are in train where most have one.
    """
    utterances = [one for _, one in pairs]
    n_splits = 1 + sum(share > 0 for share in shares.values())
    speakers, paths = {one.speaker for one in utterances} - {""}, {one.path for one in utterances}
    unnamed = [one for one in utterances if not one.speaker]
    by_speaker = len(speakers) >= n_splits and len(unnamed) <= _MOST_UNNAMED * len(utterances)
    if by_speaker and unnamed:
        log.warning("%d lines name no speaker: they are in train, and may be of speakers of dev "
                    "and test", len(unnamed))  # fmt: skip
        utterances = [one for one in utterances if one.speaker]
    if not by_speaker and n_splits > 1:
        log.warning(
            "the table does not name %d speakers or more, and one for each recording, so dev and "
            "test may hold the speakers of train: their CER says nothing about other people",
            n_splits,
        )
    groups: dict[str, list[Utterance]] = defaultdict(list)
    most = 2 * max(shares.values()) * len(utterances)
    sizes = Counter(str(one.path) for one in utterances).values()
    # Few long recordings are divided: they would leave too little for train.
    by_path = sum(n for n in sizes if n <= most) >= sum(shares.values()) * len(utterances)
    for one in utterances:
        alone = str(one.path) if len(paths) >= n_splits and by_path else one.id
        groups[one.speaker if by_speaker else alone].append(one)
    order = sorted(groups)
    random.Random(_SEED).shuffle(order)
    largest = max(map(len, groups.values()))
    order.sort(key=lambda name: (len(groups[name]) > most, len(groups[name]) == largest))
    splits: Splits = {"train": unnamed if by_speaker else [], "dev": [], "test": []}
    for name in order[:-1]:
        fill = {s: len(splits[s]) / (a * len(utterances)) for s, a in shares.items() if a > 0}
        emptiest = min(fill, key=lambda split: fill[split], default="train")
        has_room = fill.get(emptiest, 1.0) < 1 and (len(groups[name]) <= most or not fill[emptiest])
        splits[emptiest if has_room else "train"] += groups[name]
    splits["train"] += groups[order[-1]]
    for split, share in shares.items():
        held = len(splits[split]) / len(utterances)
        if held > 2 * share > 0:
            log.warning(
                "%s has %.0f %% of the utterances in place of %.0f %%, for a %s is not divided: "
                "with %sa column `split` more are left for train",
                split, 100 * held, 100 * share,
                "speaker" if by_speaker else "recording",
                "--test 0 or " if shares.get("test") else "",
            )  # fmt: skip
    return splits


def _converted(
    splits: Splits, root: Path | str, copies: Path | None, left_out: list[LeftOut],
    jobs: int | None,
) -> Splits:  # fmt: skip
    """Return the splits that are not empty, with FLAC in `copies` where libsndfile reads no file.

    Recordings by URL stay as they are. Raises ConfigError where PyAV is needed and not installed,
    or there is no folder for copies; DataError where a copy cannot be written.
    """
    paths = list(dict.fromkeys(one.path for one in chain(*splits.values())))
    here = [path for path in paths if isinstance(path, Path) and isinstance(root, Path)]
    foreign = [path for path in here if needs_conversion(path)]
    found: dict[Path | RemoteFile, Path | AudioError] = {}
    if foreign:
        _check_convertible(foreign, copies)
        assert copies and isinstance(root, Path)
        copy_of = {path: copies / f"{path.relative_to(root)}.flac" for path in foreign}
        for folder in {copy.parent for copy in copy_of.values()}:
            remove_stale(folder)
        with ThreadPoolExecutor(jobs or usable_cpus()) as pool:
            converted = pool.map(_convert, foreign, copy_of.values())
            found = dict(zip(foreign, converted, strict=True))
    _say([str(error) for error in found.values() if isinstance(error, AudioError)])
    usable: Splits = {split: [] for split, utterances in splits.items() if utterances}
    for split in usable:
        for one in splits[split]:
            copy = found.get(one.path)
            if isinstance(copy, AudioError):
                left_out.append(LeftOut(one.id, split, str(one.path), copy.code))
            elif copy:
                source = cast(Path, one.path)
                usable[split].append(replace(one, path=copy, converted_from=source))
            else:
                usable[split].append(one)
    return usable


def _check_convertible(foreign: Sequence[Path], copies: Path | None) -> None:
    """Raise ConfigError where recordings cannot be converted."""
    if not is_installed():
        raise ConfigError(
            f"{foreign[0]}: is one of {len(foreign)} recordings that PyAV decodes, which is not "
            "installed: pip install 'lrt-asr[media]'"
        )
    if copies is None:
        raise ConfigError(
            f"{foreign[0]}: is one of {len(foreign)} recordings that must be converted, and the "
            "copies need a folder: give one as OUT_DIR in place of a URL"
        )


def _convert(path: Path, flac: Path) -> Path | AudioError:
    """Write a recording as FLAC; return the copy, or why there is none."""
    try:
        to_flac(path, flac)
    except AudioError as error:
        return error
    except (OSError, sf.LibsndfileError) as error:
        raise DataError(
            f"{flac}: cannot be written ({error}): free some space or choose another folder"
        ) from error
    return flac


def _say(sentences: list[str], is_listed: bool = True) -> None:
    for sentence in sentences[:_MOST_SAID]:
        log.warning("%s: left out", sentence)
    if len(sentences) > _MOST_SAID:
        listed = ", listed in left_out.tsv" if is_listed else ""
        log.warning("and %d more%s", len(sentences) - _MOST_SAID, listed)
