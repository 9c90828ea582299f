"""Recordings of one's own and a table of their transcripts, as a corpus with speakers kept apart.

`data_prep.transcripts` reads the table: its formats and the names of its columns. Files that
libsndfile does not read (m4a, webm, mp4, aac), or that give no length, become FLAC beside the cuts.
"""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path, PurePath, PurePosixPath

from asr.data.people import key_of_person
from asr.errors import ConfigError, DataError
from asr.normalization import normalize_text
from asr.runtime.storage import RemoteFile
from data_prep.convert import is_mono
from data_prep.copies import converted
from data_prep.corpus_writer import LeftOut, Report, say_left_out, write_corpus
from data_prep.cuts import Cluster, Utterance
from data_prep.lines import Line, Transcripts
from data_prep.owners import owners
from data_prep.recordings import Recordings
from data_prep.remote import folder_for
from data_prep.splits import Pairs, as_the_table_says, divide, with_dev
from data_prep.transcripts import read_transcripts

log = logging.getLogger(__name__)

COPIES = "audio"  # folder in `out`


def prepare(
    recordings: Path | str,
    transcripts: Path | Transcripts,
    out: Path | str,
    *,
    columns: Mapping[str, str] | None = None,
    dev: float = 0.1,
    test: float = 0.1,
    jobs: int | None = None,
    cluster: Cluster | None = None,
) -> Report:
    """Write the cuts of a folder of recordings and its table to `out`; strings are URLs.

    The table is a path, whose columns `columns` may name, or what `read_transcripts` has read.
    `dev` and `test` are shares of the utterances. Where the table has no splits, whole speakers go
    to dev and test; with too few speakers whole recordings do, with a warning. Where its splits
    lack dev, a share of train is dev. Raises ConfigError where nothing is left for train, DataError
    where the table cannot be read or nothing in it can be used.
    """
    if dev + test >= 1:
        raise ConfigError(f"dev and test are {dev:g} and {test:g} of all: leave some for training")
    if isinstance(recordings, Path) and not recordings.is_dir():
        raise DataError(f"{recordings}: there is no such folder: give the folder of the recordings")
    left_out: list[LeftOut] = []
    with folder_for(out) as folder:
        files = Recordings(recordings, folder / COPIES)
        table = transcripts
        if isinstance(table, Path):
            table = read_transcripts(table, columns, files)
        if table.encoding != "utf-8":
            foreign = next(one for one in table.lines if one.number == table.foreign)
            place = table.short_place(foreign.number)
            log.warning("%s is read as %s: save it as UTF-8 if %s does not say: %s",
                        table.path, table.encoding, place, foreign.text)  # fmt: skip
        pairs = _utterances(table, files, left_out)
        splits = as_the_table_says(table, pairs, left_out)
        if splits:
            splits = with_dev(splits, dev)
        else:
            _say_speakers(table)
            splits = divide([one for _, one in pairs], {"test": test, "dev": dev})
        copies = out / COPIES if isinstance(out, Path) else None
        usable = converted(splits, recordings, copies, left_out, jobs)
        name = PurePosixPath(str(recordings)).name
        report = write_corpus(
            usable, folder, corpus=name, left_out=left_out, jobs=jobs, cluster=cluster
        )
    for split in ("train", "dev"):  # those of the table may all be unreadable
        if split not in report.splits or not report.splits[split].utterances:
            log.warning("no utterance is in %s, which training needs", split)
    return report


def _utterances(table: Transcripts, files: Recordings, left_out: list[LeftOut]) -> Pairs:
    """Return the lines with a recording and their utterances; add the others to `left_out`."""
    found: list[tuple[Line, Utterance]] = []
    said, speakers, why = list[str](), dict[str, str](), ""
    of_id = dict[str, tuple[Path | RemoteFile, object]]()
    for number, fault in table.faults.items():
        left_out.append(LeftOut(table.short_place(number), "", str(table.path), fault.reason))
        said.append(f"{table.place(number)}: {fault.what}")
    whose = owners(table.lines, files)
    for line in table.lines:
        try:
            path = files.find(line.audio, table.folder, whose(line))
        except DataError as error:
            left_out.append(LeftOut(table.short_place(line.number), "", line.audio, "missing"))
            said.append(f"{table.place(line.number)}: {error}")
            why = why or f"{table.short_place(line.number)}: {error}"
            continue
        # A person is one, however the name is written.
        speaker = speakers.setdefault(key_of_person(line.speaker or ""), line.speaker or "")
        one = _utterance(line, speaker, path, files.within[path])
        part = (line.start, line.seconds) if line.is_part else None
        if of_id.setdefault(one.id, (path, part)) != (path, part):
            # a-b.wav and a/b.wav, a.wav and a.flac, or parts of one recording that begin together
            of = os.fsencode(files.within[path]) + (f" {part}".encode() if part else b"")
            one = replace(one, id=f"{one.id}-{sha256(of).hexdigest()[:8]}")
        found.append((line, one))
    _say_unnamed(found, files)
    whole = _with_ends(_without_sides(found), table, left_out, said)
    pairs = _of_one_text(whole, table, left_out, said)
    say_left_out(said, is_listed=bool(pairs))
    if found and not pairs:
        raise DataError(f"{table.path}: gives every recording several texts: keep one line of each")
    if not pairs:
        columns = ", ".join([*table.columns.values(), *table.unused]) or "no header"
        advice = f", and which column holds the files (--audio-column; it has {columns})"
        raise DataError(
            f"{table.path}: none of its {len(table.lines)} recordings is in {files.root} by its "
            f"name ({why}): check the folder and the names{advice if table.columns else ''}"
        )
    return pairs


def _say_speakers(table: Transcripts) -> None:
    """Warn which columns may hold the speaker, where no column is known to."""
    is_known = "speaker" in table.columns or any(line.speaker for line in table.lines)
    if table.unused and not is_known:
        log.warning("%s: no column is known to hold the speaker: if one of %s does, name it with "
                    "--speaker-column", table.path, ", ".join(table.unused))  # fmt: skip


def _say_unnamed(found: Pairs, files: Recordings) -> None:
    """Warn how many recordings of the folder are not used in any format, where others are."""
    used = {files.within[one.path].with_suffix("") for _, one in found}
    unnamed = sorted(
        str(p) for p, within in files.within.items() if within.with_suffix("") not in used
    )
    if found and unnamed:
        log.warning("%d of %d recordings in %s have no text that can be used, such as %s",
                    len(unnamed), len(files.within), files.root, unnamed[0])  # fmt: skip


def _with_ends(found: Pairs, table: Transcripts, left_out: list[LeftOut], said: list[str]) -> Pairs:
    """Return the lines, except those without an end in a recording where another begins later.

    Such a part would have the speech of the others too; it is added to `left_out` and `said`.
    Raises DataError where the table has such parts, and no column of ends or durations.
    """
    starts: dict[Path | RemoteFile, float] = {}
    for line, one in found:
        starts[one.path] = max(line.start, starts.get(one.path, 0.0))
    is_open = [line.seconds is None and line.start < starts[one.path] for line, one in found]
    if any(is_open) and table.columns and not {"end", "seconds"} & table.columns.keys():
        raise DataError(
            f"{table.path}: has starts of parts and no column that is known to hold their ends: "
            f"name one end or duration (it has {', '.join(table.unused) or 'no others'})"
        )
    for (line, one), has_no_end in zip(found, is_open, strict=True):
        if has_no_end:
            left_out.append(LeftOut(one.id, "", str(one.path), "no_end"))
            said.append(
                f"{table.place(line.number)}: has no end, and another part of {line.audio} begins "
                "later"
            )
    return [pair for pair, has_no_end in zip(found, is_open, strict=True) if not has_no_end]


def _of_one_text(
    found: Pairs, table: Transcripts, left_out: list[LeftOut], said: list[str]
) -> Pairs:
    """Return the lines, except those that give a part of a recording several texts; list these."""
    texts: dict[str, set[str]] = defaultdict(set)
    for line, one in found:
        texts[one.id].add(normalize_text(line.text))
    for line, one in found:
        if len(texts[one.id]) > 1:
            left_out.append(LeftOut(one.id, "", str(one.path), "several_texts"))
            said.append(
                f"{table.place(line.number)}: another line has another text for {line.audio}, and "
                + ("the same start and end: correct one of them" if line.is_part else
                   "no columns start and duration (or end) tell which part has which")
            )  # fmt: skip
    return [(line, one) for line, one in found if len(texts[one.id]) == 1]


def _utterance(line: Line, speaker: str, path: Path | RemoteFile, within: PurePath) -> Utterance:
    """Return an utterance, whose id is its path in the folder, and its part of a longer file."""
    name = within.with_suffix("").as_posix().replace("/", "-")
    id = re.sub(r"\s", "_", name) + (f"-{line.start:.2f}" if line.is_part else "")
    id += f"-channel{line.channel + 1}" if line.channel is not None else ""
    return Utterance(id, path, line.text, speaker, line.start, line.seconds, line.channel)


def _without_sides(found: Pairs) -> Pairs:
    """Return the lines; drop the channel where a file is mono and all its lines name the same.

    Such a file holds one side of a call, or all of its recording (Kaldi's channel A).
    """
    channels = defaultdict[Path | RemoteFile, set[int | None]](set)
    for _, one in found:
        channels[one.path].add(one.channel)
    alone = {
        path
        for path, named in channels.items()
        if len(named) == 1 and None not in named and isinstance(path, Path) and is_mono(path)
    }
    return [(line, replace(one, channel=None) if one.path in alone else one) for line, one in found]
